"""Resize: its output's shape, which ONNX gets wrong where the number of sizes is unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.ir import Constant, Dimension, Node, PartialShape, TensorType, ValueType, as_dimension
from engine.ops.registry import attribute, get_op, infers
from engine.ops.rules import check_inputs, fail, normalize_axis, tensor_type


@infers("Resize")
def _infer_resize(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Resize"))
    data = tensor_type(node, 0)
    is_given = [index for index in (2, 3) if _is_given(node, index)]
    if len(is_given) != 1:
        fail(node, f"exactly one of scales and sizes must be given, got {'both' if is_given else 'none'}")
    if data.shape.rank.is_dynamic:
        return (data,)
    rank = len(data.shape)
    axes = [normalize_axis(node, axis, rank, "axes") for axis in attribute(node, "axes") or range(rank)]
    dims: list[Any] = list(data.shape.dims)
    source = node.input_value(is_given[0])
    values = source.node.data.reshape(-1).tolist() if isinstance(source.node, Constant) else [None] * len(axes)
    if len(values) != len(axes):
        name = "scales" if is_given == [2] else "sizes"
        fail(node, f"{len(values)} {name} do not fit {len(axes)} axes of input 0")
    if is_given == [2]:
        for axis, scale in zip(axes, values, strict=True):
            dims[axis] = None if scale is None else _scaled(dims[axis], scale)
    else:
        _set_sizes(node, dims, axes, values)
    return (TensorType(data.element_type, PartialShape(dims)),)


def _is_given(node: Node, index: int) -> bool:
    """False where the input is omitted, or is the empty tensor that older models give instead."""
    if not node.has_input(index):
        return False
    shape = tensor_type(node, index).shape
    return not (shape.is_static and shape.size() == 0)


def _scaled(dim: Dimension, scale: float) -> Dimension:
    if scale == 1:
        return dim
    low, high = math.floor(dim.min * scale), None if dim.max is None else math.floor(dim.max * scale)
    if high is None:
        return Dimension.at_least(low)
    return as_dimension(low) if low == high else Dimension(low, high)


def _set_sizes(node: Node, dims: list[Any], axes: Sequence[int], sizes: Sequence[int | None]) -> None:
    policy = attribute(node, "keep_aspect_ratio_policy")
    if policy == "stretch":
        for axis, size in zip(axes, sizes, strict=True):
            dims[axis] = size
        return
    if policy not in ("not_larger", "not_smaller"):
        fail(node, f"keep_aspect_ratio_policy {policy!r} must be stretch, not_larger or not_smaller")
    lengths = [dims[axis].min if dims[axis].is_static else None for axis in axes]
    ratios = [size / n for size, n in zip(sizes, lengths, strict=True) if size is not None and n]
    if len(ratios) != len(axes):
        for axis in axes:
            dims[axis] = None
        return
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    for axis in axes:
        dims[axis] = math.floor(dims[axis].min * ratio + 0.5)
