"""Gather, Scatter and OneHot. An index out of range fails the inference with the node's name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from engine.ir import Node, Output
from engine.ir.element_type import f32, f64, i32, i64
from engine.lowering import Refusal, RefusalCause, check_constant, check_types, first_refusal
from engine.native import Attribute
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import item_size
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, check_movable, copy_step

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

INDICES: Final = frozenset({i32, i64})
_REDUCTIONS: Final = ("none", "add", "mul", "min", "max")
_NUMBERS: Final = (f32, f64, i32, i64)


@lowers("Gather")
class GatherLowering(OpLowering[OperatorSpec]):
    """Rows by index; known indices that are evenly apart are a view or a copy with strides."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        data, indices = node.input_value(0), node.input_value(1)
        return first_refusal(check_movable(node, data), check_types([indices], INDICES))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        data, indices, y = node.input_value(0), node.input_value(1), node.output(0)
        shape = b.shape(data)
        axis, size = int(attribute(node, "axis")) % len(shape), item_size(data.element_type)
        if (known := _known_run(b, indices, shape[axis])) is not None:
            elements = Strided.row_major(shape).slice(axis, *known)
            if elements.is_contiguous:
                b.view(y, data, elements.offset * size)
                return
            copy = Copy(b.input(data), elements, b.output(y), Strided.row_major(elements.shape))
            copy_step(b, node, size, [copy])
            return
        b.step(
            node,
            "gather",
            [b.input(data), b.input(indices)],
            [b.output(y)],
            element_bytes=size,
            index_bytes=item_size(indices.element_type),
            outer=math.prod(shape[:axis]),
            axis=shape[axis],
            inner=math.prod(shape[axis + 1 :]),
            count=math.prod(b.shape(indices)),
        )


def _known_run(b: SegmentBuilder, indices: Output, size: int) -> tuple[int, int, int] | None:
    """Start, count and step of constant indices that are evenly apart and in range; None of others."""
    if not b.is_constant(indices):
        return None
    values = b.value(indices).reshape(-1).astype(np.int64)
    if not values.size or values.min() < -size or values.max() >= size:
        return None
    values = np.where(values < 0, values + size, values)
    steps = np.diff(values)
    if steps.size and (steps != steps[0]).any():
        return None
    return int(values[0]), int(values.size), int(steps[0]) if steps.size else 1


@lowers("GatherElements")
class GatherElementsLowering(OpLowering[OperatorSpec]):
    """Single elements by index along one axis."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(check_movable(node, node.input_value(0)), check_types([node.input_value(1)], INDICES))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        data, indices = node.input_value(0), node.input_value(1)
        shape = b.shape(data)
        b.step(
            node,
            "gather_elements",
            [b.input(data), b.input(indices)],
            [b.output(node.output(0))],
            element_bytes=item_size(data.element_type),
            index_bytes=item_size(indices.element_type),
            data_shape=list(shape),
            shape=list(b.shape(indices)),
            axis=int(attribute(node, "axis")) % len(shape),
        )


@lowers("GatherND")
class GatherNdLowering(OpLowering[OperatorSpec]):
    """Slices by tuples of indices."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return first_refusal(check_movable(node, node.input_value(0)), check_types([node.input_value(1)], INDICES))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        data, indices = node.input_value(0), node.input_value(1)
        batch_dims, shape = int(attribute(node, "batch_dims")), b.shape(indices)
        b.step(
            node,
            "gather_nd",
            [b.input(data), b.input(indices)],
            [b.output(node.output(0))],
            element_bytes=item_size(data.element_type),
            index_bytes=item_size(indices.element_type),
            data_shape=list(b.shape(data)),
            batch_dims=batch_dims,
            count=math.prod(shape[batch_dims:-1]),
            depth=shape[-1],
        )


class _ScatterLowering(OpLowering[OperatorSpec]):
    """What ScatterElements and ScatterND have in common."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        data, indices = node.input_value(0), node.input_value(1)
        if refused := first_refusal(check_movable(node, data), check_types([indices], INDICES)):
            return refused
        reduction = attribute(node, "reduction")
        if reduction not in _REDUCTIONS:
            return Refusal(
                RefusalCause.ATTRIBUTE, f"reduction is {reduction!r}; expected one of {', '.join(_REDUCTIONS)}"
            )
        return check_types([data], _NUMBERS) if reduction != "none" else None

    def _step(self, node: Node, b: SegmentBuilder, kernel: str, **attributes: int | list[int]) -> None:
        data, indices, updates = (node.input_value(index) for index in range(3))
        reduction = attribute(node, "reduction")
        element: dict[str, Attribute] = {"type": data.element_type.name}
        if reduction == "none":
            element = {"element_bytes": item_size(data.element_type)}
        inputs = [b.input(data), b.input(indices), b.input(updates)]
        b.step(
            node,
            kernel,
            inputs,
            [b.output(node.output(0), in_place_of=data)],
            op=reduction,
            **element,
            index_bytes=item_size(indices.element_type),
            data_shape=list(b.shape(data)),
            **attributes,
        )


@lowers("ScatterElements")
class ScatterElementsLowering(_ScatterLowering):
    """Single updates by index along one axis."""

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        axis = int(attribute(node, "axis")) % len(b.shape(node.input_value(0)))
        shape = list(b.shape(node.input_value(1)))
        self._step(node, b, "scatter_elements", shape=shape, axis=axis)


@lowers("ScatterND")
class ScatterNdLowering(_ScatterLowering):
    """Updates of slices by tuples of indices."""

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        shape = b.shape(node.input_value(1))
        self._step(node, b, "scatter_nd", count=math.prod(shape[:-1]), depth=shape[-1])


@lowers("OneHot")
class OneHotLowering(OpLowering[OperatorSpec]):
    """On and off values by integer indices; the depth is known."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        indices, _, values = (node.input_value(index) for index in range(3))
        return first_refusal(
            check_types([indices], INDICES), check_movable(node, values, node.output(0)), check_constant(node, 1)
        )

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        indices, values, y = node.input_value(0), node.input_value(2), node.output(0)
        shape = b.shape(y)
        axis = int(attribute(node, "axis")) % len(shape)
        b.step(
            node,
            "one_hot",
            [b.input(indices), b.input(values)],
            [b.output(y)],
            element_bytes=item_size(values.element_type),
            index_bytes=item_size(indices.element_type),
            outer=math.prod(shape[:axis]),
            depth=shape[axis],
            inner=math.prod(shape[axis + 1 :]),
        )
