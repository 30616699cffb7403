"""NonMaxSuppression: a result of as many rows as an inference finds."""

from __future__ import annotations

from typing import Any, Final

from numpy.typing import NDArray

from engine.errors import ModelError
from engine.ir import Constant, Output, PartialShape
from engine.ir.element_type import f32, i64
from engine.lowering import Refusal, RefusalCause, check_constant, first_refusal
from engine.ops.select import NonMaxSuppressionSpec, check_overlap
from engine_opencl.counted_axes import counted_axes, has_inner_readers
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import power_within
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, kernel_text

_BOXES, _SCORES, _LIMIT, _OVERLAP, _MIN_SCORE = range(5)
_GROUP: Final = 256
_WIDE_ON_CPU: Final = 8
"""Boxes that an item compares with another at once, where items have vectors."""
_BLOCK: Final = 64
"""Boxes whose overlaps among themselves are the bits of an integer."""


def _check_readers(value: Output) -> Refusal | None:
    """A refusal of a value with a counted length that an operator reads which does not keep rows apart."""
    found = counted_axes(value)
    return found if isinstance(found, Refusal) else None


@lowers("NonMaxSuppression", spec=NonMaxSuppressionSpec)
class NonMaxSuppressionLowering(OpLowering[NonMaxSuppressionSpec]):
    """For known limits; the limit of the number of boxes bounds the result."""

    values = (_LIMIT, _OVERLAP, _MIN_SCORE)

    def check(self, spec: NonMaxSuppressionSpec) -> Refusal | None:
        return first_refusal(
            check_types([spec.input(index) for index in (_BOXES, _SCORES, _OVERLAP, _MIN_SCORE)], {f32}),
            check_types([spec.input(_LIMIT)], {i64}),
            *(_check_single(spec.input(index)) for index in self.values),
            check_constant(spec.node, *self.values),
            _check_readers(spec.output()),
        )

    def lower(self, spec: NonMaxSuppressionSpec, b: LaunchPlanBuilder) -> None:
        (batches, boxes, _), (_, classes, _) = (b.shape(spec.node.input_value(index)) for index in (_BOXES, _SCORES))
        limit, overlap, least = b.values(spec, *self.values)
        try:
            most = float(check_overlap(overlap))
        except ModelError as e:
            raise ModelError(f"{spec.node.op_type} `{spec.node.friendly_name}`: {e}") from e
        tasks, count = batches * classes, _most_boxes(limit, boxes)
        selected, total = b.counted_output(spec.output(), (tasks * count, 3))
        if not tasks * count:
            b.launch(kernel_source("zero"), "zero", [total], (2,))
            return
        corners, areas = b.temporary(16 * batches * boxes), b.temporary(4 * batches * boxes)
        is_cpu = b.facts.kind == "cpu"
        group = 1 if is_cpu else min(_GROUP, power_within(b.facts.max_work_group))
        # Padding is read together with the last selected boxes, and ignored.
        wide = _WIDE_ON_CPU if is_cpu else 1
        room, shares = -(-count // wide) * wide, max(group // _BLOCK, 1)
        # Several items sort from one place to another.
        places = boxes if group == 1 else 2 * boxes
        waiting, sides, chosen, counts = (b.temporary(tasks * each) for each in (8 * places, 16 * room, 4 * count, 4))
        source = kernel_text("rounded") + kernel_source(
            "non_max_suppression",
            CENTERED=int(spec.center_point_box), BOXES=boxes, CLASSES=classes, TASKS=tasks, LIMIT=count, GROUP=group,
            PER_ITEM=-(-boxes // group), BLOCK=_BLOCK, SHARES=shares, WIDE=wide, ROOM=f"{room}ul", WAITING=places,
        )  # fmt: skip
        given, scores = (b.input(spec.node.input_value(index)) for index in (_BOXES, _SCORES))
        lowest = float("-inf") if least is None else float(least.item())
        b.launch(source, "find_corners", [given, corners, areas], (batches * boxes,))
        arguments: list[Given] = [corners, areas, scores, waiting, sides, chosen, counts, most, lowest]
        local = 4 * group + _BLOCK * (16 + 4 + 4 + 8 + shares) + 8
        b.launch(source, "select_boxes", arguments, (tasks * group,), (group,), local)
        b.launch(source, "list_boxes", [chosen, counts, selected, total], (tasks,))
        if has_inner_readers(spec.output()):
            b.launch(source, "repeat_first", [total, selected], (tasks * count,))


def largest_selection(spec: NonMaxSuppressionSpec) -> tuple[int, int]:
    """The largest shape of the result, once all lengths and the limit of boxes are known."""
    (batches, boxes, _), (_, classes, _) = (spec.node.input_value(i).shape.get_shape() for i in (_BOXES, _SCORES))
    limit = spec.input(_LIMIT)
    given = limit.node.data if limit is not None and isinstance(limit.node, Constant) else None
    return batches * classes * _most_boxes(given, boxes), 3


def _most_boxes(limit: NDArray[Any] | None, boxes: int) -> int:
    return 0 if limit is None else max(0, min(int(limit.item()), boxes))


def _check_single(value: Output | None) -> Refusal | None:
    if value is None or value.shape.compatible(PartialShape([1] * len(value.shape))):
        return None
    return Refusal(RefusalCause.SHAPE, f"{value.name} is {value.type}; expected one element")
