"""Operators that change only the shape, and Expand."""

from __future__ import annotations

from typing import ClassVar

from engine.lowering import Refusal, check_constant, check_inference_dropout
from engine.ops.reshape import DropoutSpec
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import STORED
from engine_opencl.lowering.registry import MovingLowering, check_types, lowers
from engine_opencl.lowering.strided import copy_strided
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import strides_of


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze")
class ViewLowering(MovingLowering[OperatorSpec]):
    """The same bytes with another shape, which the values of input 1 decide: what a file declares may be wrong."""

    values: ClassVar[tuple[int, ...]] = (1,)

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED) or check_constant(spec.node, *self.values)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        b.alias(spec.output(), spec.node.input_value(0))


@lowers("Identity")
class IdentityLowering(ViewLowering):
    """The result is a view of the input; no kernel runs."""

    values = ()


@lowers("Dropout", spec=DropoutSpec)
class DropoutLowering(IdentityLowering):
    """The result is a view of the input, since nothing is dropped in inference; training is refused."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_inference_dropout(spec) or super().check(spec)


@lowers("Expand")
class ExpandLowering(MovingLowering[OperatorSpec]):
    """Broadcasting, to a shape that the values of input 1 decide."""

    values = (1,)

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED) or check_constant(spec.node, *self.values)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        shape, target = b.shape(x), b.shape(y)
        own = [0 if n == 1 else s for n, s in zip(shape, strides_of(shape), strict=True)]
        copy_strided(b, x, y, [0] * (len(target) - len(shape)) + own)
