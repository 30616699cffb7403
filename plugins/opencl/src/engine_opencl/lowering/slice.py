"""Lowers Slice, Split, Concat and Tile to copies with strides."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Output
from engine.lowering import Refusal, check_constant, check_parts
from engine.ops.slice import AxisSlice, ConcatSpec, SliceSpec, SplitSpec, TileSpec
from engine_opencl.elements import STORED
from engine_opencl.lowering.registry import MovingLowering, check_types, lowers
from engine_opencl.lowering.strided import copy_strided, strided_copy
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import strides_of


@lowers("Slice", spec=SliceSpec)
class SliceLowering(MovingLowering[SliceSpec]):
    """Ranges along axes, forwards or backwards."""

    def check(self, spec: SliceSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED) or check_constant(spec.node, 1, 2, 3, 4)

    def lower(self, spec: SliceSpec, b: LaunchPlanBuilder) -> None:
        starts, ends, axes, steps = b.values(spec, 1, 2, 3, 4)
        assert starts is not None
        assert ends is not None
        x = spec.node.input_value(0)
        _take(b, x, spec.output(), spec.at(b.shape(x), starts, ends, axes, steps))


@lowers("Split", spec=SplitSpec)
class SplitLowering(MovingLowering[SplitSpec]):
    """Copies consecutive ranges along one axis to the outputs."""

    values = (1,)

    def check(self, spec: SplitSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED) or check_constant(spec.node, *self.values) or check_parts(spec)

    def lower(self, spec: SplitSpec, b: LaunchPlanBuilder) -> None:
        x = spec.node.input_value(0)
        for output, part in zip(spec.node.outputs, spec.at(b.shape(x), *b.values(spec, 1)), strict=True):
            _take(b, x, output, [part])


def _take(b: LaunchPlanBuilder, value: Output, result: Output, parts: Sequence[AxisSlice]) -> None:
    """Fill `result` with a part of `value`, cut along each axis at most once."""
    strides, offset = list(strides_of(b.shape(value))), 0
    for part in parts:
        offset += part.start * strides[part.axis]
        strides[part.axis] *= part.step
    copy_strided(b, value, result, strides, offset)


@lowers("Concat", spec=ConcatSpec)
class ConcatLowering(MovingLowering[ConcatSpec]):
    """Copies each input to its range of the result along the axis."""

    def check(self, spec: ConcatSpec) -> Refusal | None:
        return check_types(spec.node.input_values, STORED)

    def lower(self, spec: ConcatSpec, b: LaunchPlanBuilder) -> None:
        values = [value for value in spec.node.input_values if value is not None]
        steps, result = strides_of(b.shape(spec.output())), b.output(spec.output())
        for value, part in zip(values, spec.at([b.shape(value)[spec.axis] for value in values]), strict=True):
            shape, offset = b.shape(value), part.start * steps[spec.axis]
            strided_copy(b, value, b.input(value), result, shape, strides_of(shape), 0, steps, offset)


@lowers("Tile", spec=TileSpec)
class TileLowering(MovingLowering[TileSpec]):
    """Repeats a tensor along its axes, by strides of 0; the repeats must be constant."""

    values = (1,)

    def check(self, spec: TileSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED) or check_constant(spec.node, *self.values)

    def lower(self, spec: TileSpec, b: LaunchPlanBuilder) -> None:
        x, (repeats,) = spec.node.input_value(0), b.values(spec, 1)
        assert repeats is not None
        own = b.shape(x)
        shape = [n for pair in zip(spec.at(own, repeats), own, strict=True) for n in pair]
        strides = [s for step in strides_of(own) for s in (0, step)]
        strided_copy(b, x, b.input(x), b.output(spec.output()), shape, strides, 0, strides_of(shape), 0)
