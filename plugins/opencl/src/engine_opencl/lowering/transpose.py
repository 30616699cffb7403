"""Operators that permute elements: Transpose, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from engine.lowering import Refusal
from engine.ops.transpose import DepthToSpaceSpec, TransposeSpec
from engine_opencl.elements import STORED
from engine_opencl.lowering.registry import MovingLowering, check_types, lowers
from engine_opencl.lowering.strided import copy_strided, strided_copy
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import strides_of


@lowers("Transpose", spec=TransposeSpec)
class TransposeLowering(MovingLowering[TransposeSpec]):
    """Copies the elements in another order of the axes."""

    def check(self, spec: TransposeSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED)

    def lower(self, spec: TransposeSpec, b: LaunchPlanBuilder) -> None:
        x = spec.node.input_value(0)
        steps = strides_of(b.shape(x))
        copy_strided(b, x, spec.output(), [steps[axis] for axis in spec.order(len(steps))])


@lowers("DepthToSpace", "SpaceToDepth", spec=DepthToSpaceSpec)
class DepthToSpaceLowering(MovingLowering[DepthToSpaceSpec]):
    """Blocks of channels become blocks of pixels, or the other way around."""

    def check(self, spec: DepthToSpaceSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED)

    def lower(self, spec: DepthToSpaceSpec, b: LaunchPlanBuilder) -> None:
        x = spec.node.input_value(0)
        blocks = spec.at(b.shape(x))
        steps = strides_of(blocks.split)
        shape, read = [blocks.split[axis] for axis in blocks.order], [steps[axis] for axis in blocks.order]
        strided_copy(b, x, b.input(x), b.output(spec.output()), shape, read, 0, strides_of(shape), 0)
