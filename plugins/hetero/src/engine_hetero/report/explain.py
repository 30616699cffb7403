"""Query answers of HETERO: how every node would run, and a report on the division."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from engine.passes.runtime_info import FUSED_NAMES, is_operation
from engine.passes.work import byte_size
from engine.plugin_api import (
    Config,
    CoreHandle,
    Crossing,
    Model,
    NodeRefusal,
    PlacedSubgraph,
    PlacementReport,
    QueryResult,
    RefusalCause,
    Support,
    SupportLevel,
)
from engine_hetero.affinity.placement import UnplaceableError
from engine_hetero.device_list import DeviceList
from engine_hetero.division.division import Division
from engine_hetero.properties import PARTITION_STRATEGY, PLACEMENT
from engine_hetero.query.canonical import canonical_model
from engine_hetero.query.claims import Claims
from engine_hetero.query.model_graph import ModelGraph, has_known_size
from engine_hetero.report.findings import findings
from engine_hetero.stages import divided


def answer(core: CoreHandle, model: Model, devices: DeviceList, config: Config) -> QueryResult:
    """The support of each of the model's operations; folded operations count as native."""
    try:
        division = _settled(core, model, devices, config)
    except UnplaceableError as e:
        refused = {n: Support.refused(RefusalCause.PLACEMENT, reason) for n, reason in e.reasons.items()}
        return QueryResult(_by_original_name(model, _originals(model, e.claims.graph), refused))
    originals = _originals(model, division.graph)
    claims = division.placement.claims
    supports = {number: claims.support(int(d), number) for number, d in enumerate(division.placement.affinity)}
    answers = _by_original_name(model, originals, supports)
    return QueryResult(answers, placement=report(division, config, originals, answers))


def _settled(core: CoreHandle, model: Model, devices: DeviceList, config: Config) -> Division:
    """The division that compilation uses, whose claims have each device's answers about its own subgraphs.

    A node that a device runs in the whole model may not run in a subgraph: another subgraph may compute lengths that
    are constants in the whole model.
    """
    claims = Claims.asked(core, canonical_model(model), devices)
    while True:
        division, parts = divided(core, model, claims, devices, config, devices.budgets)
        if len(division.members) < 2:
            return division
        own, later = division.placement.claims, []
        for part in parts:
            answer = core.query_model(part.model, part.device, devices.configs[part.device])
            if refused := answer.at(SupportLevel.REFUSED):
                later.append((part.device, refused))
            names = [division.graph.names[number] for number in part.nodes]
            own = own.with_answers(claims.devices.index(part.device), {name: answer[name] for name in names})
        if not later:
            return replace(division, placement=replace(division.placement, claims=own))
        claims = claims.without(later)


Originals: TypeAlias = Sequence[Mapping[str, str]]
"""For each node of a graph, the user's operations that it replaces: operators by name."""


def _originals(model: Model, graph: ModelGraph) -> Originals:
    """Every operation of the model with the first node that replaces it, if any."""
    left = {n.friendly_name: n.op_type for n in model.ordered_nodes() if is_operation(n)}
    return [
        {name: left.pop(name) for name in node.rt_info.get(FUSED_NAMES, (node.friendly_name,)) if name in left}
        for node in graph.nodes
    ]


def _by_original_name(model: Model, originals: Originals, supports: Mapping[int, Support]) -> dict[str, Support]:
    answers = {n.friendly_name: Support.native() for n in model.ordered_nodes() if is_operation(n)}
    for number, support in supports.items():
        answers |= dict.fromkeys(originals[number], support)
    return answers


def report_of(division: Division, config: Config, model: Model) -> PlacementReport:
    """The report on a division of `model`, the one that the user gave."""
    operations = [node.friendly_name for node in model.ordered_nodes() if is_operation(node)]
    return report(division, config, _originals(model, division.graph), operations)


def report(division: Division, config: Config, originals: Originals, operations: Iterable[str]) -> PlacementReport:
    """The report on a division, with the names of the model's operations."""
    placement, found = division.placement, division.partition
    crossings = _crossings(division)
    sources = {name: source for names, source in zip(originals, placement.sources, strict=True) for name in names}
    return PlacementReport(
        devices=placement.claims.devices,
        strategy=config[PARTITION_STRATEGY],
        mode=division.mode,
        placement=config[PLACEMENT],
        subgraphs=_subgraphs(division, crossings, originals),
        crossings=crossings,
        lower_bound=found.lower_bound,
        refusals=tuple(_refusals(placement.claims, division, originals)),
        sources=sources,
        predicted_seconds=division.predicted_seconds,
        findings=findings(placement.claims, division.costs, placement.affinity, found.subgraph, found.order),
        cloned=tuple(name for name in operations if name not in sources),
        costs=division.costs.origin,
    )


def _subgraphs(division: Division, crossings: Sequence[Crossing], originals: Originals) -> tuple[PlacedSubgraph, ...]:
    needs: list[set[int]] = [set() for _ in division.members]
    for crossing in crossings:
        needs[crossing.target].add(crossing.source)
    placed = []
    measured = division.measured_part_seconds
    for number, (device, members) in enumerate(zip(division.devices, division.members, strict=True)):
        operations = {name: op_type for n in members for name, op_type in originals[n].items()}
        placed.append(
            PlacedSubgraph(
                number,
                device,
                tuple(operations),
                tuple(sorted(needs[number])),
                division.part_seconds[number],
                measured[number],
                op_types=tuple(operations.values()),
            )
        )
    return tuple(placed)


def _crossings(division: Division) -> tuple[Crossing, ...]:
    """The transfers: each value once per subgraph that reads it."""
    graph = division.graph
    part = division.part_of_node
    affinity = division.placement.affinity
    edge_seconds = division.costs.edge_seconds(graph, affinity, part)
    found: dict[tuple[str, int, int], Crossing] = {}
    for (source, target), value, seconds in zip(graph.edges, graph.values, edge_seconds, strict=True):
        ends = int(part[source]), int(part[target])
        if ends[0] != ends[1]:
            size = byte_size(value) if has_known_size(value) else None
            found.setdefault((value.name, *ends), Crossing(value.name, *ends, size, float(seconds)))
    return tuple(found.values())


def _refusals(claims: Claims, division: Division, originals: Originals) -> Iterator[NodeRefusal]:
    """Why each node is not on a preferred device, and why not native on its own device."""
    for number, operations in enumerate(originals):
        for device in range(int(division.placement.affinity[number]) + 1):
            support = claims.support(device, number)
            if support.level is SupportLevel.NATIVE:
                continue
            for name, op_type in operations.items():
                yield NodeRefusal(
                    name, op_type, claims.devices[device], support.level.value, support.cause or "", support.reason
                )
