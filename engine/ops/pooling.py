"""Pooling: MaxPool, AveragePool, LpPool, their global forms, MaxUnpool, MaxRoiPool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, Node, PartialShape, TensorType, ValueType, i64
from engine.ops.precision import widened
from engine.ops.registry import attribute, evaluates, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.tensors import Array
from engine.ops.windows import Window, counts, infer_spatial, offsets, padded, window_of


@infers("AveragePool", "LpPool", "MaxPool")
def _infer_pool(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type))
    data = tensor_type(node, 0)
    kernel = attribute(node, "kernel_shape")
    window = window_of(node, kernel)
    shape = PartialShape.dynamic(len(kernel) + 2)
    if data.shape.rank.is_static:
        if len(data.shape) != len(kernel) + 2:
            fail(node, f"X of rank {len(data.shape)} does not fit kernel_shape {list(kernel)}; expected [N, C, ...] "
                 f"of rank {len(kernel) + 2}")  # fmt: skip
        spatial = infer_spatial(node, window, PartialShape(data.shape.dims[2:]))
        shape = PartialShape([*data.shape.dims[:2], *spatial])
    outputs = [TensorType(data.element_type, shape), TensorType(i64, shape)]
    return outputs[: node.num_outputs]


@evaluates("MaxPool")
def max_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int,
    storage_order: int,
    num_outputs: int,
) -> Any:
    """The largest value of each window (ONNX MaxPool-22) and, if asked for, its index in the flattened input."""
    window = Window.make(kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    full, outs = padded(x, window, _lowest(x.dtype))
    best: Array | None = None
    places: Array | None = None
    flat = None
    if num_outputs > 1:
        flat, _ = padded(_flat_indices(x.shape, storage_order), window, -1)
    for _, slices in offsets(window, outs):
        values = full[slices]
        if best is None:
            best = values.copy()
            places = None if flat is None else np.broadcast_to(flat[slices], values.shape).copy()
            continue
        if flat is not None:
            assert places is not None
            # Padding never wins, not even over the lowest value, so that every index is one of the input.
            better = (values > best) | ((places < 0) & (flat[slices] >= 0))
            np.copyto(places, flat[slices], where=better)
        np.maximum(best, values, out=best)
    return best if places is None else (best, places)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _flat_indices(shape: tuple[int, ...], storage_order: int) -> Array:
    """The index of each element in the flattened tensor; with `storage_order` 1 columns run fastest in a plane."""
    spatial = shape[2:]
    plane = np.arange(math.prod(spatial)).reshape(spatial, order="F" if storage_order else "C")
    if storage_order and len(spatial) > 2:
        raise ModelError("storage_order 1 is defined for two spatial dimensions only")
    planes = np.arange(shape[0] * shape[1]).reshape(shape[:2])
    return plane + (planes * plane.size).reshape(*shape[:2], *(1,) * len(spatial))


@evaluates("AveragePool")
def average_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int,
    count_include_pad: int,
) -> Array:
    """The mean of each window (ONNX AveragePool-22): what lies beyond the padding never counts."""
    window = Window.make(kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total, outs = _sum_windows(x, window)
    mean: Array = total / counts(window, x.shape[2:], outs, bool(count_include_pad)).astype(total.dtype)
    return mean.astype(x.dtype)


@evaluates("LpPool")
def lp_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int,
    p: int,
) -> Array:
    """The p-norm of each window (ONNX LpPool-22)."""
    window = Window.make(kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    total, _ = _sum_windows(np.abs(widened(x)) ** p, window)
    norm: Array = total ** (1.0 / p)
    return norm.astype(x.dtype)


def _sum_windows(x: Array, window: Window) -> tuple[Array, tuple[int, ...]]:
    full, outs = padded(widened(x), window, 0)
    total = np.zeros((*x.shape[:2], *outs), dtype=full.dtype)
    for _, slices in offsets(window, outs):
        total += full[slices]
    return total, outs


@evaluates("GlobalAveragePool")
def global_average_pool(x: Array) -> Array:
    """The mean over all spatial positions (ONNX GlobalAveragePool-22)."""
    mean: Array = widened(x).mean(axis=tuple(range(2, x.ndim)), keepdims=True)
    return mean.astype(x.dtype)


@evaluates("GlobalMaxPool")
def global_max_pool(x: Array) -> Array:
    """The largest value of all spatial positions (ONNX GlobalMaxPool-22)."""
    largest: Array = x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    return largest


@evaluates("GlobalLpPool")
def global_lp_pool(x: Array, *, p: int) -> Array:
    """The p-norm over all spatial positions (ONNX GlobalLpPool-22)."""
    axes = tuple(range(2, x.ndim))
    norm: Array = (np.abs(widened(x)) ** p).sum(axis=axes, keepdims=True) ** (1.0 / p)
    return norm.astype(x.dtype)


@infers("MaxUnpool")
def _infer_max_unpool(node: Node) -> Sequence[ValueType] | None:
    """ONNX leaves the shape open where `output_shape` is given, even as a constant."""
    if not node.has_input(2):
        return None
    check_inputs(node, get_op("MaxUnpool"))
    data = tensor_type(node, 0)
    source = node.input_value(2)
    if isinstance(source.node, Constant):
        return (TensorType(data.element_type, PartialShape(source.node.data.tolist())),)
    rank = len(data.shape) if data.shape.rank.is_static else None
    return (TensorType(data.element_type, PartialShape.dynamic(rank)),)


@evaluates("MaxRoiPool")
def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float) -> Array:
    """The largest value of each cell of each region (ONNX MaxRoiPool-22); `rois` is [num_rois, 5]."""
    height, width = x.shape[2:]
    out = np.zeros((len(rois), x.shape[1], *pooled_shape), dtype=x.dtype)
    for index, roi in enumerate(rois):
        left, top, right, bottom = (math.floor(float(v) * spatial_scale + 0.5) for v in roi[1:])
        rows = _cells(top, bottom, pooled_shape[0], height)
        columns = _cells(left, right, pooled_shape[1], width)
        for i, (y0, y1) in enumerate(rows):
            for j, (x0, x1) in enumerate(columns):
                if y1 > y0 and x1 > x0:
                    out[index, :, i, j] = x[int(roi[0]), :, y0:y1, x0:x1].max(axis=(1, 2))
    return out


def _cells(start: int, end: int, count: int, limit: int) -> list[tuple[int, int]]:
    """The intervals into which a region's side is divided, cut to the input."""
    size = max(end - start + 1, 1) / count
    edges = [(start + math.floor(i * size), start + math.ceil((i + 1) * size)) for i in range(count)]
    return [(min(max(low, 0), limit), min(max(high, 0), limit)) for low, high in edges]
