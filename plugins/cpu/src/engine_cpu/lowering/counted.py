"""Selections of as many elements as there are: NonZero, Compress, Unique, NonMaxSuppression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from engine.ir import Constant, Output, PartialShape
from engine.ir.element_type import bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal
from engine.lowering.checks import is_omitted
from engine.native import Attribute
from engine.ops.axis_lengths import AxisLengths
from engine.ops.select import CompressSpec, NonMaxSuppressionSpec, UniqueSpec, check_overlap
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import item_size, static_shape
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.counting import CountedLowering, CountedStep
from engine_cpu.lowering.registry import lowers

_TYPES: Final = frozenset({f32, f64, f16, bf16, i8, u8, i16, u16, i32, u32, i64, u64, boolean})
_MAX_RANK: Final = 16


@lowers("NonZero")
class NonZeroLowering(CountedLowering[OperatorSpec]):
    """The places of elements that are not zero; a NaN is not."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        if refused := check_types([x], _TYPES):
            return refused
        if len(x.shape) > _MAX_RANK:
            return Refusal(RefusalCause.RANK, f"input 0 is {x.type}; expected rank {_MAX_RANK} or less")
        return None

    def counted(self, spec: OperatorSpec) -> CountedStep:
        x = spec.node.input_value(0)
        shape = static_shape(x)
        attributes: dict[str, Attribute] = {"type": x.element_type.name, "dims": shape}
        return CountedStep("nonzero", attributes, [0], [(len(shape), math.prod(shape))], [1])


@lowers("Compress", spec=CompressSpec)
class CompressLowering(CountedLowering[CompressSpec]):
    """The slices or elements for which a condition holds."""

    def check(self, spec: CompressSpec) -> Refusal | None:
        return first_refusal(
            check_types([spec.node.input_value(0)], _TYPES), check_types([spec.node.input_value(1)], {boolean})
        )

    def counted(self, spec: CompressSpec) -> CountedStep:
        x, condition = spec.node.input_value(0), spec.node.input_value(1)
        shape, axis = static_shape(x), spec.axis or 0
        if spec.axis is None:
            shape = (math.prod(shape),)
        lengths, (conditions,) = AxisLengths.of(shape, axis), static_shape(condition)
        attributes = {
            "outer": lengths.outer, "axis": lengths.length, "inner": lengths.inner * item_size(x.element_type),
            "conditions": conditions,
        }  # fmt: skip
        most = min(lengths.length, conditions)
        return CountedStep("compress", attributes, [0, 1], [(*shape[:axis], most, *shape[axis + 1 :])], [axis])


@lowers("Unique", spec=UniqueSpec)
class UniqueLowering(CountedLowering[UniqueSpec]):
    """The different elements or slices of numbers."""

    def check(self, spec: UniqueSpec) -> Refusal | None:
        return check_types([spec.node.input_value(0)], _TYPES)

    def counted(self, spec: UniqueSpec) -> CountedStep:
        node, axis = spec.node, spec.axis or 0
        x = node.input_value(0)
        shape = static_shape(x)
        if spec.axis is None:
            shape = (math.prod(shape),)
        lengths = AxisLengths.of(shape, axis)
        lists = ("first", "inverse", "counts")
        outputs = zip(lists, node.outputs[1:], strict=False)
        given = [name for name, output in outputs if not is_omitted(output)]
        attributes: dict[str, Attribute] = {
            "type": x.element_type.name, "outer": lengths.outer, "axis": lengths.length, "inner": lengths.inner,
            "sorted": int(spec.sorted), "joins_nans": int(spec.axis is None), **dict.fromkeys(given, 1),
        }  # fmt: skip
        shapes = [shape, *((lengths.length,) for _ in given)]
        axes = [axis, *(None if name == "inverse" else 0 for name in given)]
        return CountedStep("unique", attributes, [0], shapes, axes)


@lowers("NonMaxSuppression", spec=NonMaxSuppressionSpec)
class NonMaxSuppressionLowering(CountedLowering[NonMaxSuppressionSpec]):
    """The boxes of high scores; the plan is made for the limit of their number, which bounds the result."""

    values = (2,)

    def check(self, spec: NonMaxSuppressionSpec) -> Refusal | None:
        node = spec.node
        reals = [spec.input(index) for index in (0, 1, 3, 4)]
        return first_refusal(
            check_types(reals, {f32}),
            check_types([spec.input(2)], {i64}),
            check_values(node, self.values),
            *(_check_limit(spec.input(index)) for index in (2, 3, 4)),
        )

    def counted(self, spec: NonMaxSuppressionSpec) -> CountedStep:
        node, given = spec.node, spec.input(2)
        (batches, boxes, _), (_, classes, _) = (static_shape(node.input_value(index)) for index in (0, 1))
        most = int(given.node.data.item()) if given is not None and isinstance(given.node, Constant) else 0
        limit = max(0, min(most, boxes))
        attributes = {
            "batches": batches, "classes": classes, "boxes": boxes, "limit": limit,
            "centered": int(spec.center_point_box), "overlap": int(node.has_input(3)), "least": int(node.has_input(4)),
        }  # fmt: skip
        inputs = [index for index in (0, 1, 3, 4) if node.has_input(index)]
        return CountedStep("non_max_suppression", attributes, inputs, [(batches * classes * limit, 3)], [0])

    def check_values(self, spec: NonMaxSuppressionSpec, inputs: Sequence[Any]) -> None:
        if spec.node.has_input(3):
            check_overlap(inputs[2])


def _check_limit(value: Output | None) -> Refusal | None:
    if value is not None and not value.shape.compatible(PartialShape([1] * len(value.shape))):
        return Refusal(RefusalCause.SHAPE, f"{value.name} is {value.type}; expected one element")
    return None
