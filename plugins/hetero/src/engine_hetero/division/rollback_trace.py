"""The steps of the strategy `rollback` as text, with the lists that OpenVINO's HETERO design shows for each."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.native.graph import TraceStep

_ACTIONS = {"root": "select root", "merge": "merge", "fail": "failed to merge", "rollback": "roll back"}


def trace_lines(steps: Iterable[TraceStep]) -> Iterator[str]:
    """Write each step as a line: the action, the resulting subgraph and rejected nodes, and the condition.

    An atom is represented by its first node. The lists make the text quadratic in the subgraph size in the worst case.
    """
    subgraph: list[int] = []
    rejected: list[int] = []
    candidates: list[str] = []
    device = -1  # device of the last chosen subgraph
    for step in steps:
        match step.kind:
            case "roots":
                if step.device == device and not candidates and step.nodes:
                    yield f"device {device}: remaining nodes {_listed(step.nodes)}"
                end = "" if step.nodes else ": no roots, end"
                yield f"device {step.device}: possible roots {_listed(step.nodes)}{end}"
            case "end":
                candidates.append(_listed(subgraph))
                yield "no nodes to merge, end"
            case "choose":
                yield f"subgraphs {', '.join(candidates)}: select {_listed(step.nodes)}"
                candidates, device = [], step.device
            case "cut":
                yield "end of the trace: further steps of the algorithm were not recorded"
            case _:
                if step.kind == "root":
                    subgraph, rejected = [], []
                if step.kind == "rollback":
                    subgraph.remove(step.node)
                insort(rejected if step.kind in ("fail", "rollback") else subgraph, step.node)
                yield (
                    f"{_ACTIONS[step.kind]} {_listed([step.node])}: subgraph {_listed(subgraph)}, "
                    f"rejected {_listed(rejected)}, condition: {_condition(step)}"
                )


def _condition(step: TraceStep) -> str:
    if step.condition == "violated":
        return f"reject, self-references through {_listed(step.nodes)}"
    if step.condition == "possible":
        return f"ok, possible self-references through {_listed(step.nodes)}"
    return "ok"


def _listed(nodes: Iterable[int]) -> str:
    return f"[{','.join(map(str, nodes))}]"
