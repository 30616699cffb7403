"""Pooling: MaxPool, AveragePool, LpPool, their global forms, MaxUnpool, MaxRoiPool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, Node, PartialShape, TensorType, ValueType, i64
from engine.ops.axes import declare_axes
from engine.ops.cost import CALL, lengths_of, more_time, size_of
from engine.ops.precision import widened
from engine.ops.registry import INTERNAL_DOMAIN, evaluates, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, evaluates_with_spec, refuse, specifies
from engine.ops.suspect_values import Suspicion, suspects
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.ops.windows import WindowGeometry, WindowSpec, counts, infer_spatial, offsets, padded
from engine.startup import dataclass

declare("AveragePool", "LpPool", sums=True, inflates=True)
declare("GlobalAveragePool", "GlobalLpPool", sums=True, keeps_zero=True)
declare("GlobalMaxPool", keeps_zero=True)
declare("MaxPool", "MaxRoiPool", inflates=True)
declare("MaxUnpool", addresses=1, inflates=True)
declare_axes("AveragePool", "LpPool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", axes="N C ... -> N C ...'")
declare_axes("MaxPool", axes="N C ... -> N C ...', N' C' ...'")  # indices count through the whole tensor
declare_axes("MaxRoiPool", axes="N C H W, rois 5 -> rois C *")


@specifies("AveragePool", "LpPool", "MaxPool")
@specifies("QuantizedAveragePool", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec(WindowSpec):
    """A pooling of [N, C, ...] over windows. Attributes that an operator does not have are at their defaults.

    Attributes:
        ceil_mode: whether a window that extends beyond the end counts.
        count_include_pad: for AveragePool, whether padding counts as elements.
        storage_order: for MaxPool, whether indices count along columns (1) rather than rows.
        p: for LpPool, the exponent of the norm.
    """

    kernel_shape: tuple[int, ...]
    ceil_mode: bool
    count_include_pad: bool
    storage_order: int
    p: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        cls.resolve_window(node, given)
        if given["kernel_shape"] is None:
            refuse(node, "kernel_shape", [], "a value for each spatial axis")
        given["count_include_pad"] = bool(given.get("count_include_pad", 0))
        if given.setdefault("storage_order", 0) not in (0, 1):
            refuse(node, "storage_order", given["storage_order"], "0 or 1")
        if given.setdefault("p", 2) < 1:
            refuse(node, "p", given["p"], "1 or more")

    def at(self, x: Sequence[int]) -> WindowGeometry:
        """The geometry over an input of shape `x`."""
        return self.window(self.kernel_shape, ceil_mode=self.ceil_mode).at(x[2:])


@specifies("GlobalLpPool")
@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalLpPoolSpec(OperatorSpec):
    """The p-norm of each map of [N, C, ...], over all spatial positions; `p` is 1 or more."""

    p: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["p"] < 1:
            refuse(node, "p", given["p"], "1 or more")


@specifies("MaxUnpool")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxUnpoolSpec(WindowSpec):
    """Writes elements back to the positions where a MaxPool found them.

    Their indices are positions in the result, as in the data of the MaxPool: also if input 2, `output_shape`, gives it
    another shape than attributes do. So ONNX's text, PyTorch and onnxruntime have it, but not a node test of ONNX.
    """

    kernel_shape: tuple[int, ...]

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        cls.resolve_window(node, given)
        if given["kernel_shape"] is None:
            refuse(node, "kernel_shape", [], "a value for each spatial axis")

    def unpooled_shape(self, x: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result for an input of shape `x`, unless `output_shape` is given."""
        window = self.window(self.kernel_shape)
        assert window.pads is not None
        spatial = [
            (n - 1) * stride - sum(pads) + k
            for n, k, stride, pads in zip(x[2:], window.kernel, window.strides, window.pads, strict=True)
        ]
        return (*x[:2], *spatial)


@specifies("MaxRoiPool")
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRoiPoolSpec(OperatorSpec):
    """The largest value of each cell of each region.

    Attributes:
        pooled_shape: the number of cells along the height and the width of a region.
        spatial_scale: the factor from coordinates of regions to positions in the map.
    """

    pooled_shape: tuple[int, int]
    spatial_scale: float

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["pooled_shape"] = tuple(given["pooled_shape"])
        if len(given["pooled_shape"]) != 2 or min(given["pooled_shape"]) < 1:
            refuse(node, "pooled_shape", list(given["pooled_shape"]), "2 values, 1 or more")
        if not math.isfinite(given["spatial_scale"]):
            refuse(node, "spatial_scale", given["spatial_scale"], "a finite number")


@infers("AveragePool", "LpPool", "MaxPool")
def _infer_pool(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type))
    spec, data = PoolSpec.of(node), tensor_type(node, 0)
    shape = PartialShape.dynamic(len(spec.kernel_shape) + 2)
    if data.shape.rank.is_static:
        window = spec.window(spec.kernel_shape, ceil_mode=spec.ceil_mode)
        spatial = infer_spatial(node, window, data.shape.dims[2:])
        if any(dim.max == 0 for dim in spatial):
            fail(node, f"a window of {list(spec.kernel_shape)} does not fit an input of shape {data.shape}")
        shape = PartialShape([*data.shape.dims[:2], *spatial])
    outputs = [TensorType(data.element_type, shape), TensorType(i64, shape)]
    return outputs[: node.num_outputs]


@evaluates_with_spec("MaxPool")
def max_pool(spec: PoolSpec, x: Array) -> Any:
    """The largest value of each window (ONNX MaxPool-22) and, if requested, its index in the flattened input."""
    g = spec.at(x.shape)
    full = padded(x, g, _lowest(x.dtype))
    best: Array | None = None
    places: Array | None = None
    flat = None
    if spec.node.num_outputs > 1:
        flat = padded(_flat_indices(x.shape, spec.storage_order), g, -1)
    for _, slices in offsets(g, g.outputs):
        values = full[slices]
        if best is None:
            best = values.copy()
            places = None if flat is None else np.broadcast_to(flat[slices], values.shape).copy()
            continue
        if flat is not None:
            assert places is not None
            # Padding is never the maximum, not even against the lowest value, so that every index is in the input.
            better = (values > best) | ((places < 0) & (flat[slices] >= 0)) | ((values != values) & (best == best))
            np.copyto(places, flat[slices], where=better)
        np.maximum(best, values, out=best)
    return best if places is None else (best, places)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _flat_indices(shape: tuple[int, ...], storage_order: int) -> Array:
    """The index of each element in the flattened tensor; with `storage_order` 1, planes are column-major."""
    spatial = shape[2:]
    plane = np.arange(math.prod(spatial)).reshape(spatial, order="F" if storage_order else "C")
    if storage_order and len(spatial) > 2:
        raise ModelError("storage_order 1 is defined for two spatial dimensions only")
    planes = np.arange(shape[0] * shape[1]).reshape(shape[:2])
    return plane + (planes * plane.size).reshape(*shape[:2], *(1,) * len(spatial))


@evaluates_with_spec("AveragePool")
def average_pool(spec: PoolSpec, x: Array) -> Array:
    """The mean of each window (ONNX AveragePool-22); positions beyond the padding never count."""
    g = spec.at(x.shape)
    total = _sum_windows(x, g)
    mean: Array = total / counts(g, includes_padding=spec.count_include_pad).astype(total.dtype)
    return mean.astype(x.dtype)


@evaluates_with_spec("LpPool")
def lp_pool(spec: PoolSpec, x: Array) -> Array:
    """The p-norm of each window (ONNX LpPool-22)."""
    total = _sum_windows(np.abs(widened(x)) ** spec.p, spec.at(x.shape))
    norm: Array = total ** (1.0 / spec.p)
    return norm.astype(x.dtype)


def _sum_windows(x: Array, g: WindowGeometry) -> Array:
    full = padded(widened(x), g, 0)
    total = np.zeros((*x.shape[:2], *g.outputs), dtype=full.dtype)
    for _, slices in offsets(g, g.outputs):
        total += full[slices]
    return total


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


@evaluates_with_spec("GlobalLpPool")
def global_lp_pool(spec: GlobalLpPoolSpec, x: Array) -> Array:
    """The p-norm over all spatial positions (ONNX GlobalLpPool-22)."""
    axes = tuple(range(2, x.ndim))
    norm: Array = (np.abs(widened(x)) ** spec.p).sum(axis=axes, keepdims=True) ** (1.0 / spec.p)
    return norm.astype(x.dtype)


@infers("MaxUnpool")
def _infer_max_unpool(node: Node) -> Sequence[ValueType] | None:
    """ONNX does not infer the shape if `output_shape` is given, even as a constant."""
    if not node.has_input(2):
        return None
    check_inputs(node, get_op("MaxUnpool"))
    data = tensor_type(node, 0)
    source = node.input_value(2)
    if isinstance(source.node, Constant):
        return (TensorType(data.element_type, PartialShape(source.node.data.tolist())),)
    rank = len(data.shape) if data.shape.rank.is_static else None
    return (TensorType(data.element_type, PartialShape.dynamic(rank)),)


@evaluates_with_spec("MaxUnpool")
def max_unpool(spec: MaxUnpoolSpec, x: Array, indices: Array, output_shape: Array | None = None) -> Array:
    """The elements of `x` at `indices` among zeros (ONNX MaxUnpool-22); of several with one index the last."""
    shape = spec.unpooled_shape(x.shape) if output_shape is None else output_shape.tolist()
    result = np.zeros(math.prod(shape), x.dtype)
    result[indices.reshape(-1)] = x.reshape(-1)
    return result.reshape(shape)


@evaluates_with_spec("MaxRoiPool")
def max_roi_pool(spec: MaxRoiPoolSpec, x: Array, rois: Array) -> Array:
    """The largest value of each cell of each region (ONNX MaxRoiPool-22); `rois` is [num_rois, 5].

    A region with a coordinate that is not finite is NaN.
    """
    height, width = x.shape[2:]
    out = np.zeros((len(rois), x.shape[1], *spec.pooled_shape), dtype=x.dtype)
    for index, roi in enumerate(rois):
        if not 0 <= roi[0] < len(x):
            raise ModelError(f"batch index {roi[0]} of region {index} is out of range for {len(x)} samples")
        if not np.isfinite(roi[1:]).all():
            out[index] = np.nan
            continue
        left, top, right, bottom = (math.floor(float(v) * spec.spatial_scale + 0.5) for v in roi[1:])
        rows = _cells(top, bottom, spec.pooled_shape[0], height)
        columns = _cells(left, right, spec.pooled_shape[1], width)
        for i, (y0, y1) in enumerate(rows):
            for j, (x0, x1) in enumerate(columns):
                if y1 > y0 and x1 > x0:
                    out[index, :, i, j] = x[int(roi[0]), :, y0:y1, x0:x1].max(axis=(1, 2))
    return out


def _cells(start: int, end: int, count: int, limit: int) -> list[tuple[int, int]]:
    """The intervals into which a region's side is divided, limited to the input."""
    size = max(end - start + 1, 1) / count
    edges = [(start + math.floor(i * size), start + math.ceil((i + 1) * size)) for i in range(count)]
    return [(min(max(low, 0), limit), min(max(high, 0), limit)) for low, high in edges]


# -- cost -------------------------------------------------------------------------------------------------


@more_time("AveragePool", "LpPool", "MaxPool")
def _time(node: Node) -> float:
    """A pass over the results for each position of the window."""
    passes = 8 if node.num_outputs > 1 else 2
    return float(math.prod(node.attributes["kernel_shape"])) * (CALL + passes * size_of(node.output(0)))


@more_time("MaxRoiPool")
def _time_of_regions(node: Node) -> float:
    regions, maps = sum(lengths_of(node.input_value(1))[:1]), lengths_of(node.input_value(0))
    return regions * math.prod(maps[1:]) + CALL * size_of(node.output(0))


@suspects("GlobalAveragePool")
def _suspicion_of_empty_maps(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        return inputs[0].size == 0 and all(inputs[0].shape[:2])

    return is_suspect
