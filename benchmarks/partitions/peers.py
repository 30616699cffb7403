"""openvino's HETERO on the same graphs, with a second registration of its CPU plugin for the second device.

openvino does not report the time for dividing alone, so compile times, which include it, are compared. Each graph
runs in a separate process with a time limit; a partition that is refused or takes too long is reported as such.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.testing.models import LIGHT_MODELS, light_model
from engine.testing.networks import seeded_network
from partitions.graphs import AFFINITIES, Integers, layered
from partitions.split import median_seconds

BENCHMARKS = Path(__file__).parent.parent
LIMIT_SECONDS = 300
DEVICES = ("CPU", "CPU2")
MODELS = ("resnet50", "densenet121", "inception_v2", "bert_base")
SHAPE = [1, 4]


def measure_peers(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measure random graphs of at most 1,000 nodes, and real models."""
    jobs = [(f"layered:{nodes}", pattern) for nodes in sizes if nodes <= 1000 for pattern in AFFINITIES]
    jobs += [(name, pattern) for name in MODELS for pattern in ("random", "blocky")]
    return [_in_process(name, pattern, rounds) for name, pattern in jobs]


def _in_process(name: str, pattern: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "partitions.peers", name, pattern, str(rounds)]
    row: dict[str, Any] = {"graph": name, "affinity": pattern}
    try:
        result = subprocess.run(
            command, cwd=BENCHMARKS, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return row | {"problem": f"took more than {LIMIT_SECONDS} s"}
    if result.returncode != 0:
        return row | {"problem": (result.stderr.strip().splitlines() or ["failed"])[-1]}
    return row | json.loads(result.stdout.splitlines()[-1])


def _random_model(nodes: int) -> Any:
    """A layered graph as a model of additions and Relus over small tensors."""
    import openvino
    from openvino import opset13 as opset

    sources: list[list[int]] = [[] for _ in range(nodes)]
    for source, target in np.unique(layered(nodes), axis=0):
        sources[target].append(int(source))
    parameter = opset.parameter(SHAPE, openvino.Type.f32)
    made: list[Any] = []
    for number, read in enumerate(sources):
        values = [made[source] for source in read] or [parameter]
        node = opset.relu(values[0]) if len(values) == 1 else opset.add(values[0], values[1])
        for value in values[2:]:
            node = opset.add(node, value)
        node.set_friendly_name(f"node{number}")
        made.append(node)
    ends = [node for node in made if not node.output(0).get_target_inputs()]
    return openvino.Model([opset.result(node) for node in ends], [parameter], "layered")


def _model(name: str) -> Any:
    import openvino

    if name.startswith("layered:"):
        return _random_model(int(name.partition(":")[2]))
    model = light_model(name) if name in LIGHT_MODELS else seeded_network(name).model
    return openvino.Core().read_model(model.SerializeToString())


def _place(model: Any, pattern: str) -> tuple[Integers, Integers]:
    """Set the affinity of each operation, and of other nodes from their consumers; return the graph of operations."""
    operations = [n for n in model.get_ordered_ops() if n.get_type_name() not in ("Parameter", "Constant", "Result")]
    number = {node.get_friendly_name(): i for i, node in enumerate(operations)}
    affinity = AFFINITIES[pattern](len(operations), len(DEVICES))
    edges = []
    for node in reversed(model.get_ordered_ops()):
        own = number.get(node.get_friendly_name())
        if own is None:
            near = [p.get_node() for o in node.outputs() for p in o.get_target_inputs()]
            near = near or [node.input_value(0).get_node()]
            known = [number[n.get_friendly_name()] for n in near if n.get_friendly_name() in number]
            node.get_rt_info()["affinity"] = DEVICES[affinity[min(known)]] if known else DEVICES[0]
            continue
        node.get_rt_info()["affinity"] = DEVICES[affinity[own]]
        sources = {value.get_node().get_friendly_name() for value in node.input_values()} & set(number)
        edges += [(number[source], own) for source in sources]
    return np.array(edges, np.int64).reshape(-1, 2), affinity


def _measure(name: str, pattern: str, rounds: int) -> dict[str, Any]:
    import openvino
    from engine_hetero import partition

    model = _model(name)
    edges, affinity = _place(model, pattern)
    made = partition(edges, affinity)
    core = openvino.Core()
    core.register_plugin("openvino_intel_cpu_plugin", DEVICES[1])
    core.compile_model(model, DEVICES[0])  # loads the plugin
    start = time.perf_counter()
    alone = core.compile_model(model, DEVICES[0])
    alone_seconds = time.perf_counter() - start
    start = time.perf_counter()
    compiled = core.compile_model(model, f"HETERO:{','.join(DEVICES)}")
    return {
        "nodes": len(affinity),
        "lower_bound": made.lower_bound,
        "engine_count": made.count,
        "engine_connected_count": partition(edges, affinity, mode="connected").count,
        "engine_split_seconds": median_seconds(lambda: partition(edges, affinity), rounds),
        "openvino_count": int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
        "openvino_compile_seconds": time.perf_counter() - start,
        "openvino_compile_alone_seconds": alone_seconds,
        "openvino": openvino.__version__.partition("-")[0],
        "outputs": len(alone.outputs),
    }


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
