"""Compiles a prepared static graph to a plan."""

from __future__ import annotations

from typing import Final

from engine.ir import Constant, Parameter, Result
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering import OpenclGraph
from engine_opencl.plan import LaunchPlan
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.tuning.tuner import OpenclTuner

ADVICE: Final = "run it on another device with HETERO:OPENCL,CPU"
"""The advice in the error for an operation without a kernel."""


def build_plan(prepared: OpenclGraph, facts: DeviceFacts, tuner: OpenclTuner | None = None) -> LaunchPlan:
    """The plan of a graph, with the kernels that `tuner` knows or measures to be fastest.

    Raises `UnsupportedError` naming the first node without a kernel.
    """
    prepared.require_kernels("OPENCL", ADVICE)
    builder = _lowered(prepared, facts, tuner)
    # Another choice may lead to other sites.
    while tuner is not None and tuner.tune(builder):
        builder = _lowered(prepared, facts, tuner)
    outputs = [result.input_value(0) for result in prepared.graph.results]
    return builder.finish(prepared.graph.inputs, outputs)


def _lowered(prepared: OpenclGraph, facts: DeviceFacts, tuner: OpenclTuner | None) -> LaunchPlanBuilder:
    graph, decisions = prepared.graph, prepared.decisions
    builder = LaunchPlanBuilder(facts, decisions, tuner.choices if tuner is not None else None)
    for parameter in graph.parameters:
        if parameter.output(0).target_inputs:
            builder.output(parameter.output(0))
    for node in graph.ordered_nodes():
        if isinstance(node, (Parameter, Constant, Result)):
            continue
        builder.begin(node)
        decisions[node].lowering.lower(decisions[node].spec, builder)
    return builder
