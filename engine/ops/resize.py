"""Resize (ONNX Resize-19): its spec, with the interpolation weights of each axis, its type rule and evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from engine.errors import ModelError, OperatorSpecError
from engine.ir import (
    Constant,
    Dimension,
    ElementType,
    Node,
    PartialShape,
    TensorType,
    ValueType,
    as_dimension,
    boolean,
    string,
)
from engine.ops.axes import declare_axes
from engine.ops.cost import CALL, lengths_of, more_time
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, check_choice, evaluates_with_spec, rank_of, refuse, resolved_axes, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_RADIUS: Final = {"linear": 1, "cubic": 2}
"""The distance from a coordinate within which elements count."""
_NEAREST: Final[dict[str, Callable[[Array], Array]]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_COORDINATES: Final = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResizeTaps:
    """The input elements and weights of each result element along one axis. Read-only and shared.

    Attributes:
        indices: [size, taps] int32, ascending along the taps; -1 in the rows of elements outside the region of
            interest, which have the extrapolation value.
        weights: [size, taps] float64.
    """

    indices: Array
    weights: Array

    @property
    def is_outside(self) -> Array:
        """[size] bool: which elements have the extrapolation value."""
        result: Array = self.indices[:, 0] < 0
        return result


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """A resized axis.

    Attributes:
        axis: its number, counted from the front.
        length: its length in the input.
        size: its length in the result.
        scale: its growth factor.
        region: the start and end of the region that is read, as fractions of the input; (0, 1) unless cropped.
    """

    axis: int
    length: int
    size: int
    scale: float
    region: tuple[float, float]
    rule: _Rule

    @property
    def taps(self) -> ResizeTaps:
        """The input elements and weights of each result element. Raises `ModelError` if the axis is empty."""
        return _taps(self.rule, self.length, self.size, self.scale, self.region)


@dataclass(frozen=True, slots=True)
class ResizeLengths:
    """The lengths of a Resize for one input shape.

    Attributes:
        shape: the shape of the result.
        axes: the axes that change, ascending. They are resized one after the other.
    """

    shape: tuple[int, ...]
    axes: tuple[ResizedAxis, ...]


declare("Resize", inflates=True)
declare_axes("Resize", axes="... -> ...'")


@specifies("Resize")
@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeSpec(OperatorSpec):
    """Resize. `axes` is None if all axes are resized and the rank is unknown."""

    axes: tuple[int, ...] | None
    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    antialias: bool
    cubic_coeff_a: float
    exclude_outside: bool
    extrapolation_value: float
    keep_aspect_ratio_policy: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        rank = rank_of(node, 0)
        if given["axes"]:
            given["axes"] = resolved_axes(node, given["axes"], rank)
        else:
            given["axes"] = None if rank is None else tuple(range(rank))
        check_choice(node, "mode", given["mode"], ("nearest", *_RADIUS))
        coordinates = "coordinate_transformation_mode"
        check_choice(node, coordinates, given[coordinates], _COORDINATES)
        if given["mode"] == "nearest":  # exporters write arbitrary values in other modes
            check_choice(node, "nearest_mode", given["nearest_mode"], _NEAREST)
        policy = "keep_aspect_ratio_policy"
        check_choice(node, policy, given[policy], ("stretch", "not_larger", "not_smaller"))
        if not math.isfinite(given["cubic_coeff_a"]):
            refuse(node, "cubic_coeff_a", given["cubic_coeff_a"], "a finite number")

    def at(
        self, shape: Sequence[int], roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
    ) -> ResizeLengths:
        """The lengths for an input of `shape`; omitted and empty inputs are None.

        Raises `OperatorSpecError` if the values do not fit the axes, or a scale is not positive.
        """
        axes = resolved_axes(self.node, range(len(shape)) if self.axes is None else self.axes, len(shape))
        lengths = [shape[axis] for axis in axes]
        targets, factors = self._targets(lengths, _numbers(scales), _numbers(sizes))
        region = [0.0] * len(axes) + [1.0] * len(axes)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            region = _numbers(roi) or region
            self._check_count("values of roi", len(region), 2 * len(axes))
            if not np.isfinite(region).all():
                raise OperatorSpecError(f"{self.node}: roi is {region}; allowed: finite numbers")
        result, changed, rule = list(shape), [], self._rule
        for i, axis in enumerate(axes):
            result[axis] = targets[i]
            ends = (region[i], region[len(axes) + i])
            if lengths[i] != targets[i] or not math.isclose(factors[i], 1.0) or ends != (0.0, 1.0):
                changed.append(ResizedAxis(axis, lengths[i], targets[i], factors[i], ends, rule))
        return ResizeLengths(tuple(result), tuple(sorted(changed, key=lambda each: each.axis)))

    def _targets(
        self, lengths: Sequence[int], scales: list[float] | None, sizes: list[float] | None
    ) -> tuple[list[int], list[float]]:
        """The lengths of the result along the axes, and the scales."""
        if scales:
            self._check_count("scales", len(scales), len(lengths))
            if not all(0 < scale < math.inf for scale in scales):
                raise OperatorSpecError(f"{self.node}: scales are {scales}; allowed: finite numbers greater than 0")
            return [math.floor(n * scale) for n, scale in zip(lengths, scales, strict=True)], scales
        if sizes is None:
            raise ModelError(f"{self.node}: neither scales nor sizes are given")
        self._check_count("sizes", len(sizes), len(lengths))
        if min(sizes, default=0) < 0:
            raise OperatorSpecError(f"{self.node}: sizes are {sizes}; allowed: 0 or more")
        factors = [size / n if n else 1.0 for size, n in zip(sizes, lengths, strict=True)]
        if self.keep_aspect_ratio_policy == "stretch":
            return [int(size) for size in sizes], factors
        factor = self._common(factors)
        return [_rounded(n, factor) for n in lengths], [factor] * len(lengths)

    def _common(self, factors: Sequence[float]) -> float:
        """The scale of all axes if their ratio is kept."""
        return (min if self.keep_aspect_ratio_policy == "not_larger" else max)(factors, default=1.0)

    def _check_count(self, what: str, found: int, expected: int) -> None:
        if found != expected:
            axes = expected // 2 if "roi" in what else expected
            raise OperatorSpecError(f"{self.node}: {found} {what} do not fit {axes} axes of input 0")

    @property
    def _rule(self) -> _Rule:
        return _Rule(
            self.mode, self.coordinate_transformation_mode, self.nearest_mode, self.antialias, self.cubic_coeff_a,
            self.exclude_outside,
        )  # fmt: skip


def _numbers(values: Array | None) -> list[float] | None:
    return None if values is None or not values.size else values.reshape(-1).astype(np.float64).tolist()


# -- interpolation weights --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """The attributes that determine coordinates and weights."""

    mode: str
    coordinates: str
    nearest_mode: str
    antialias: bool
    cubic_coeff_a: float
    exclude_outside: bool


@lru_cache(maxsize=256)
def _taps(rule: _Rule, length: int, size: int, scale: float, region: tuple[float, float]) -> ResizeTaps:
    if not length and size:
        raise ModelError(f"an axis without elements cannot be resized to {size}")
    at = _coordinates(rule.coordinates, length, size, scale, region)
    if rule.mode == "nearest":
        places, weights = _NEAREST[rule.nearest_mode](at)[:, None], np.ones((size, 1))
    else:
        places, weights = _weighted(rule, at, length, scale)
    indices = np.clip(places, 0, max(length - 1, 0)).astype(np.int32)
    if rule.coordinates == "tf_crop_and_resize":
        indices[(at < 0) | (at > length - 1)] = -1
    indices.flags.writeable = weights.flags.writeable = False
    return ResizeTaps(indices, weights)


def _coordinates(mode: str, n: int, size: int, scale: float, region: tuple[float, float]) -> Array:
    """The coordinates of the result's elements in an input of length `n`."""
    y, width = np.arange(size, dtype=np.float64), scale * n
    first, last = region
    match mode:
        case "align_corners":
            return np.zeros(size) if width == 1 else y * (n - 1) / (width - 1)
        case "asymmetric":
            return y / scale
        case "tf_crop_and_resize":
            if width == 1:
                return np.full(size, (first + last) / 2 * (n - 1))
            return first * (n - 1) + y * (last - first) * (n - 1) / (width - 1)
        case "pytorch_half_pixel" if size == 1:
            return np.zeros(1)
        case "half_pixel_symmetric" if size:
            return n / 2 * (1 - size / width) + (y + 0.5) / scale - 0.5
    return (y + 0.5) / scale - 0.5


def _weighted(rule: _Rule, at: Array, length: int, scale: float) -> tuple[Array, Array]:
    """The elements around each coordinate, and their weights: both [size, taps].

    With `antialias`, the number of elements grows with the downsampling factor.
    """
    shrink = min(scale, 1.0) if rule.antialias else 1.0
    first = math.floor(-_RADIUS[rule.mode] / shrink) + 1
    places = np.floor(at)[:, None] + np.arange(first, 2 - first)
    distances = np.abs(places - at[:, None]) * shrink
    weights = np.maximum(1 - distances, 0) if rule.mode == "linear" else _cubic(distances, rule.cubic_coeff_a)
    if rule.exclude_outside:
        weights = np.where((places < 0) | (places >= length), 0, weights)
    if rule.antialias or rule.exclude_outside:
        totals = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(totals == 0, 1, totals)
    return places, weights


def _cubic(distances: Array, a: float) -> Array:
    """R. G. Keys, Cubic convolution interpolation for digital image processing, 1981."""
    near = ((a + 2) * distances - (a + 3)) * distances * distances + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    result: Array = np.where(distances <= 1, near, np.where(distances < 2, far, 0))
    return result


# -- evaluation -------------------------------------------------------------------------------------------


@evaluates_with_spec("Resize")
def _resize(
    spec: ResizeSpec, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Array:
    """One axis after the other. `onnx.reference` selects wrong neighbours if a coordinate is almost an integer."""
    is_nearest = spec.mode == "nearest"
    result = x if is_nearest else x.astype(np.float64)
    for each in spec.at(x.shape, roi, scales, sizes).axes:
        if each.size and not each.length:
            raise ModelError(f"axis {each.axis} is empty and cannot be resized to {each.size}")
        if not each.size:
            result = np.zeros((*result.shape[: each.axis], 0, *result.shape[each.axis + 1 :]), result.dtype)
            continue
        taps = each.taps
        places = np.maximum(taps.indices, 0)
        if is_nearest:
            result = np.take(result, places[:, 0], axis=each.axis)
        else:
            result = _sum_of_taps(result, places, taps.weights, each.axis)
        outside = taps.is_outside
        if outside.any():
            value = result.dtype.type(spec.extrapolation_value)
            result = np.where(_along(outside, each.axis, x.ndim), value, result)
    if is_nearest:
        return result
    return (
        result.astype(x.dtype)
        if ElementType.from_numpy(x.dtype).is_real
        else onnx.numpy_helper.saturate_cast(result, x.dtype)
    )


def _sum_of_taps(x: Array, places: Array, weights: Array, axis: int) -> Array:
    total: Any = 0.0
    for tap in range(places.shape[1]):
        weight = _along(weights[:, tap], axis, x.ndim)
        # An element of weight 0 must not be read: 0 times infinity is NaN.
        total = total + np.where(weight == 0, 0, np.take(x, places[:, tap], axis=axis) * weight)
    result: Array = total
    return result


def _along(values: Array, axis: int, rank: int) -> Array:
    """A vector reshaped to lie along an axis of a tensor of `rank`."""
    return values.reshape(-1, *(1,) * (rank - axis - 1))


# -- type -------------------------------------------------------------------------------------------------


@infers("Resize")
def _infer_resize(node: Node) -> Sequence[ValueType]:
    """ONNX's rule is wrong if the number of sizes is unknown."""
    check_inputs(node, get_op("Resize"))
    spec, data = ResizeSpec.of(node), tensor_type(node, 0)
    is_given = [index for index in (2, 3) if _is_given(node, index)]
    if len(is_given) != 1:
        fail(node, f"exactly one of scales and sizes must be given, got {'both' if is_given else 'none'}")
    if spec.mode != "nearest" and data.element_type in (boolean, string):
        fail(node, f"X is {data}, which cannot be interpolated; expected mode nearest, or numbers")
    if data.shape.rank.is_dynamic or spec.axes is None:
        return (data,)
    if spec.coordinate_transformation_mode == "tf_crop_and_resize" and _is_given(node, 1):
        region = tensor_type(node, 1).shape
        if region.is_static:
            spec._check_count("values of roi", region.size(), 2 * len(spec.axes))
    dims: list[Any] = list(data.shape.dims)
    source = node.input_value(is_given[0]).node
    values = source.data.reshape(-1).tolist() if isinstance(source, Constant) else [None] * len(spec.axes)
    spec._check_count("scales" if is_given == [2] else "sizes", len(values), len(spec.axes))
    if is_given == [2]:
        if any(scale is not None and not 0 < scale < math.inf for scale in values):
            fail(node, f"scales must be positive and finite; got {values}")
        for axis, scale in zip(spec.axes, values, strict=True):
            dims[axis] = None if scale is None else _scaled(dims[axis], scale)
    else:
        if any(size is not None and size < 0 for size in values):
            fail(node, f"sizes are {values}; expected 0 or more")
        if any(size and dims[axis].max == 0 for axis, size in zip(spec.axes, values, strict=True)):
            fail(node, f"X has shape {data.shape}, so there are no elements to resize to sizes {values}")
        _set_sizes(spec, dims, spec.axes, values)
    return (TensorType(data.element_type, PartialShape(dims)),)


def _is_given(node: Node, index: int) -> bool:
    """False if the input is omitted, or is an empty tensor, which means the same in older models."""
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


def _set_sizes(spec: ResizeSpec, dims: list[Any], axes: Sequence[int], sizes: Sequence[int | None]) -> None:
    if spec.keep_aspect_ratio_policy == "stretch":
        for axis, size in zip(axes, sizes, strict=True):
            dims[axis] = size
        return
    lengths = [dims[axis].min if dims[axis].is_static else None for axis in axes]
    factors = [size / n for size, n in zip(sizes, lengths, strict=True) if size is not None and n]
    factor = spec._common(factors) if len(factors) == len(axes) else None
    for axis in axes:
        dims[axis] = None if factor is None else _rounded(dims[axis].min, factor)


def _rounded(length: int, factor: float) -> int:
    return math.floor(length * factor + 0.5)


@more_time("Resize")
def _time(node: Node) -> float:
    """With antialiasing, as many neighbours as the input is longer, each in a step of a loop."""
    if not node.attributes.get("antialias"):
        return 0.0
    lengths = zip(lengths_of(node.input_value(0)), lengths_of(node.output(0)), strict=False)
    return 4.0 * CALL * sum(before // max(1, after) for before, after in lengths)
