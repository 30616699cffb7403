"""HETERO:OPENCL,CPU on networks: as it places them, and with their second half on CPU; the answers are checked.

python -m comparison.gpu_hetero --device OPENCL --json hetero.json       # from the folder benchmarks
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from engine_hetero import set_affinity

from engine import Core
from engine.ir import Model
from engine.testing.models import relative_error
from engine.testing.networks import seeded_network

_PRECISE: Final = 1e-3


def cases(core: Core, device: str, networks: Sequence[str], *, small: bool, seconds: float) -> list[dict[str, Any]]:
    """A row for each network and placement."""
    rows = []
    for name in networks:
        seeded = seeded_network(name, small=small)
        inputs = dict(seeded.inputs)
        expected = [np.array(value) for value in core.compile_model(seeded.model, "CPU")(inputs).values()]
        for placement in ("its own", "second half on CPU"):
            model = core.read_model(seeded.model)
            if placement != "its own":
                place_half(model)
            network = core.compile_model(model, f"HETERO:{device},CPU")
            found = network(inputs).values()
            error = max(relative_error(one, other) for one, other in zip(found, expected, strict=True))
            devices = list(network.get_metric("EXECUTION_DEVICES"))
            rows.append({
                "network": name, "placement": placement, "devices": devices, "error": error,
                "milliseconds": latency(network, inputs, seconds),
            })  # fmt: skip
    return rows


def place_half(model: Model) -> None:
    """The affinity CPU for the second half of the nodes, in order."""
    nodes = list(model.ordered_nodes())
    later = set(nodes[len(nodes) // 2 :])
    set_affinity(model, lambda node: "CPU" if node in later else None)


def latency(network: Any, inputs: Any, seconds: float) -> float:
    """The median milliseconds of inferences within `seconds`."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begun = time.perf_counter()
        network(inputs)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="OPENCL")
    parser.add_argument("--small", action="store_true", help="the tests' sizes")
    parser.add_argument("--json", required=True)
    options = parser.parse_args(arguments)
    networks = ["mobilenet_v2"] if options.small else ["resnet50", "gpt2_blocks", "unet"]
    rows = cases(Core(), options.device, networks, small=options.small, seconds=0.05 if options.small else 1.0)
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)
    wrong = [f"{row['network']}, {row['placement']}" for row in rows if not row["error"] < _PRECISE]
    if wrong:
        print(f"wrong answers: {'; '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
