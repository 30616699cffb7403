"""Resize: its evaluation, along one axis after the other.

`onnx.reference` takes wrong neighbours where a coordinate is off a whole number by a rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx.numpy_helper import saturate_cast

from engine.errors import ModelError
from engine.ops.registry import evaluates
from engine.ops.tensors import Array

_NEAREST: Final[dict[str, Callable[[Array], Array]]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_REACH: Final = {"linear": 1, "cubic": 2}
"""How far from a coordinate there are elements that count."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of `length` elements that becomes one of `size`, and the part of it that is read, of 1."""

    index: int
    length: int
    size: int
    scale: float
    first: float
    last: float

    @property
    def stays(self) -> bool:
        whole = math.isclose(self.first, 0.0) and math.isclose(self.last, 1.0)
        return self.length == self.size and math.isclose(self.scale, 1.0) and whole


@evaluates("Resize")
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    axes: Sequence[int] | None,
    antialias: int,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    keep_aspect_ratio_policy: str,
) -> Array:
    """Elements at the coordinates of a finer or coarser grid, between which it interpolates (ONNX Resize-19)."""
    result = x if mode == "nearest" else x.astype(np.float64)
    for axis in _axes_of(x.shape, axes, roi, scales, sizes, keep_aspect_ratio_policy, coordinate_transformation_mode):
        if axis.stays:
            continue
        if not axis.length and axis.size:
            raise ModelError(f"axis {axis.index} has no elements of which {axis.size} could be made")
        if not axis.size:
            result = np.zeros((*result.shape[: axis.index], 0, *result.shape[axis.index + 1 :]), result.dtype)
            continue
        at = _coordinates(axis, coordinate_transformation_mode)
        if mode == "nearest":
            places = np.clip(_NEAREST[nearest_mode](at), 0, axis.length - 1).astype(np.intp)
            result = np.take(result, places, axis=axis.index)
        else:
            places, weights = _taps(at, axis, mode, cubic_coeff_a, bool(antialias), bool(exclude_outside))
            result = _weighted(result, places, weights, axis)
        if coordinate_transformation_mode == "tf_crop_and_resize":
            outside = (at < 0) | (at > axis.length - 1)
            result = np.where(_along(outside, axis.index, x.ndim), result.dtype.type(extrapolation_value), result)
    return result if mode == "nearest" else saturate_cast(result, x.dtype)


def _axes_of(
    shape: Sequence[int],
    axes: Sequence[int] | None,
    roi: Array | None,
    scales: Array | None,
    sizes: Array | None,
    policy: str,
    coordinates: str,
) -> list[_Axis]:
    rank = len(shape)
    chosen = [axis % rank for axis in axes or range(rank)]
    lengths = [shape[axis] for axis in chosen]
    if scales is not None and scales.size:
        factors = [float(scale) for scale in scales.reshape(-1)]
        targets = [math.floor(n * factor) for n, factor in zip(lengths, factors, strict=True)]
    elif sizes is not None:
        targets = [int(size) for size in sizes.reshape(-1)]
        factors = [size / n if n else 1.0 for size, n in zip(targets, lengths, strict=True)]
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(lengths)
            targets = [math.floor(n * factor + 0.5) for n in lengths]
    else:
        raise ModelError("neither scales nor sizes are given")
    region = [0.0] * len(chosen) + [1.0] * len(chosen)
    if coordinates == "tf_crop_and_resize" and roi is not None and roi.size:
        region = [float(each) for each in roi.reshape(-1)]
    return [
        _Axis(index, lengths[i], targets[i], factors[i], region[i], region[len(chosen) + i])
        for i, index in enumerate(chosen)
    ]


def _coordinates(axis: _Axis, mode: str) -> Array:
    """Where the elements of the result lie among those of the input."""
    y, n = np.arange(axis.size, dtype=np.float64), axis.length
    width = axis.scale * n
    match mode:
        case "half_pixel":
            return (y + 0.5) / axis.scale - 0.5
        case "half_pixel_symmetric":
            return n / 2 * (1 - axis.size / width) + (y + 0.5) / axis.scale - 0.5
        case "pytorch_half_pixel":
            return np.zeros(1) if axis.size == 1 else (y + 0.5) / axis.scale - 0.5
        case "align_corners":
            return np.zeros(axis.size) if width == 1 else y * (n - 1) / (width - 1)
        case "asymmetric":
            return y / axis.scale
        case "tf_crop_and_resize":
            if width == 1:
                return np.full(axis.size, (axis.first + axis.last) / 2 * (n - 1))
            return axis.first * (n - 1) + y * (axis.last - axis.first) * (n - 1) / (width - 1)
    raise ModelError(f"coordinate_transformation_mode is {mode!r}")


def _taps(at: Array, axis: _Axis, mode: str, a: float, antialias: bool, exclude_outside: bool) -> tuple[Array, Array]:
    """The elements that count at each coordinate, and their weights: [size, taps] both.

    With `antialias` a grid that is coarser than the input's takes from as many more elements.
    """
    scale = min(axis.scale, 1.0) if antialias else 1.0
    reach = math.ceil(_REACH[mode] / scale)
    offsets = np.arange(-reach, reach + 1)
    places = np.floor(at)[:, None] + offsets
    distances = np.abs(places - at[:, None]) * scale
    weights = np.maximum(1 - distances, 0) if mode == "linear" else _cubic(distances, a)
    if exclude_outside:
        weights = np.where((places < 0) | (places >= axis.length), 0, weights)
    if antialias or exclude_outside:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, axis.length - 1).astype(np.intp), weights


def _cubic(distances: Array, a: float) -> Array:
    """R. G. Keys, Cubic convolution interpolation for digital image processing, 1981."""
    near = ((a + 2) * distances - (a + 3)) * distances * distances + 1
    far = ((a * distances - 5 * a) * distances + 8 * a) * distances - 4 * a
    result: Array = np.where(distances <= 1, near, np.where(distances < 2, far, 0))
    return result


def _weighted(x: Array, places: Array, weights: Array, axis: _Axis) -> Array:
    total: Any = 0.0
    for tap in range(places.shape[1]):
        weight = _along(weights[:, tap], axis.index, x.ndim)
        # What does not count must not be read either: 0 times infinity is no number.
        total = total + np.where(weight == 0, 0, np.take(x, places[:, tap], axis=axis.index) * weight)
    result: Array = total
    return result


def _along(values: Array, axis: int, rank: int) -> Array:
    """A vector as a tensor that has it along an axis."""
    return values.reshape(-1, *(1,) * (rank - axis - 1))
