"""A graph for known input shapes: bound, with types inferred again, and folded to a fixed point."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError, ModelError
from engine.ir import Model, Node, PartialShape, TensorType
from engine.lowering.binding import bind
from engine.lowering.checks import SHAPE_SOURCES, is_omitted
from engine.lowering.decisions import Decisions
from engine.lowering.table import LoweringT, LoweringTable
from engine.passes import Manager, Pass
from engine.passes.common.branch_elimination import BranchElimination, taken_branch
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.dead_code_elimination import DeadCodeElimination
from engine.passes.common.shape_simplification import ShapeSimplification
from engine.passes.folding import is_foldable
from engine.passes.runtime_info import is_operation

Shapes: TypeAlias = "tuple[tuple[int, ...] | None, ...]"
"""The shape of each input; None for an input that is not a tensor."""


def shapes_of(values: Iterable[object]) -> Shapes:
    """The shapes of the values that are given to a model."""
    return tuple(getattr(value, "shape", None) for value in values)


def is_static(model: Model) -> bool:
    """Whether the shapes of all inputs are known; inputs that are not tensors do not count."""
    types = [parameter.type for parameter in model.parameters]
    return all(not isinstance(each, TensorType) or each.shape.is_static for each in types)


def known_shapes(model: Model) -> Shapes:
    """The input shapes of a static model."""
    types = [parameter.type for parameter in model.parameters]
    return tuple(each.shape.get_shape() if isinstance(each, TensorType) else None for each in types)


def specialize(model: Model, shapes: Shapes, values: Mapping[int, NDArray[np.generic]] | None = None) -> Model:
    """A copy of `model` for inputs of known shapes, with all types inferred again; a shape of None leaves an input
    unchanged. `values` are the values of bound inputs, by number.

    Raises `InputError` if the model cannot take inputs of these shapes, or with these values.
    """
    copy = model.clone()
    for parameter, shape in zip(copy.parameters, shapes, strict=True):
        if shape is not None and isinstance(parameter.type, TensorType):
            parameter.type = TensorType(parameter.type.element_type, PartialShape(shape))
    bind(copy, values or {})
    try:
        _infer_all(copy)
    except ModelError as e:
        raise unfit_inputs(model, shapes, e) from e
    return copy


def unfit_inputs(model: Model, shapes: Shapes, why: Exception) -> InputError:
    """The error for inputs whose lengths contradict each other, or the model."""
    listed = ", ".join(f"{p.friendly_name} {list(s or ())}" for p, s in zip(model.parameters, shapes, strict=True))
    return InputError(f"model `{model.name}` cannot take inputs {listed}: {why}")


def fold(graph: Model, table: LoweringTable[LoweringT]) -> Decisions[LoweringT]:
    """Fold, in place, all values that follow from constants and known shapes; return the decisions for the rest.

    Folding may make other lengths known, such as a Pad's by computed amounts, so this is repeated until nothing
    changes. An operation with a kernel stays if its result would be large; one without is folded within the budget of
    the compilation.
    """
    decisions = Decisions(table)
    while not _is_settled(graph, decisions):
        if not (_simplify(graph) or _fold_without_kernel(graph, decisions)):
            break
        decisions = Decisions(table)
    return decisions


def _is_settled(graph: Model, decisions: Decisions[LoweringT]) -> bool:
    """Whether nothing is left to fold, and every operation has a kernel and known lengths."""
    operations = list(filter(is_operation, graph.ordered_nodes()))
    for node in operations:
        if (node.op_type in SHAPE_SOURCES and not node.domain) or is_foldable(node) or taken_branch(node) is not None:
            return False
    # Decisions take the most time, and do not outlive a change of the graph.
    if any(decisions.refusal(node) is not None for node in operations):
        return False
    return all(is_omitted(value) or value.shape.is_static for node in operations for value in node.outputs)


def _simplify(graph: Model) -> bool:
    changed = _run(ShapeSimplification(), graph)
    changed |= _run(ConstantFolding(), graph)
    changed |= _run(BranchElimination(), graph)
    return _run(DeadCodeElimination(), graph) or changed


def _fold_without_kernel(graph: Model, decisions: Decisions[LoweringT]) -> bool:
    folding = ConstantFolding(max_output_bytes=sys.maxsize)
    changed = _run(folding, graph, keep=lambda node: decisions.refusal(node) is None)
    return _run(DeadCodeElimination(), graph) or changed


def _run(step: Pass, graph: Model, keep: Callable[[Node], bool] | None = None) -> bool:
    """Run a pass, except on the nodes in `keep`, and infer types again if it changed something."""
    manager = Manager(name="KnownShapes", validate=False)
    manager.register_pass(step)
    if keep is not None:
        manager.pass_config.set_callback(type(step), callback=keep)
    changed = manager.run_passes(graph)
    if changed:
        _infer_all(graph)
    return changed


def _infer_all(graph: Model) -> None:
    """Infer types; a node with bodies keeps its types if inference fails, as in a branch that is never taken."""
    for node in graph.ordered_nodes():
        try:
            node.infer_types()
        except ModelError:
            if not node.bodies:
                raise
