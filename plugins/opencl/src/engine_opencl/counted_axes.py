"""Axes whose length an inference counts, such as the number of boxes that NonMaxSuppression selects.

A plan computes such values at their largest lengths. Rows beyond the counted ones repeat the first one, so that they
are as valid as this, and the host reads the counted ones only. That is right for operators that compute each row from
the same row of their inputs alone, which `axes_of` tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from engine.ir import Dimension, Model, Node, Output, PartialShape, Result, TensorType
from engine.ir.element_type import i64
from engine.lowering import Refusal, RefusalCause
from engine.ops.axes import AxisMapping, axes_of, rank_of_value

Counted: TypeAlias = "dict[Output, int]"
"""The axis with the counted length, of each value that has one."""


def counted_axes(source: Output) -> Counted | Refusal:
    """The values that have the length of `source` along axis 0, and their axes; a refusal if a reader combines rows."""
    found: Counted = {source: 0}
    for node in _readers(source):
        refused = _follow(node, found)
        if refused is not None:
            reason = (
                f"an inference counts the length of {source.name}, and {node} {refused}; expected operators that "
                "compute each row from one row"
            )
            return Refusal(RefusalCause.DYNAMIC_SHAPE, reason)
    return found


def has_inner_readers(source: Output) -> bool:
    """Whether operators of the model read a value, rather than only its outputs."""
    return any(not isinstance(target.node, Result) for target in source.target_inputs)


def bound_lengths(graph: Model, largest: dict[Output, tuple[int, ...]]) -> dict[Output, tuple[Output, int]]:
    """Give each value of `largest` this shape, and those computed from it the resulting ones.

    Returns all values with counted lengths, with the value that has the count and the axis.
    """
    counted: dict[Output, tuple[Output, int]] = {}
    for source in largest:
        axes = counted_axes(source)
        assert not isinstance(axes, Refusal), axes
        counted.update({value: (source, axis) for value, axis in axes.items()})
    for source, shape in largest.items():
        source.node.set_output_type(source.index, TensorType(i64, PartialShape(shape)))
        source.node.settle_types()
    graph.validate()
    return counted


def _readers(source: Output) -> list[Node]:
    """All nodes that are computed from `source`, in topological order, and the results."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(target.node, False) for target in source.target_inputs]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(target.node, False) for output in node.outputs for target in output.target_inputs]
    return order[::-1]


def _follow(node: Node, found: Counted) -> str | None:
    """Add the outputs of a node that reads counted values; why that is not possible, as text, otherwise None."""
    if isinstance(node, Result):
        value = node.input_value(0)
        axis = found[value]
        return None if _lengths(value.shape.dims[:axis]) == [1] * axis else f"has its rows at axis {axis}"
    mapping = axes_of(node)
    if mapping is None:
        return "may combine rows"
    counted = [(index, found[value]) for index, value in enumerate(node.input_values) if value and value in found]
    for output in node.outputs:
        places = {mapping.output_axis(axis, index, output.index) for index, axis in counted}
        place = places.pop()
        if place is None or places:
            if output.target_inputs:
                return "may combine rows"
        elif not _others_are_single(node, mapping, place, output.index, found):
            return "also reads rows of a known number"
        else:
            found[output] = place
    return None


def _others_are_single(node: Node, mapping: AxisMapping, axis: int, output: int, found: Counted) -> bool:
    """Whether each other input has length 1 along the output's axis, or does not have it."""
    for index, value in enumerate(node.input_values):
        rank = rank_of_value(value)
        if value is None or value in found:
            continue
        if rank is None:
            return False
        for own in range(rank):
            if mapping.output_axis(own, index, output) == axis and _lengths([value.shape.dims[own]]) != [1]:
                return False
    return True


def _lengths(dims: Sequence[Dimension]) -> list[int | None]:
    return [dim.get_length() if dim.is_static else None for dim in dims]
