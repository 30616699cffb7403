"""Checks placement reports: every node is in one subgraph, and subgraphs are in an order in which they can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain, islice
from math import isfinite

from engine.placement.report import PlacementReport

_MAX_LISTED = 10


def inconsistencies(report: PlacementReport, operations: Collection[str] | None = None) -> tuple[str, ...]:
    """The inconsistencies of a report, as sentences; empty if it is valid. Linear.

    Args:
        operations: the names of a model's operations; each must be in one subgraph, or `cloned`.
    """
    return tuple(
        chain(_of_nodes(report, operations), _of_subgraphs(report), _of_crossings(report), _of_reasons(report))
    )


def _of_nodes(report: PlacementReport, operations: Collection[str] | None) -> Iterator[str]:
    counts = Counter(name for subgraph in report.subgraphs for name in subgraph.nodes)
    yield from _about("in more than one subgraph", [name for name, count in counts.items() if count > 1])
    yield from _about("in a subgraph and cloned", [name for name in report.cloned if name in counts])
    if operations is not None:
        known = counts.keys() | set(report.cloned)
        yield from _about("in no subgraph", [name for name in operations if name not in known])
        yield from _about("in a subgraph, and not in the model", known.difference(operations))
    yield from _about("placed, and without a source", counts.keys() - report.sources.keys())
    yield from _about("given a source, and in no subgraph", report.sources.keys() - counts.keys())


def _of_subgraphs(report: PlacementReport) -> Iterator[str]:
    count = len(report.subgraphs)
    if not 0 <= report.lower_bound <= count:
        yield f"the lower bound is {report.lower_bound}; expected 0 to {count}, the number of subgraphs"
    earlier: set[int] = set()
    for subgraph in report.subgraphs:
        where = f"subgraph {subgraph.index}"
        if subgraph.index in earlier:
            yield f"{where}: another subgraph has this number"
        if subgraph.device not in report.devices:
            yield f"{where}: its device {subgraph.device} is not one of {', '.join(report.devices)}"
        if not subgraph.nodes:
            yield f"{where}: it has no nodes"
        if subgraph.op_types and len(subgraph.op_types) != len(subgraph.nodes):
            yield f"{where}: {len(subgraph.op_types)} operators for {len(subgraph.nodes)} nodes"
        for other in subgraph.depends_on:
            if other not in earlier or other >= subgraph.index:
                yield f"{where}: it depends on {other}, which does not come before it"
        earlier.add(subgraph.index)


def _of_crossings(report: PlacementReport) -> Iterator[str]:
    depends_on = {subgraph.index: set(subgraph.depends_on) for subgraph in report.subgraphs}
    for crossing in report.crossings:
        where = f"`{crossing.value}`, from {crossing.source} to {crossing.target}"
        if crossing.source not in depends_on or crossing.target not in depends_on:
            yield f"{where}: the subgraph does not exist"
        elif crossing.source not in depends_on[crossing.target]:
            yield f"{where}: {crossing.target} does not depend on {crossing.source}"
        if crossing.byte_size is not None and crossing.byte_size < 0:
            yield f"{where}: it has {crossing.byte_size} bytes"


def _of_reasons(report: PlacementReport) -> Iterator[str]:
    for refusal in report.refusals:
        where = f"`{refusal.node}` on {refusal.device}"
        if refusal.device not in report.devices:
            yield f"{where}: the device is not one of {', '.join(report.devices)}"
        if refusal.level not in ("refused", "reference"):
            yield f"{where}: the level is {refusal.level!r}; expected 'refused' or 'reference'"
        if refusal.level == "refused" and not (refusal.cause and refusal.reason):
            yield f"{where}: it is refused without a cause or a reason"
    seconds = {
        **{f"the prediction for {mode}": value for mode, value in report.predicted_seconds.items()},
        **{f"the prediction for subgraph {s.index}": s.predicted_seconds for s in report.subgraphs},
        **{f"the measurement of subgraph {s.index}": s.measured_seconds for s in report.subgraphs},
        **{f"the prediction for `{c.value}` to {c.target}": c.predicted_seconds for c in report.crossings},
        "the measurement": report.measured_seconds,
    }
    for what, value in seconds.items():
        if value is not None and not (isfinite(value) and value >= 0):
            yield f"{what} is {value} s"


def _about(what: str, names: Collection[str]) -> Iterator[str]:
    if names:
        listed = ", ".join(f"`{name}`" for name in islice(names, _MAX_LISTED))
        yield f"{len(names)} nodes are {what}: {listed}{', ...' if len(names) > _MAX_LISTED else ''}"
