"""Loops: the time of an iteration on CPU, beside onnxruntime: `python benchmarks/loops.py`.

The body of the first is one small addition, so the loop itself takes nearly all of its time. On a shared machine, run
it with a real-time priority: `chrt -f 10 python benchmarks/loops.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from engine import Core

ROUNDS = 30
TRIPS = 1000
Feeds = dict[str, np.ndarray[Any, Any]]


def port(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A tensor that enters or leaves a graph."""
    return helper.make_tensor_value_info(name, kind, shape)


def small_add(condition: bool) -> onnx.ModelProto:
    """A Loop that adds 1 to four numbers, and with `condition` compares the first one with a bound."""
    nodes = [helper.make_node("Add", ["c", "one"], ["d"])]
    if condition:
        nodes += [
            helper.make_node("ReduceMax", ["d"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "bound"], ["on"]),
        ]
    else:
        nodes += [helper.make_node("Identity", ["go"], ["on"])]
    body = helper.make_graph(
        nodes,
        "body",
        [port("i", [], TensorProto.INT64), port("go", [], TensorProto.BOOL), port("c", [4])],
        [port("on", [], TensorProto.BOOL), port("d", [4])],
        [
            helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
            helper.make_tensor("bound", TensorProto.FLOAT, [], [1e9]),
        ],
    )
    loop = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    return model([loop], [port("m", [], TensorProto.INT64), port("x", [4])], [port("y", [4])], [])


def cell(hidden: int) -> onnx.ModelProto:
    """A Scan of a recurrent cell, h = tanh(x W + h R), which stacks its states."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["e", "w"], ["a"]),
            helper.make_node("MatMul", ["h", "r"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["s"]),
            helper.make_node("Tanh", ["s"], ["n"]),
            helper.make_node("Identity", ["n"], ["o"]),
        ],
        "body",
        [port("h", [1, hidden]), port("e", [1, hidden])],
        [port("n", [1, hidden]), port("o", [1, hidden])],
    )
    random = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(random.uniform(-0.05, 0.05, (hidden, hidden)).astype(np.float32), name)
        for name in ("w", "r")
    ]
    scan = helper.make_node("Scan", ["x", "xs"], ["y", "ys"], body=body, num_scan_inputs=1)
    inputs = [port("x", [1, hidden]), port("xs", [TRIPS, 1, hidden])]
    return model([scan], inputs, [port("y", [1, hidden]), port("ys", [TRIPS, 1, hidden])], weights)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto],
) -> onnx.ModelProto:
    """A model of the newest form that onnxruntime reads."""
    graph = helper.make_graph(nodes, "loops", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def interleaved(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The shortest time of each call, in seconds, of rounds in which all of them run."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    """Print microseconds for each iteration."""
    four = {"m": np.array(TRIPS), "x": np.zeros(4, np.float32)}
    cases: dict[str, tuple[onnx.ModelProto, Feeds]] = {
        "Loop, Add [4]": (small_add(condition=False), four),
        "Loop, Add [4] and a condition": (small_add(condition=True), four),
    }
    for hidden in (64, 256):
        random = np.random.default_rng(1).uniform(-1, 1, (TRIPS, 1, hidden)).astype(np.float32)
        cases[f"Scan, recurrent cell of {hidden}"] = (
            cell(hidden), {"x": np.zeros((1, hidden), np.float32), "xs": random},
        )  # fmt: skip
    print(f"us an iteration, {TRIPS} iterations, shortest of {ROUNDS} rounds")
    print(f"{'':34}{'CPU':>10}{'onnxruntime':>14}")
    for name, (proto, feeds) in cases.items():
        network = Core().compile_model(proto, "CPU")
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        got, expected = network(feeds), session.run(None, feeds)
        for port_of, wanted in zip(network.outputs, expected, strict=True):
            np.testing.assert_allclose(got[port_of.name], wanted, rtol=1e-3, atol=1e-4)

        def ours(network: Any = network, feeds: Feeds = feeds) -> object:
            return network(feeds)

        def theirs(session: Any = session, feeds: Feeds = feeds) -> object:
            return session.run(None, feeds)

        best = interleaved({"CPU": ours, "onnxruntime": theirs})
        print(
            f"{name:34}"
            + "".join(f"{best[each] / TRIPS * 1e6:{width}.2f}" for each, width in (("CPU", 10), ("onnxruntime", 14)))
        )


if __name__ == "__main__":
    main()
