"""Reading BERT-base: `read_model` against creating an onnxruntime session, from the same file in the same run.

    python benchmarks/import_bert.py [--rounds N] [--layers N]

Builds a BERT-base encoder as exporters write it (dynamic batch and length, shape arithmetic in the graph, 12 layers,
440 MB of weights), then reads it with both in turn, and prints medians. Peak memory is measured in fresh processes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

REST_SECONDS = 0.3  # so that the previous reader's threads and freed memory do not slow down the next one
HIDDEN, HEADS, INNER, WORDS, POSITIONS = 768, 12, 3072, 30522, 512


class Graph:
    """Collects nodes and initializers under fresh names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def weight(self, *shape: int, scale: float = 0.02) -> str:
        return self.constant(self.random.standard_normal(shape, dtype=np.float32) * np.float32(scale))

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        name = f"init_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.add("Add", self.weight(columns), self.add("MatMul", x, self.weight(rows, columns)))

    def norm(self, x: str) -> str:
        return self.add("LayerNormalization", x, self.weight(HIDDEN), self.weight(HIDDEN), axis=-1, epsilon=1e-12)

    def length(self, x: str, axis: int) -> str:
        index = self.constant(np.array(axis, np.int64))
        gathered = self.add("Gather", self.add("Shape", x), index, axis=0)
        return self.add("Unsqueeze", gathered, self.constant(np.array([0], np.int64)))

    def reshape(self, x: str, *tail: int) -> str:
        lengths = [self.length(x, 0), self.length(x, 1)]
        target = self.add("Concat", *lengths, *(self.constant(np.array([n], np.int64)) for n in tail), axis=0)
        return self.add("Reshape", x, target)

    def heads(self, x: str, order: Sequence[int]) -> str:
        return self.add("Transpose", self.reshape(self.linear(x, HIDDEN, HIDDEN), HEADS, HIDDEN // HEADS), perm=order)


def attention(g: Graph, x: str, mask: str) -> str:
    query, key, value = g.heads(x, (0, 2, 1, 3)), g.heads(x, (0, 2, 3, 1)), g.heads(x, (0, 2, 1, 3))
    scores = g.add("Div", g.add("MatMul", query, key), g.constant(np.array(8.0, np.float32)))
    context = g.add("MatMul", g.add("Softmax", g.add("Add", scores, mask), axis=-1), value)
    return g.linear(g.reshape(g.add("Transpose", context, perm=(0, 2, 1, 3)), HIDDEN), HIDDEN, HIDDEN)


def gelu(g: Graph, x: str) -> str:
    inner = g.add("Erf", g.add("Div", x, g.constant(np.array(2**0.5, np.float32))))
    return g.add("Mul", g.add("Mul", x, g.add("Add", inner, g.constant(np.array(1.0, np.float32)))),
                 g.constant(np.array(0.5, np.float32)))  # fmt: skip


def bert(layers: int) -> onnx.ModelProto:
    """A BERT encoder with `layers` layers at opset 17, with random weights."""
    g = Graph()
    mask = g.add("Cast", g.add("Unsqueeze", "attention_mask", g.constant(np.array([1, 2], np.int64))), to=1)
    mask = g.add("Mul", g.add("Sub", g.constant(np.array(1.0, np.float32)), mask),
                 g.constant(np.array(-1e4, np.float32)))  # fmt: skip
    x = g.add("Add", g.add("Gather", g.weight(WORDS, HIDDEN), "input_ids"),
              g.add("Gather", g.weight(2, HIDDEN), "token_type_ids"))  # fmt: skip
    zero, one = g.constant(np.array([0], np.int64)), g.constant(np.array([1], np.int64))
    positions = g.add("Slice", g.weight(POSITIONS, HIDDEN), zero, g.length("input_ids", 1), zero, one)
    x = g.norm(g.add("Add", x, positions))
    for _ in range(layers):
        x = g.norm(g.add("Add", attention(g, x, mask), x))
        x = g.norm(g.add("Add", g.linear(gelu(g, g.linear(x, HIDDEN, INNER)), INNER, HIDDEN), x))
    first = g.add("Gather", x, g.constant(np.array(0, np.int64)), axis=1)
    g.nodes.append(helper.make_node("Tanh", [g.linear(first, HIDDEN, HIDDEN)], ["pooled"], name="pooler"))
    g.nodes.append(helper.make_node("Identity", [x], ["hidden"], name="last"))
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, ["batch", "length"])
              for name in ("input_ids", "attention_mask", "token_type_ids")]  # fmt: skip
    outputs = [helper.make_tensor_value_info("hidden", 1, ["batch", "length", HIDDEN]),
               helper.make_tensor_value_info("pooled", 1, ["batch", HIDDEN])]  # fmt: skip
    graph = helper.make_graph(g.nodes, "bert", inputs, outputs, g.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


READERS = {
    "engine.read_model": "from engine.onnx import read_model as read",
    "onnxruntime session": (
        "from onnxruntime import InferenceSession\n"
        "read = lambda path: InferenceSession(path, providers=['CPUExecutionProvider'])"
    ),
}


def reader(setup: str) -> Callable[[str], object]:
    names: dict[str, Callable[[str], object]] = {}
    exec(setup, names)
    return names["read"]


def memory_growth(setup: str, path: str) -> tuple[float, float]:
    """The additional megabytes of a fresh process after reading the model: peak memory, and private memory.

    The peak includes pages of the mapped file, which the system reclaims when it needs memory. Private memory
    belongs to the process alone.
    """
    script = (
        f"{setup}\nimport sys\n"
        "def kilobytes():\n"
        "    status = open('/proc/self/status').read()\n"
        "    return [int(status.split(key + ':')[1].split()[0]) for key in ('VmHWM', 'RssAnon')]\n"
        "before = kilobytes()\nmodel = read(sys.argv[1])\n"
        "print(*((b - a) / 1024 for a, b in zip(before, kilobytes())))"
    )
    done = subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True, text=True)
    peak, own = map(float, done.stdout.split())
    return peak, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "bert.onnx")
        model = bert(options.layers)
        onnx.save(model, path)
        size = Path(path).stat().st_size / 2**20
        print(f"{len(model.graph.node)} nodes, {len(model.graph.initializer)} initializers, {size:.0f} MB")
        del model
        readers = {name: reader(setup) for name, setup in READERS.items()}
        times: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(options.rounds):
            for name, read in readers.items():
                time.sleep(REST_SECONDS)
                start = time.perf_counter()
                loaded = read(path)
                times[name].append(time.perf_counter() - start)
                del loaded
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, median in medians.items():
            peak, own = memory_growth(READERS[name], path)
            best = min(times[name]) * 1e3
            print(f"{name:22} {median * 1e3:8.1f} ms (best {best:.1f}), peak +{peak:.0f} MB, own +{own:.0f} MB")
        ours, theirs = medians.values()
        print(f"ratio {theirs / ours:.1f}")


if __name__ == "__main__":
    main()
