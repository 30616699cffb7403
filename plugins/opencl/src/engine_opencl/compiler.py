"""From a transformed graph whose shapes are known to a plan."""

from __future__ import annotations

import sys

from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, Result
from engine.lowering import Refusal
from engine.passes import Manager, Pass
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.shape_simplification import ShapeSimplification
from engine.passes.runtime_info import is_operation
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering import OpenclDecisions, decisions
from engine_opencl.plan import Plan, PlanBuilder
from engine_opencl.tuning.tuner import Tuner


def build_plan(graph: Model, facts: DeviceFacts, tuner: Tuner | None = None) -> Plan:
    """The plan of a graph, with what `tuner` knows, or measures, of the kernels that there are for its sites.

    Raises `UnsupportedError` naming the first node that has no kernel, or whose shape only the data decides.
    """
    made = decisions()
    for node in graph.ordered_nodes():
        if is_operation(node) and (why := made.refusal(node)) is not None:
            raise _unsupported(node, why)
    builder = _lowered(graph, made, facts, tuner)
    # Another choice may bring other sites.
    while tuner is not None and tuner.tune(builder):
        builder = _lowered(graph, made, facts, tuner)
    outputs = [result.input_value(0) for result in graph.results]
    return builder.finish(graph.inputs, outputs)


def _lowered(graph: Model, made: OpenclDecisions, facts: DeviceFacts, tuner: Tuner | None) -> PlanBuilder:
    builder = PlanBuilder(facts, made, tuner.choices if tuner is not None else None)
    for parameter in graph.parameters:
        if parameter.output(0).target_inputs:
            builder.output(parameter.output(0))
    for node in graph.ordered_nodes():
        if isinstance(node, (Parameter, Constant, Result)):
            continue
        builder.begin(node)
        made[node].lowering.lower(made[node].spec, builder)
    return builder


def require_supported(graph: Model) -> None:
    """Raise `UnsupportedError` naming the first node that cannot run here, whatever the lengths of the inputs are."""
    for node, why in decisions().refusals(graph):
        raise _unsupported(node, why)


def _unsupported(node: Node, why: Refusal) -> UnsupportedError:
    return UnsupportedError(
        f"OPENCL cannot run {node.op_type} `{node.friendly_name}` ({why.cause}): {why.reason}; run it on another "
        "device with HETERO:OPENCL,CPU"
    )


def folded(graph: Model) -> None:
    """Compute what follows from shapes alone, once all of them are known; of any size where no kernel could."""
    while True:
        # Lengths that are known now may tell others: those of a Pad by computed lengths, say.
        while _run("KnownShapes", graph, ShapeSimplification, ConstantFolding, DeadCodeElimination):
            pass
        made = decisions()
        if all(made.refusal(node) is None for node in graph.ordered_nodes() if is_operation(node)):
            return
        if not _fold_without_kernel(graph):
            return


def _run(name: str, graph: Model, *passes: type[Pass]) -> bool:
    manager = Manager(name=name)
    for item in passes:
        manager.register_pass(item)
    return manager.run_passes(graph)


def _fold_without_kernel(graph: Model) -> bool:
    manager = Manager(name="KnownShapesWithoutKernel")
    manager.register_pass(ConstantFolding(max_output_bytes=sys.maxsize))
    manager.register_pass(DeadCodeElimination)
    manager.pass_config.set_callback(ConstantFolding, callback=lambda node: decisions().refusal(node) is None)
    return manager.run_passes(graph)
