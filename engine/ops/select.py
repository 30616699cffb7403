"""Operators that select elements by their values: TopK, Unique, Compress, NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.ir import Node, Output
from engine.ops.axis_lengths import AxisLengths
from engine.ops.spec import OperatorSpec, evaluates_with_spec, rank_of, refuse, resolved_axis, specifies
from engine.ops.tensors import Array


@specifies("TopK")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopKSpec(OperatorSpec):
    """The largest or smallest elements along an axis and their positions; input 1 is their number."""

    axis: int
    largest: bool
    sorted: bool

    @property
    def data(self) -> Output:
        """The searched tensor."""
        return self.node.input_value(0)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))
        given["largest"], given["sorted"] = bool(given["largest"]), bool(given["sorted"])

    def at(self, shape: Sequence[int]) -> AxisLengths:
        """The lengths around the axis of data of `shape`."""
        return AxisLengths.of(shape, self.axis)


@specifies("Unique")
@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueSpec(OperatorSpec):
    """The unique slices along an axis, or the unique elements, sorted by value or by first occurrence."""

    axis: int | None
    sorted: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        if given["axis"] is not None:
            given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))
        given["sorted"] = bool(given["sorted"])


@specifies("Compress")
@dataclass(frozen=True, slots=True, kw_only=True)
class CompressSpec(OperatorSpec):
    """The slices along an axis, or the elements if `axis` is None, for which input 1 is true."""

    axis: int | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        if given["axis"] is not None:
            given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))


@specifies("NonMaxSuppression")
@dataclass(frozen=True, slots=True, kw_only=True)
class NonMaxSuppressionSpec(OperatorSpec):
    """Boxes of high scores with little overlap, given by centre and size with `center_point_box`, else by corners."""

    center_point_box: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        if given["center_point_box"] not in (0, 1):
            refuse(node, "center_point_box", given["center_point_box"], "0 or 1")
        given["center_point_box"] = bool(given["center_point_box"])


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
    limit: Array | None = None,
    overlap: Array | None = None,
    threshold: Array | None = None,
) -> Array:
    """Rows of batch, class and box (ONNX NonMaxSuppression-11); `onnx.reference` refuses limits that are scalars.

    boxes: [N, B, 4], scores: [N, C, B]; of equal scores, the first box wins. Computed in the type of the boxes.
    """
    most = 0 if limit is None else int(limit.reshape(-1)[0])
    allowed = boxes.dtype.type(0 if overlap is None else overlap.reshape(-1)[0])
    corners = _corners(boxes, spec.center_point_box)
    rows: list[tuple[int, int, int]] = []
    for batch, of_class in np.ndindex(*scores.shape[:2]):
        score = scores[batch, of_class]
        order = np.argsort(-score, kind="stable")
        if threshold is not None:
            order = order[score[order] > threshold.reshape(-1)[0]]
        count = 0
        while order.size and count < most:
            best, order = order[0], order[1:]
            rows.append((batch, of_class, int(best)))
            count += 1
            order = order[~_overlaps(corners[batch, best], corners[batch, order], allowed)]
    return np.array(rows, np.int64).reshape(-1, 3)


def _corners(boxes: Array, is_centered: bool) -> Array:
    """The lower corners, then the upper ones, in [..., 4]."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_centered:
        return np.concatenate([first - second / 2, first + second / 2], -1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlaps(box: Array, others: Array, allowed: Any) -> Array:
    """Whether intersection over union with `box` exceeds what is allowed, for each of the others."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.where((sides > 0).all(-1), sides.prod(-1), 0)
    own, areas = (box[2:] - box[:2]).prod(), (others[:, 2:] - others[:, :2]).prod(-1)
    union = own + areas - common
    is_valid = (common > 0) & (own > 0) & (areas > 0) & (union > 0)
    found: Array = is_valid & (common / np.where(union > 0, union, 1) > allowed)
    return found
