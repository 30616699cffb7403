"""Operators that select elements by their values: TopK, Unique, Compress, NonMaxSuppression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, Node, Output, ValueType
from engine.ops.axes import Axes, along, declare_axes, maps_axes
from engine.ops.axis_lengths import AxisLengths
from engine.ops.cost import lengths_of, more_time, number_of
from engine.ops.interruption import current_check
from engine.ops.registry import attribute, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, evaluates_with_spec, rank_of, refuse, resolved_axis, specifies
from engine.ops.suspect_values import Suspicion, is_outside, suspects
from engine.ops.tensors import Array
from engine.ops.traits import Moves, declare
from engine.startup import dataclass

declare("Compress", addresses=1, moves=Moves.SELECTION, keeps_zero=True, vectorized=True)
declare("NonZero", vectorized=True)
declare_axes("NonMaxSuppression", axes="batch boxes 4, batch classes boxes -> selected 3")


@specifies("TopK")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopKSpec(OperatorSpec):
    """The largest or smallest elements along an axis and their positions; input 1 is their number."""

    axis: int
    largest: bool
    sorted: bool

    @property
    def data(self) -> Output:
        """Input 0, the tensor whose largest or smallest elements are sought."""
        return self.node.input_value(0)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))

    def at(self, shape: Sequence[int]) -> AxisLengths:
        """The lengths around the axis of data of `shape`."""
        return AxisLengths.of(shape, self.axis)


@infers("TopK")
def _infer_top_k(node: Node) -> Sequence[ValueType] | None:
    """Before ONNX's inference, whose message does not have the numbers."""
    check_inputs(node, get_op("TopK"))
    count, shape = node.input_value(1).node, tensor_type(node, 0).shape
    if isinstance(count, Constant) and count.data.size == 1 and shape.rank.is_static:
        length, most = shape[TopKSpec.of(node).axis].max, int(count.data.reshape(-1)[0])
        if length is not None and most > length:
            fail(node, f"K is {most}; expected {length} or less, the length of the axis")
    return None


@specifies("Unique")
@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSpec(OperatorSpec):
    """The unique slices along an axis, or the unique elements, sorted by value or by first occurrence."""

    axis: int | None
    sorted: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["axis"] is not None:
            given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))


@specifies("Compress")
@dataclass(frozen=True, slots=True, kw_only=True)
class CompressSpec(OperatorSpec):
    """The slices along an axis, or the elements if `axis` is None, for which input 1 is true."""

    axis: int | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["axis"] is not None:
            given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))


@specifies("NonMaxSuppression")
@dataclass(frozen=True, slots=True, kw_only=True)
class NonMaxSuppressionSpec(OperatorSpec):
    """Boxes of high scores with little overlap, given by corners or, with `center_point_box`, centre and size."""

    center_point_box: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["center_point_box"] not in (0, 1):
            refuse(node, "center_point_box", given["center_point_box"], "0 or 1")


@evaluates_with_spec("Unique")
def unique(spec: UniqueSpec, x: Array) -> tuple[Array, Array, Array, Array]:
    """The unique values or slices with their first indices, the inverse and their counts (ONNX Unique-11)."""
    data = x.astype(str) if x.dtype == object else x
    values, first, inverse, count = np.unique(
        data, return_index=True, return_inverse=True, return_counts=True, axis=spec.axis
    )
    order = np.arange(first.size) if spec.sorted else np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    values = np.take(values, order, axis=spec.axis or 0).astype(x.dtype)
    return values, first[order], rank[inverse.reshape(-1)], count[order]


@evaluates_with_spec("NonMaxSuppression")
def non_max_suppression(
    spec: NonMaxSuppressionSpec,
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
) -> Array:
    """[selected, 3] of batch, class and box, best scores first (ONNX NonMaxSuppression-11).

    boxes: [batches, boxes, 4]; scores: [batches, classes, boxes]; limits have one element, of any rank. Of equal
    scores, the box that comes first is preferred, as in onnxruntime.
    """
    count = int(_limit(max_output_boxes_per_class, 0))
    overlap, least = check_overlap(iou_threshold), np.float32(_limit(score_threshold, -np.inf))
    low, high = _corners(boxes, spec.center_point_box)
    found = [
        (batch, each, box)
        for batch, of_classes in enumerate(scores)
        for each, of_boxes in enumerate(of_classes)
        for box in _kept_boxes(low[batch], high[batch], of_boxes, count, overlap, least)
    ]
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def check_overlap(iou_threshold: Array | None) -> np.float32:
    """The threshold of a NonMaxSuppression. Raises `ModelError` unless it is one number of 0..1."""
    overlap = np.float32(_limit(iou_threshold, 0.0))
    if not 0 <= overlap <= 1:
        raise ModelError(f"iou_threshold is {overlap}; expected 0..1")
    return overlap


def _limit(value: Array | None, default: float) -> float:
    if value is None:
        return default
    if value.size != 1:
        raise ModelError(f"a limit has shape {list(value.shape)}; expected one element")
    return float(value.reshape(-1)[0])


def _corners(boxes: Array, is_centered: bool) -> tuple[Array, Array]:
    """The corners of smallest and of largest coordinates, each [batches, boxes, 2]."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_centered:
        half = second / np.float32(2)
        first, second = first - half, first + half
    return np.minimum(first, second), np.maximum(first, second)


def _kept_boxes(low: Array, high: Array, scores: Array, count: int, overlap: Any, least: Any) -> list[int]:
    areas = np.prod(high - low, axis=-1)
    waiting = np.argsort(-scores, kind="stable")
    waiting = waiting[scores[waiting] > least]
    kept: list[int] = []
    check = current_check()
    while waiting.size and len(kept) < count:
        if check is not None:
            check()
        best, waiting = waiting[0], waiting[1:]
        kept.append(int(best))
        sides = np.minimum(high[best], high[waiting]) - np.maximum(low[best], low[waiting])
        common = np.prod(np.maximum(sides, 0), axis=-1)
        together = areas[best] + areas[waiting] - common
        # Boxes without an area overlap with none.
        is_real = (areas[best] > 0) & (areas[waiting] > 0) & (together > 0)
        waiting = waiting[~(is_real & (common / together > overlap))]
    return kept


@more_time("NonMaxSuppression")
def _time(node: Node) -> float:
    """Each box that is kept is compared with those that are left."""
    scores, most = lengths_of(node.input_value(1)), number_of(node, 2)
    boxes = sum(scores[-1:])
    return 100.0 * math.prod(scores) * (boxes if most is None else min(max(most, 0), boxes))


@maps_axes("TopK")
def _searched_axes(node: Node) -> Axes:
    return along(node, [TopKSpec.of(node).axis])


@maps_axes("Compress")
def _compressed_axes(node: Node) -> Axes:
    axis = CompressSpec.of(node).axis
    return None if axis is None else along(node, [axis])


@suspects("TopK")
def _suspicion_of_count(node: Node) -> Suspicion:
    axis = attribute(node, "axis")

    def is_suspect(inputs: Sequence[Any]) -> bool:
        shape = inputs[0].shape
        return -len(shape) <= axis < len(shape) and is_outside(inputs[1], 0, shape[axis])

    return is_suspect
