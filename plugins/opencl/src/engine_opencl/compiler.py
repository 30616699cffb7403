"""Compiles a prepared static graph to a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

from engine.ir import Constant, Output, Parameter, Result
from engine.lowering import Decisions
from engine.ops.select import NonMaxSuppressionSpec
from engine_opencl.counted_axes import bound_lengths, has_inner_readers
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering import OpenclGraph
from engine_opencl.lowering.counted import largest_selection
from engine_opencl.plan import LaunchPlan
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.tuning.tuner import OpenclTuner

_Counted: TypeAlias = "dict[Output, tuple[Output, int]]"

ADVICE: Final = "run it on another device with HETERO:OPENCL,CPU"
"""The advice in the error for an operation without a kernel."""


def build_plan(prepared: OpenclGraph, facts: DeviceFacts, tuner: OpenclTuner | None = None) -> LaunchPlan:
    """The plan of a graph, with the kernels that `tuner` knows or measures to be fastest.

    Raises `UnsupportedError` naming the first node without a kernel.
    """
    prepared.require_kernels("OPENCL", ADVICE)
    counted = _bounded(prepared)
    if counted:
        prepared = replace(prepared, decisions=Decisions(prepared.decisions.table))  # for the known lengths
        prepared.require_kernels("OPENCL", ADVICE)
    builder = _lowered(prepared, facts, tuner, counted)
    # Another choice may lead to other sites.
    while tuner is not None and tuner.tune(builder):
        builder = _lowered(prepared, facts, tuner, counted)
    outputs = [result.input_value(0) for result in prepared.graph.results]
    return builder.finish(prepared.graph.inputs, outputs)


def _bounded(prepared: OpenclGraph) -> _Counted:
    """Give the values that operators read the largest lengths that inferences can count; see `bound_lengths`."""
    largest: dict[Output, tuple[int, ...]] = {}
    for node in prepared.graph.nodes_of([("", "NonMaxSuppression")]):
        if node.op_type == "NonMaxSuppression" and has_inner_readers(node.output(0)):
            spec = prepared.decisions[node].spec
            assert isinstance(spec, NonMaxSuppressionSpec)
            largest[node.output(0)] = largest_selection(spec)
    return bound_lengths(prepared.graph, largest) if largest else {}


def _lowered(
    prepared: OpenclGraph, facts: DeviceFacts, tuner: OpenclTuner | None, counted: _Counted
) -> LaunchPlanBuilder:
    graph, decisions = prepared.graph, prepared.decisions
    builder = LaunchPlanBuilder(facts, decisions, tuner.choices if tuner is not None else None, counted)
    for parameter in graph.parameters:
        if parameter.output(0).target_inputs:
            builder.output(parameter.output(0))
    for node in graph.ordered_nodes():
        if isinstance(node, (Parameter, Constant, Result)):
            continue
        builder.begin(node)
        decisions[node].lowering.lower(decisions[node].spec, builder)
    return builder
