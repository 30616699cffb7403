"""Operators that make tensors from few numbers: ConstantOfShape, EyeLike and Range."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import ElementType
from engine.ir.element_type import f32, f64, i16, i32, i64
from engine.lowering import Refusal, check_types, first_refusal
from engine.native import Attribute
from engine.ops.creation import ConstantOfShapeSpec, EyeLikeSpec
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import item_size
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, check_movable, copy_step
from engine_cpu.segment import SegmentBuilder

_NUMBERS: Final = frozenset({f32, f64, i16, i32, i64})


@lowers("ConstantOfShape", spec=ConstantOfShapeSpec)
class ConstantOfShapeLowering(OpLowering[ConstantOfShapeSpec]):
    """Fills a tensor with one value; its shape may be known only when the plan is bound."""

    values = (0,)

    def check(self, spec: ConstantOfShapeSpec) -> Refusal | None:
        if refused := check_values(spec.node, self.values):
            return refused
        return None if self.is_bound_late(spec) else check_movable(spec.output())

    def lower(self, spec: ConstantOfShapeSpec, b: SegmentBuilder) -> None:
        _fill(spec.output().element_type, spec.value, spec, b, b.shape(spec.output()))


@lowers("EyeLike", spec=EyeLikeSpec)
class EyeLikeLowering(OpLowering[EyeLikeSpec]):
    """Zeros, and ones on a diagonal."""

    def check(self, spec: EyeLikeSpec) -> Refusal | None:
        return check_movable(spec.output())

    def lower(self, spec: EyeLikeSpec, b: SegmentBuilder) -> None:
        y = spec.output()
        rows, columns = b.shape(y)
        zero = np.zeros(1, y.element_type.numpy)
        _fill(y.element_type, zero, spec, b, (rows, columns))
        first = max(0, -spec.k)
        count = min(rows - first, columns - max(0, spec.k))
        if count <= 0:
            return
        one = b.constant(np.ones(1, y.element_type.numpy))
        places = Strided((count,), (columns + 1,), first * columns + max(0, spec.k))
        copy_step(b, spec.node, item_size(y.element_type), [Copy(one, Strided((count,), (0,)), b.output(y), places)])


@lowers("Range")
class RangeLowering(OpLowering[OperatorSpec]):
    """Fills a vector with numbers at equal distances; all inputs are known when its plan is built."""

    values = (0, 1, 2)

    def check(self, spec: OperatorSpec) -> Refusal | None:
        given = [spec.node.input_value(index) for index in range(3)]
        return first_refusal(check_types(given, _NUMBERS), check_values(spec.node, self.values))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        y = spec.output()
        start, _, step = (b.value(spec.node.input_value(index)).reshape(()) for index in range(3))
        (count,) = b.shape(y)
        attributes: dict[str, Attribute] = {"type": y.element_type.name, "count": count}
        if y.element_type.is_real:
            attributes |= {"first": float(start), "delta": float(step)}
        else:
            attributes |= {"start": int(start), "step": int(step)}
        b.step(spec.node, "iota", [], [b.output(y)], **attributes)


def _fill(
    element_type: ElementType,
    value: np.ndarray,
    spec: ConstantOfShapeSpec | EyeLikeSpec,
    b: SegmentBuilder,
    shape: tuple[int, ...],
) -> None:
    """A step that makes every element of the output `value`."""
    count = int(np.prod(shape))
    source = b.constant(np.ascontiguousarray(value.astype(element_type.numpy).reshape(1)))
    every = Copy(source, Strided((count,), (0,)), b.output(spec.output()), Strided((count,), (1,)))
    copy_step(b, spec.node, item_size(element_type), [every])
