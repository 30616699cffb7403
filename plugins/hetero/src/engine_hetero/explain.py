"""What HETERO answers to a query: how every node would run, and the report of the whole division."""

from __future__ import annotations

import numpy as np

from engine.ir import Constant, Parameter, Result
from engine.plugin_api import (
    Config,
    CoreHandle,
    Crossing,
    Model,
    NodeRefusal,
    PlacedSubgraph,
    PlacementReport,
    QueryResult,
    Support,
    SupportLevel,
)
from engine_hetero.canonical import original_names
from engine_hetero.device_list import DeviceList
from engine_hetero.model_graph import ModelGraph, byte_size, has_known_size
from engine_hetero.placing import Claims, UnplaceableError
from engine_hetero.planning import Plan, Planner
from engine_hetero.properties import PARTITION_MODE, PARTITION_STRATEGY, PLACEMENT


def answer(core: CoreHandle, model: Model, devices: DeviceList, config: Config) -> QueryResult:
    """How each of the model's own operations would run; one that is folded away runs nowhere, which is native."""
    planner = Planner(core, model, devices, config)
    graph = planner.graph
    try:
        plan = planner.plan()
    except UnplaceableError as e:
        supports = {graph.names[n]: Support.refused("placement", reason) for n, reason in e.reasons.items()}
        return QueryResult(_by_original_name(model, graph, supports))
    claims = plan.placement.claims
    supports = {
        graph.names[number]: claims.support(int(device), number)
        for number, device in enumerate(plan.placement.affinity)
    }
    return QueryResult(_by_original_name(model, graph, supports), placement=report(plan, config))


def _by_original_name(model: Model, graph: ModelGraph, supports: dict[str, Support]) -> dict[str, Support]:
    operations = [n.friendly_name for n in model.ordered_nodes() if not isinstance(n, (Parameter, Constant, Result))]
    answers = dict.fromkeys(operations, Support.native())
    for name, originals in original_names(graph.model).items():
        if name in supports:
            answers |= {original: supports[name] for original in originals if original in answers}
    return answers


def report(plan: Plan, config: Config) -> PlacementReport:
    """What a person wants to know of a division."""
    placement = plan.placement
    crossings = _crossings(plan)
    return PlacementReport(
        devices=placement.claims.devices,
        strategy=config[PARTITION_STRATEGY],
        mode=config[PARTITION_MODE],
        placement=config[PLACEMENT],
        subgraphs=_subgraphs(plan, crossings),
        crossings=crossings,
        lower_bound=plan.partition.lower_bound,
        refusals=_refusals(placement.claims, plan),
        sources=dict(zip(plan.graph.names, placement.sources, strict=True)),
    )


def _subgraphs(plan: Plan, crossings: tuple[Crossing, ...]) -> tuple[PlacedSubgraph, ...]:
    names = plan.graph.names
    needs: list[set[int]] = [set() for _ in plan.members]
    for crossing in crossings:
        needs[crossing.target].add(crossing.source)
    return tuple(
        PlacedSubgraph(
            number,
            device,
            tuple(names[n] for n in members),
            tuple(sorted(needs[number])),
        )
        for number, (device, members) in enumerate(zip(plan.devices(), plan.members, strict=True))
    )


def _crossings(plan: Plan) -> tuple[Crossing, ...]:
    """Each value once for each subgraph that reads it."""
    graph = plan.graph
    part = np.empty(len(graph), np.int64)
    for number, members in enumerate(plan.members):
        part[list(members)] = number
    found: dict[tuple[str, int, int], Crossing] = {}
    for (source, target), value in zip(graph.edges, graph.values, strict=True):
        ends = int(part[source]), int(part[target])
        if ends[0] != ends[1]:
            size = byte_size(value) if has_known_size(value) else None
            found.setdefault((value.name, *ends), Crossing(value.name, *ends, size))
    return tuple(found.values())


def _refusals(claims: Claims, plan: Plan) -> tuple[NodeRefusal, ...]:
    """Why each node is not on a device that was to be preferred."""
    refusals = []
    for number, node in enumerate(plan.graph.nodes):
        for device in range(int(plan.placement.affinity[number]) + 1):
            support = claims.support(device, number)
            if support.level is not SupportLevel.NATIVE:
                refusals.append(
                    NodeRefusal(
                        node.friendly_name,
                        node.op_type,
                        claims.devices[device],
                        support.level.value,
                        support.cause,
                        support.reason,
                    )
                )
    return tuple(refusals)
