"""Interpolation at computed coordinates: GridSample, AffineGrid, RoiAlign, CenterCropPad; evaluation of DeformConv.

`onnx.reference` evaluates GridSample and DeformConv point by point, which is slow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.ir import Node
from engine.ops.axes import declare_axes
from engine.ops.conv import DeformConvSpec
from engine.ops.cost import lengths_of, more_time, size_of
from engine.ops.precision import widened
from engine.ops.spec import (
    OperatorSpec,
    check_choice,
    evaluates_with_spec,
    rank_of,
    refuse,
    refuse_rank,
    resolved_axes,
    specifies,
)
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

Bound = tuple[float, float]
_MAX_SAMPLES: Final = 256
"""Samples along each side of a cell; one cell takes the time of their square."""

TAPS: Final = {"nearest": 1, "linear": 2, "cubic": 4}
"""How many elements along an axis each mode of interpolation reads."""


declare("AffineGrid", "CenterCropPad", inflates=True)
declare("DeformConv", product=(0, 1), inflates=True, vectorized=True)
declare_axes("GridSample", axes="N C *, N ... xy -> N C ...")
declare_axes("AffineGrid", axes="N r s, -> N *")


@specifies("GridSample")
@dataclass(frozen=True, slots=True, kw_only=True)
class GridSampleSpec(OperatorSpec):
    """GridSample (ONNX GridSample-22): input 0 is [N, C, D1..Dr], input 1 [N, O1..Or, r]."""

    mode: str
    padding_mode: str
    align_corners: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "mode", given["mode"], TAPS)
        check_choice(node, "padding_mode", given["padding_mode"], ("zeros", "border", "reflection"))
        rank = rank_of(node, 0)
        if rank is not None and rank < 3:
            refuse_rank(node, 0, rank, "3 or more, [N, C, D1..Dr]")

    @property
    def taps(self) -> int:
        """The number of input elements along each axis for a sample."""
        return TAPS[self.mode]


@specifies("AffineGrid")
@dataclass(frozen=True, slots=True, kw_only=True)
class AffineGridSpec(OperatorSpec):
    """AffineGrid: `align_corners` says whether -1 and 1 mean centres or edges of outer pixels (ONNX AffineGrid-20)."""

    align_corners: bool


@evaluates_with_spec("AffineGrid")
def affine_grid(spec: AffineGridSpec, theta: Array, size: Array) -> Array:
    """The positions of a grid from -1 to 1, mapped by `theta`: [N, 2, 3] or [N, 3, 4] (ONNX AffineGrid-20).

    onnx.reference rounds f64 to f32, and fails for long axes. An axis of length 1 has its first corner at -1.
    """
    lengths, axes = [int(length) for length in size[2:]], []
    for length in lengths:
        steps = np.arange(length, dtype=np.float64)
        axes.append(-1 + steps * (2 / max(1, length - 1)) if spec.align_corners else (2 * steps + 1) / length - 1)
    places = np.meshgrid(*axes, indexing="ij")[::-1]  # x is along the last axis
    points = np.stack([*places, np.ones(lengths)], axis=-1).reshape(-1, len(lengths) + 1)
    mapped: Array = np.matmul(points, theta.astype(np.float64).swapaxes(1, 2))
    return mapped.reshape(len(theta), *lengths, len(lengths)).astype(theta.dtype)


@specifies("RoiAlign")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoiAlignSpec(OperatorSpec):
    """RoiAlign (ONNX RoiAlign-22). A `sampling_ratio` of 0 adapts the number of samples to the region."""

    mode: str
    coordinate_transformation_mode: str
    output_height: int
    output_width: int
    sampling_ratio: int
    spatial_scale: float

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "mode", given["mode"], ("avg", "max"))
        coordinates = "coordinate_transformation_mode"
        check_choice(node, coordinates, given[coordinates], ("half_pixel", "output_half_pixel"))
        for name, least in (("output_height", 1), ("output_width", 1), ("sampling_ratio", 0)):
            if given[name] < least:
                refuse(node, name, given[name], f"{least} or more")
        if given["sampling_ratio"] > _MAX_SAMPLES:
            refuse(node, "sampling_ratio", given["sampling_ratio"], f"{_MAX_SAMPLES} or less")
        if not math.isfinite(given["spatial_scale"]):
            refuse(node, "spatial_scale", given["spatial_scale"], "a finite number")
        for index, expected, layout in ((0, 4, "[N, C, H, W]"), (1, 2, "[rois, 4]"), (2, 1, "[rois]")):
            rank = rank_of(node, index)
            if rank not in (None, expected):
                refuse_rank(node, index, rank, f"{expected}, {layout}")


@specifies("CenterCropPad")
@dataclass(frozen=True, slots=True, kw_only=True)
class CenterCropPadSpec(OperatorSpec):
    """CenterCropPad (ONNX CenterCropPad-18). `axes` is None if it means all axes and the rank is unknown."""

    axes: tuple[int, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        rank, axes = rank_of(node, 0), given["axes"]
        if axes is not None:
            given["axes"] = resolved_axes(node, axes, rank)
        elif rank is not None:
            given["axes"] = tuple(range(rank))


@evaluates_with_spec("GridSample")
def _grid_sample(spec: GridSampleSpec, x: Array, grid: Array) -> Array:
    """Coordinates along the grid's last axis are in reverse order of axes, (x, y), and in -1..1.

    At a coordinate that is not finite, also after scaling, the value is NaN.
    """
    lengths, mode, padding_mode = x.shape[2:], spec.mode, spec.padding_mode
    places = widened(grid)[..., ::-1].reshape(grid.shape[0], math.prod(grid.shape[1:-1]), len(lengths))
    coordinates, bounds = [], []
    is_finite = np.ones(places.shape[:2], bool)
    for axis, length in enumerate(lengths):
        place = places[..., axis]
        if spec.align_corners:
            coordinate, bound = (place + 1) / 2 * (length - 1), (0.0, length - 1.0)
        else:
            coordinate, bound = ((place + 1) * length - 1) / 2, (-0.5, length - 0.5)
        is_finite &= np.isfinite(coordinate)
        coordinate = np.where(np.isfinite(coordinate), coordinate, coordinate.dtype.type(0))
        if mode == "nearest":
            coordinate = np.rint(coordinate)
        bounds.append(bound)
        # Cubic interpolation does not move the coordinate, but the neighbours that it reads, like PyTorch and
        # onnxruntime.
        inside = coordinate if mode == "cubic" else _moved_inside(coordinate, length, bound, padding_mode)
        coordinates.append(inside)
    values = _interpolate(widened(x), coordinates, bounds, mode, padding_mode)
    values = np.where(is_finite[:, None], values, values.dtype.type(np.nan))
    return values.reshape(*x.shape[:2], *grid.shape[1:-1]).astype(x.dtype)


@evaluates_with_spec("DeformConv")
def deform_conv(
    spec: DeformConvSpec, x: Array, w: Array, offset: Array, b: Array | None = None, mask: Array | None = None
) -> Array:
    """Convolution with window positions moved by `offset` and weighted by `mask` (ONNX DeformConv-22)."""
    g, group, offset_group = spec.at(x.shape, w.shape), spec.group, spec.offset_group
    kernel, rank, outs = g.kernel, len(g.kernel), g.outputs
    batch, channels, positions, places = x.shape[0], x.shape[1], math.prod(kernel), math.prod(outs)
    expected = (batch, offset_group * positions * rank, *outs)
    if offset.shape != expected or channels % offset_group or channels != w.shape[1] * group:
        raise ModelError(f"offset of shape {offset.shape} must be {expected}, with x {x.shape} and w {w.shape}")
    moves = widened(offset).reshape(batch * offset_group, positions, rank, places)
    coordinates = []
    for axis in range(rank):
        shape = [1] * rank
        shape[axis] = -1
        starts = (np.arange(outs[axis]) * g.strides[axis] - g.pads_begin[axis]).reshape(shape)
        inner = (np.arange(kernel[axis]) * g.dilations[axis]).reshape(shape)
        base = np.broadcast_to(inner, kernel).reshape(positions, 1) + np.broadcast_to(starts, outs).reshape(1, places)
        at = (moves[:, :, axis] + base.astype(moves.dtype)).reshape(batch * offset_group, positions * places)
        coordinates.append(np.where(np.isfinite(at), at, -2))  # beyond the image
    images = widened(x).reshape(batch * offset_group, channels // offset_group, *x.shape[2:])
    columns = _interpolate(images, coordinates, [], "linear", "zeros")
    columns = columns.reshape(batch, offset_group, channels // offset_group, positions, places)
    if mask is not None:
        columns = columns * widened(mask).reshape(batch, offset_group, 1, positions, places)
    columns = columns.reshape(batch, group, w.shape[1] * positions, places)
    weights = widened(w).reshape(group, w.shape[0] // group, w.shape[1] * positions)
    result: Array = np.matmul(weights, columns).reshape(batch, w.shape[0], *outs)
    if b is not None:
        result = result + widened(b).reshape(-1, *(1,) * rank)
    return result.astype(x.dtype)


def _moved_inside(x: Array, length: int, bound: Bound, padding_mode: str) -> Array:
    """`x` with coordinates outside the bound clamped or reflected; unchanged in mode zeros."""
    if padding_mode == "zeros":
        return x
    low, high = bound
    moved: Array = np.clip(x, 0, length - 1) if padding_mode == "border" else _reflected(x, bound)
    return np.where((x < low) | (x > high), moved, x).astype(x.dtype)


def _reflected(x: Array, bound: Bound) -> Array:
    """Coordinates mirrored at the bound until they are within it."""
    low, high = bound
    if high == low:
        return np.full_like(x, low)
    distance = np.where(x < low, low - x, x - high)
    times = np.trunc(distance / (high - low))
    rest = distance - times * (high - low)
    is_from_low = (x < low) == (times % 2 == 0)
    inside = (x >= low) & (x <= high)
    mirrored: Array = np.where(is_from_low, low + rest, high - rest)
    return np.where(inside, x, mirrored).astype(x.dtype)


def _interpolate(
    x: Array, coordinates: Sequence[Array], bounds: Sequence[Bound], mode: str, padding_mode: str
) -> Array:
    """x [N, C, D1..Dr] at P points per sample, given as one array [N, P] per dimension: [N, C, P]."""
    lengths = x.shape[2:]
    flat = x.reshape(*x.shape[:2], math.prod(lengths))
    taps = [_taps(coordinate, mode) for coordinate in coordinates]
    total: Any = 0.0
    for choice in itertools.product(*taps):
        index = np.zeros(coordinates[0].shape, dtype=np.int64)
        weight = np.ones(coordinates[0].shape, dtype=x.dtype)
        is_read = np.ones(coordinates[0].shape, bool)
        for axis, (place, factor) in enumerate(choice):
            length = lengths[axis]
            if padding_mode == "zeros":
                is_read &= (place >= 0) & (place < length)
            elif padding_mode == "reflection":
                place = np.trunc(_reflected(place.astype(x.dtype), bounds[axis]))
            index = index * length + np.clip(place, 0, length - 1).astype(np.int64)
            weight = weight * factor
        values = np.take_along_axis(flat, index[:, None, :], axis=2)  # 0 times one that is not read may be NaN
        total = total + np.where(is_read[:, None], values, 0) * weight[:, None, :].astype(x.dtype)
    result: Array = total
    return result


def _taps(x: Array, mode: str) -> list[tuple[Array, Any]]:
    """The neighbours that a coordinate reads, with their weights."""
    if mode == "nearest":
        return [(x, 1)]
    base = np.floor(x)
    t = x - base
    if mode == "linear":
        return [(base, 1 - t), (base + 1, t)]
    near: Callable[[Array], Array] = lambda s: (1.25 * s - 2.25) * s * s + 1  # noqa: E731
    far: Callable[[Array], Array] = lambda s: ((-0.75 * s + 3.75) * s - 6) * s + 3  # noqa: E731
    # Keys' cubic convolution with a = -0.75: `near` up to a distance of 1, `far` up to 2.
    return [(base - 1, far(t + 1)), (base, near(t)), (base + 1, near(1 - t)), (base + 2, far(2 - t))]


@more_time("GridSample")
def _time(node: Node) -> float:
    """Neighbours of each sample."""
    taps = {"cubic": 4, "nearest": 1}.get(node.attributes.get("mode", "linear"), 2)
    rank = max(0, len(lengths_of(node.input_value(0))) - 2)
    neighbours: int = taps**rank
    return 20.0 * size_of(node.output(0)) * neighbours
