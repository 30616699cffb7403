"""Measures the pass framework: scaling with the graph, the cost of matchers that never match, and a rewrite
against the same pass in openvino's Python API.

    python benchmarks/passes.py [--json FILE] [--rounds 5]

openvino is optional; without it, its column is omitted. The two engines run in alternating rounds with a rest in
between, so that noise affects both; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from engine import ops
from engine.ir import Model, Node, Parameter, f32
from engine.passes import GraphRewrite, Manager, MatcherPass, copy_runtime_info, pattern, replace_node

REST_SECONDS = 0.05
UNMATCHED = (
    "Sigmoid", "Tanh", "Softmax", "Gemm", "MatMul", "Conv", "Mul", "Sub", "Div", "Pow", "Sqrt", "Exp", "Log", "Abs",
    "Neg", "Floor", "Ceil", "Round", "Sin", "Cos",
)  # fmt: skip


class ReluReluFusion(MatcherPass):
    """Merges two consecutive Relus."""

    def __init__(self) -> None:
        super().__init__()
        first = pattern.wrap_type("Relu", predicate=pattern.consumers_count(1))
        second = pattern.wrap_type("Relu", [first])

        def callback(m: pattern.Matcher) -> bool:
            relu = self.register_new_node(ops.Relu(m.pattern_value_map[first].node.input_value(0)))
            relu.friendly_name = m.match_root.friendly_name
            copy_runtime_info(m.matched_nodes, relu)
            replace_node(m.match_root, relu)
            return True

        self.register_matcher(pattern.Matcher(second, "ReluReluFusion"), callback)


class NeverMatches(MatcherPass):
    """A pattern with an operator that the graph does not have."""

    def __init__(self, op_type: str) -> None:
        super().__init__()
        root = pattern.wrap_type(op_type, [pattern.any_input()] * (2 if op_type in ("Gemm", "MatMul") else 1))
        self.register_matcher(pattern.Matcher(root, f"never {op_type}"), lambda m: False)


def relu_chain(length: int) -> Model:
    """A chain of Relus: all but the first are fused."""
    x = Parameter(f32, [1, 8], "x")
    node: Node = x
    for _ in range(length):
        node = ops.Relu(node)
    return Model([node], [x])


def layered(length: int) -> Model:
    """Alternating Add and Relu, with a skip connection over each pair: nothing is fused."""
    x = Parameter(f32, [1, 8], "x")
    node: Node = x
    for _ in range(length // 2):
        node = ops.Add(ops.Relu(node), node)
    return Model([node], [x])


def timed(run: Callable[[], object]) -> float:
    """The seconds of one run, after a rest."""
    time.sleep(REST_SECONDS)
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def run_pass(model: Model, *passes: MatcherPass) -> Callable[[], object]:
    """A traversal with these passes in one GraphRewrite."""
    manager = Manager()
    manager.register_pass(GraphRewrite(passes))
    return lambda: manager.run_passes(model)


def openvino_rewrite() -> Callable[[int], Callable[[], object]] | None:
    """The same pass in openvino: a function from a chain's length to the run; None without openvino."""
    try:
        import openvino as ov
        from openvino import opset13 as opset
        from openvino.passes import Manager as OvManager
        from openvino.passes import Matcher, WrapType, consumers_count
        from openvino.passes import MatcherPass as OvMatcherPass
        from openvino.utils import replace_node as ov_replace_node
    except ImportError:
        return None

    class Fusion(OvMatcherPass):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            OvMatcherPass.__init__(self)
            first = WrapType("opset13.Relu", consumers_count(1))
            second = WrapType("opset13.Relu", [first.output(0)])

            def callback(m: Any) -> bool:
                root = m.get_match_root()
                inner = root.input(0).get_source_output().get_node()
                relu = self.register_new_node(opset.relu(inner.input(0).get_source_output()))
                relu.set_friendly_name(root.get_friendly_name())
                ov_replace_node(root, relu)
                return True

            self.register_matcher(Matcher(second, "ReluReluFusion"), callback)

    def prepare(length: int) -> Callable[[], object]:
        x = opset.parameter([1, 8], ov.Type.f32)
        node = x
        for _ in range(length):
            node = opset.relu(node)
        model = ov.Model([node], [x], "chain")
        manager = OvManager()
        manager.register_pass(Fusion())
        return lambda: manager.run_passes(model)

    return prepare


def measure_rewrite(rounds: int) -> list[dict[str, float]]:
    """Microseconds for each rewrite, ours and openvino's, in alternating rounds."""
    theirs = openvino_rewrite()
    rows = []
    for length in (1_000, 10_000):
        ours_us, theirs_us = [], []
        for _ in range(rounds):
            ours_us.append(timed(run_pass(relu_chain(length), ReluReluFusion())) / length * 1e6)
            if theirs is not None:
                theirs_us.append(timed(theirs(length)) / length * 1e6)
        row = {"nodes": length, "engine_us": statistics.median(ours_us)}
        if theirs_us:
            row |= {"openvino_us": statistics.median(theirs_us)}
            row |= {"ratio": row["engine_us"] / row["openvino_us"]}
        rows.append(row)
    return rows


def measure_growth(rounds: int) -> list[dict[str, float]]:
    """Microseconds for each node, of a traversal that matches nothing and of a fusion of all nodes."""
    rows = []
    for length in (1_000, 10_000, 100_000):
        model = layered(length)
        walk = statistics.median(timed(run_pass(model, ReluReluFusion())) for _ in range(rounds))
        fuse = statistics.median(timed(run_pass(relu_chain(length), ReluReluFusion())) for _ in range(rounds))
        rows.append({"nodes": length, "walk_us": walk / length * 1e6, "fuse_us": fuse / length * 1e6})
    return rows


def measure_matchers(rounds: int) -> dict[str, float]:
    """A traversal of 10,000 nodes with one matcher, and with a hundred more that never match."""
    model = layered(10_000)
    many = [NeverMatches(op) for op in UNMATCHED for _ in range(5)]
    few_run, many_run = run_pass(model, ReluReluFusion()), run_pass(model, ReluReluFusion(), *many)
    few, with_many = [], []
    for _ in range(max(rounds, 9)):
        few.append(timed(few_run))
        with_many.append(timed(many_run))
    one, hundred = statistics.median(few), statistics.median(with_many)
    return {"matchers": len(many) + 1, "one_ms": one * 1e3, "many_ms": hundred * 1e3, "ratio": hundred / one}


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (default: 5)")
    options = parser.parse_args()
    figures = {
        "rewrite": measure_rewrite(options.rounds),
        "growth": measure_growth(options.rounds),
        "matchers": measure_matchers(options.rounds),
    }
    for name, rows in figures.items():
        for row in rows if isinstance(rows, list) else [rows]:
            print(f"{name:9}", "  ".join(f"{key} {value:,.3g}" for key, value in row.items()))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
