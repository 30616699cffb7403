"""Operators whose values depend only on shapes and constants: computed on the host when the plan is built.

Most are folded earlier; the remaining ones are too large for constants of the graph.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.lowering import Refusal, check_constant
from engine.ops.creation import ConstantOfShapeSpec, EyeLikeSpec, RangeSpec, ShapeSpec
from engine.ops.spec import OperatorSpec, SpecT
from engine_opencl.elements import STORED, stored_type
from engine_opencl.lowering.registry import MovingLowering, check_types, lowers
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.lowering.tables import table
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import strides_of


class CreationLowering(MovingLowering[SpecT]):
    """Base of operators whose result is known when the plan is built: it is copied from a constant."""

    def check(self, spec: SpecT) -> Refusal | None:
        return check_types((spec.output(),), STORED)

    @abstractmethod
    def value(self, spec: SpecT, b: LaunchPlanBuilder) -> NDArray[Any]:
        """The result, in any type that can hold it."""

    def lower(self, spec: SpecT, b: LaunchPlanBuilder) -> None:
        y = spec.output()
        shape = b.shape(y)
        b.create(y)
        data = np.ascontiguousarray(self.value(spec, b), stored_type(y)).reshape(shape)
        steps = strides_of(shape)
        strided_copy(b, y, table(b, data), b.output(y), shape, steps, 0, steps, 0)


@lowers("Shape", spec=ShapeSpec)
class ShapeLowering(CreationLowering[ShapeSpec]):
    """Stores lengths of the input, which are known when the plan is made."""

    def value(self, spec: ShapeSpec, b: LaunchPlanBuilder) -> NDArray[Any]:
        return np.array(spec.at(b.shape(spec.node.input_value(0))))


@lowers("Size")
class SizeLowering(CreationLowering[OperatorSpec]):
    """The number of elements of the input, whose shape is known."""

    def value(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> NDArray[Any]:
        return np.array(spec.node.input_value(0).shape.size())


@lowers("EyeLike", spec=EyeLikeSpec)
class EyeLikeLowering(CreationLowering[EyeLikeSpec]):
    """Ones on diagonal `k` of a matrix of the input's shape, zeros elsewhere."""

    def value(self, spec: EyeLikeSpec, b: LaunchPlanBuilder) -> NDArray[Any]:
        return spec.at(b.shape(spec.output()))


@lowers("ConstantOfShape", spec=ConstantOfShapeSpec)
class ConstantOfShapeLowering(CreationLowering[ConstantOfShapeSpec]):
    """A tensor filled with the attribute `value`; its shape must be constant."""

    values = (0,)

    def check(self, spec: ConstantOfShapeSpec) -> Refusal | None:
        return super().check(spec) or check_constant(spec.node, *self.values)

    def value(self, spec: ConstantOfShapeSpec, b: LaunchPlanBuilder) -> NDArray[Any]:
        return spec.at(b.shape(spec.output()))


@lowers("Range")
class RangeLowering(CreationLowering[RangeSpec]):
    """A vector of evenly spaced numbers; its three inputs must be constant."""

    def check(self, spec: RangeSpec) -> Refusal | None:
        return super().check(spec) or check_constant(spec.node, 0, 1, 2)

    def value(self, spec: RangeSpec, b: LaunchPlanBuilder) -> NDArray[Any]:
        start, _, step = (b.constant(spec.node.input_value(index)) for index in range(3))
        assert start is not None
        assert step is not None
        return spec.at(start, step, b.shape(spec.output())[0])
