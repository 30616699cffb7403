"""Gather, Scatter, OneHot and Trilu. An index out of range fails the inference with the node's name."""

from __future__ import annotations

import math
from typing import Final, TypeVar

import numpy as np

from engine.ir import Output
from engine.ir.element_type import f32, f64, i32, i64
from engine.lowering import Refusal, check_types, first_refusal
from engine.native import Attribute
from engine.ops.gather import (
    GatherNDSpec,
    GatherSpec,
    IndexedSpec,
    OneHotSpec,
    ScatterElementsSpec,
    ScatterNDSpec,
    ScatterSpec,
    TensorScatterSpec,
    TriluSpec,
)
from engine_cpu.layout import item_size
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import MAX_DIMS, Copy, Strided, check_movable, copy_step
from engine_cpu.segment import SegmentBuilder

INDICES: Final = frozenset({i32, i64})
_NUMBERS: Final = frozenset({f32, f64, i32, i64})


@lowers("Gather", spec=GatherSpec)
class GatherLowering(OpLowering[GatherSpec]):
    """Slices by index; evenly spaced constant indices, also along each axis only, become a view or a strided copy."""

    def check(self, spec: GatherSpec) -> Refusal | None:
        return _check_indexed(spec)

    def lower(self, spec: GatherSpec, b: SegmentBuilder) -> None:
        data, indices, y = spec.data, spec.indices, spec.output()
        shape, size = b.shape(data), item_size(data.element_type)
        outer, length, inner = spec.at(shape)
        is_copied = len(shape) + len(b.shape(indices)) <= MAX_DIMS
        if is_copied and (known := _known_grid(b, indices, length)) is not None:
            elements = Strided.row_major(shape).grid(spec.axis, *known)
            if elements.is_contiguous:
                b.view(y, data, elements.offset * size)
                return
            copy = Copy(b.input(data), elements, b.output(y), Strided.row_major(elements.shape))
            copy_step(b, spec.node, size, [copy])
            return
        b.step(
            spec.node,
            "gather",
            [b.input(data), b.input(indices)],
            [b.output(y)],
            element_bytes=size,
            index_bytes=item_size(indices.element_type),
            outer=outer,
            axis=length,
            inner=inner,
            count=math.prod(b.shape(indices)),
        )


def _check_indexed(spec: IndexedSpec) -> Refusal | None:
    return first_refusal(check_movable(spec.data, max_dims=MAX_DIMS), check_types([spec.indices], INDICES))


def _known_grid(b: SegmentBuilder, indices: Output, size: int) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """Start, sizes and steps of constant indices in range that grow evenly along each axis; None for others.

    Sliding windows, as of an unfolded convolution, are `start + i * stride + j * dilation`.
    """
    if not b.is_constant(indices):
        return None
    values = np.asarray(b.value(indices), np.int64)
    if not values.size or values.min() < -size or values.max() >= size:
        return None
    values = np.where(values < 0, values + size, values)
    flat = values.reshape(-1)
    for grid in (flat, values):
        start = int(flat[0])
        steps = tuple(int(grid.take(1, axis).flat[0]) - start if n > 1 else 1 for axis, n in enumerate(grid.shape))
        expected = np.full(grid.shape, start)
        for axis, (n, step) in enumerate(zip(grid.shape, steps, strict=True)):
            expected += (np.arange(n) * step).reshape(-1, *[1] * (grid.ndim - axis - 1))
        if np.array_equal(grid, expected):
            return start, grid.shape, steps
    return None


@lowers("GatherElements", spec=GatherSpec)
class GatherElementsLowering(OpLowering[GatherSpec]):
    """Single elements by index along one axis."""

    def check(self, spec: GatherSpec) -> Refusal | None:
        return _check_indexed(spec)

    def lower(self, spec: GatherSpec, b: SegmentBuilder) -> None:
        b.step(
            spec.node,
            "gather_elements",
            [b.input(spec.data), b.input(spec.indices)],
            [b.output(spec.output())],
            element_bytes=item_size(spec.data.element_type),
            index_bytes=item_size(spec.indices.element_type),
            data_shape=list(b.shape(spec.data)),
            shape=list(b.shape(spec.indices)),
            axis=spec.axis,
        )


@lowers("GatherND", spec=GatherNDSpec)
class GatherNdLowering(OpLowering[GatherNDSpec]):
    """Copies slices whose positions are the tuples in the last axis of the indices."""

    def check(self, spec: GatherNDSpec) -> Refusal | None:
        return _check_indexed(spec)

    def lower(self, spec: GatherNDSpec, b: SegmentBuilder) -> None:
        shape = b.shape(spec.indices)
        b.step(
            spec.node,
            "gather_nd",
            [b.input(spec.data), b.input(spec.indices)],
            [b.output(spec.output())],
            element_bytes=item_size(spec.data.element_type),
            index_bytes=item_size(spec.indices.element_type),
            data_shape=list(b.shape(spec.data)),
            batch_dims=spec.batch_dims,
            count=math.prod(shape[spec.batch_dims : -1]),
            depth=shape[-1],
        )


ScatterSpecT = TypeVar("ScatterSpecT", bound=ScatterSpec)


class _ScatterLowering(OpLowering[ScatterSpecT]):
    """Base of ScatterElements and ScatterND."""

    def check(self, spec: ScatterSpecT) -> Refusal | None:
        if refused := _check_indexed(spec):
            return refused
        return check_types([spec.data], _NUMBERS) if spec.reduction != "none" else None

    def _step(self, spec: ScatterSpecT, b: SegmentBuilder, kernel: str, **attributes: int | list[int]) -> None:
        data, indices = spec.data, spec.indices
        element: dict[str, Attribute] = {"type": data.element_type.name}
        if spec.reduction == "none":
            element = {"element_bytes": item_size(data.element_type)}
        inputs = [b.input(data), b.input(indices), b.input(spec.updates)]
        b.step(
            spec.node,
            kernel,
            inputs,
            [b.output(spec.output(), in_place_of=data)],
            op=spec.reduction,
            **element,
            index_bytes=item_size(indices.element_type),
            data_shape=list(b.shape(data)),
            **attributes,
        )


@lowers("ScatterElements", spec=ScatterElementsSpec)
class ScatterElementsLowering(_ScatterLowering[ScatterElementsSpec]):
    """Single updates by index along one axis."""

    def lower(self, spec: ScatterElementsSpec, b: SegmentBuilder) -> None:
        self._step(spec, b, "scatter_elements", shape=list(b.shape(spec.indices)), axis=spec.axis)


@lowers("ScatterND", spec=ScatterNDSpec)
class ScatterNdLowering(_ScatterLowering[ScatterNDSpec]):
    """Updates of slices by tuples of indices."""

    def lower(self, spec: ScatterNDSpec, b: SegmentBuilder) -> None:
        shape = b.shape(spec.indices)
        self._step(spec, b, "scatter_nd", count=math.prod(shape[:-1]), depth=shape[-1])


@lowers("OneHot", spec=OneHotSpec)
class OneHotLowering(OpLowering[OneHotSpec]):
    """On- and off-values by integer indices."""

    values = (1,)

    def check(self, spec: OneHotSpec) -> Refusal | None:
        return first_refusal(
            check_types([spec.indices], INDICES),
            check_movable(spec.values, spec.output()),
            check_values(spec.node, self.values),
        )

    def lower(self, spec: OneHotSpec, b: SegmentBuilder) -> None:
        y = spec.output()
        outer, depth, inner = spec.at(b.shape(y))
        b.step(
            spec.node,
            "one_hot",
            [b.input(spec.indices), b.input(spec.values)],
            [b.output(y)],
            element_bytes=item_size(spec.values.element_type),
            index_bytes=item_size(spec.indices.element_type),
            outer=outer,
            depth=depth,
            inner=inner,
        )


@lowers("Trilu", spec=TriluSpec)
class TriluLowering(OpLowering[TriluSpec]):
    """The upper or lower triangle of matrices."""

    values = (1,)

    def check(self, spec: TriluSpec) -> Refusal | None:
        return first_refusal(check_movable(spec.node.input_value(0)), check_values(spec.node, self.values))

    def lower(self, spec: TriluSpec, b: SegmentBuilder) -> None:
        x, diagonal = spec.node.input_value(0), spec.input(1)
        shape = b.shape(x)
        b.step(
            spec.node,
            "trilu",
            [b.input(x)],
            [b.output(spec.output())],
            element_bytes=item_size(x.element_type),
            matrices=math.prod(shape[:-2]),
            rows=shape[-2],
            columns=shape[-1],
            diagonal=spec.at(None if diagonal is None else b.value(diagonal)),
            upper=int(spec.upper),
        )


@lowers("TensorScatter", spec=TensorScatterSpec)
class TensorScatterLowering(OpLowering[TensorScatterSpec]):
    """Writes steps into a cache, at a position for each sample; in the memory of a variable, behind its past only."""

    def check(self, spec: TensorScatterSpec) -> Refusal | None:
        return check_movable(spec.past, spec.update) or check_types((spec.write_indices,), {i64})

    def lower(self, spec: TensorScatterSpec, b: SegmentBuilder) -> None:
        past, update, starts, y = spec.past, spec.update, spec.write_indices, spec.output()
        shape, size = b.shape(past), item_size(past.element_type)
        _, rows, inner = spec.at(shape)
        batch, parts, steps = shape[0], math.prod(shape[1 : spec.axis]), b.shape(update)[spec.axis]
        row = inner * size
        attributes: dict[str, Attribute] = {
            "batch": batch, "parts": parts, "rows": rows, "steps": steps, "row_bytes": row,
            "cache": (parts * rows * row, rows * row, row), "update": (parts * steps * row, steps * row, row),
            "positions": int(starts is not None), "circular": int(spec.mode == "circular"),
        }  # fmt: skip
        inputs = [b.input(update), *([] if starts is None else [b.input(starts)])]
        if (state := b.state(y)) is not None:
            strides = [state.format.element_bytes * stride for stride in state.strides]
            attributes["cache"] = (strides[0], strides[1] if spec.axis == 2 else 0, strides[spec.axis])
            attributes |= {"expected": state.past_length, "format": state.format.name}
            buffer = b.append(state)
            b.step(spec.node, "tensor_scatter", [buffer, *inputs], [buffer], **attributes)
            return
        cache = b.input(past)
        b.step(spec.node, "tensor_scatter", [cache, *inputs], [b.output(y, in_place_of=past)], **attributes)
