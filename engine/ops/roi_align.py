"""Evaluation of RoiAlign, in time that follows from the map: `onnx.reference` visits every sample of a region."""

from __future__ import annotations

import math

import numpy as np

from engine.ir import Node
from engine.ops.axes import declare_axes
from engine.ops.cost import CALL, lengths_of, more_time, size_of
from engine.ops.precision import widened
from engine.ops.sample import RoiAlignSpec
from engine.ops.spec import evaluates_with_spec
from engine.ops.suspect_values import Suspicion, is_outside, suspects
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

_MAX_SAMPLES: float = 1e15


declare("RoiAlign", addresses=2, inflates=True)
declare_axes("RoiAlign", axes="N C H W, rois 4, rois -> rois C *")


@evaluates_with_spec("RoiAlign")
def roi_align(spec: RoiAlignSpec, x: Array, rois: Array, batch_indices: Array) -> Array:
    """Means, or maxima, of samples of maps x [N, C, H, W] in the cells of regions (ONNX RoiAlign-22).

    A region with a coordinate that is not finite, also after scaling, is NaN. Samples beyond the map are zeros.
    """
    maps, regions = widened(x), widened(rois)
    result = np.zeros((len(regions), x.shape[1], spec.output_height, spec.output_width), maps.dtype)
    for number, (ends, image) in enumerate(zip(_scaled(spec, regions), batch_indices.tolist(), strict=True)):
        left, top, right, bottom = ends
        sides = [bottom - top, right - left]
        if not np.isfinite([*ends, *sides]).all():
            result[number] = np.nan
        elif x.size:
            if spec.coordinate_transformation_mode != "half_pixel":
                sides = [max(side, side.dtype.type(1)) for side in sides]
            result[number] = _aligned(spec, maps[image], (top, left), sides)
    return result.astype(x.dtype)


def _scaled(spec: RoiAlignSpec, regions: Array) -> Array:
    offset = 0.5 if spec.coordinate_transformation_mode == "half_pixel" else 0.0
    scaled: Array = regions * regions.dtype.type(spec.spatial_scale) - regions.dtype.type(offset)
    return scaled


def _aligned(spec: RoiAlignSpec, data: Array, starts: tuple[float, float], sides: list[float]) -> Array:
    """The cells of one region of data [C, H, W]."""
    cells, lengths = (spec.output_height, spec.output_width), data.shape[1:]
    axes: list[list[_Places]] = []
    for start, side, count, length in zip(starts, sides, cells, lengths, strict=True):
        bin_size = side / data.dtype.type(count)
        samples = float(spec.sampling_ratio) or float(np.ceil(bin_size))
        axes.append(
            [_places(start + data.dtype.type(cell) * bin_size, bin_size, samples, length) for cell in range(count)]
        )
    result = np.zeros((len(data), *cells), data.dtype)
    for row, column in np.ndindex(*cells):
        rows, columns = axes[0][row], axes[1][column]
        samples = rows.samples * columns.samples
        result[:, row, column] = _cell(data, rows, columns, samples, is_max=spec.mode == "max")
    return result


@dataclass(frozen=True, slots=True)
class _Places:
    """The samples along one side of a cell that are on the map: two neighbours, and the weight of the second."""

    samples: float
    low: Array
    high: Array
    weight: Array


def _places(begin: float, size: float, samples: float, length: int) -> _Places:
    """The places begin + (i + 0.5) * size / samples, of i below `samples`."""
    first, last = 0, int(min(max(samples, 0.0), _MAX_SAMPLES))
    step = float(size) / samples if samples >= 1 else 0.0
    if step > 0:  # one more on each side, for rounding
        first = int(min(max((-1 - float(begin)) / step - 2, 0.0), last))
        last = int(min(max((length - float(begin)) / step + 2, first), last))
    kind = np.asarray(begin).dtype.type
    at = begin + (np.arange(first, last).astype(kind) + kind(0.5)) * size / kind(samples)
    at = np.maximum(at[(at >= -1) & (at <= length)], kind(0))
    low = at.astype(np.int64)
    is_last = low >= length - 1
    low[is_last] = length - 1
    return _Places(samples, low, np.where(is_last, low, low + 1), np.where(is_last, kind(0), at - low.astype(kind)))


def _cell(data: Array, rows: _Places, columns: _Places, samples: float, *, is_max: bool) -> Array:
    """The value of each channel: [C]."""
    corners = []
    for at, y in ((rows.low, 1 - rows.weight), (rows.high, rows.weight)):
        for to, x in ((columns.low, 1 - columns.weight), (columns.high, columns.weight)):
            corners.append(data[:, at[:, None], to] * (y[:, None] * x))
    if not is_max:
        total: Array = sum(corners).reshape(len(data), -1).sum(axis=1) / data.dtype.type(max(samples, 1.0))
        return total
    most = np.maximum.reduce(corners).reshape(len(data), -1)
    is_whole = 1 <= samples <= most.shape[1]
    largest: Array = most.max(axis=1, initial=-math.inf if is_whole else 0)
    return largest


@more_time("RoiAlign")
def _time(node: Node) -> float:
    """The samples of each cell of each region, which are at most those on the map if they are adaptive."""
    ratio: int = node.attributes.get("sampling_ratio", 0)
    cells, maps = size_of(node.output(0)), lengths_of(node.input_value(0))
    regions, size = sum(lengths_of(node.input_value(1))[:1]), math.prod(maps[1:])
    return (4 * CALL + 40 * ratio * ratio) * cells + (0 if ratio else 160 * regions * size)


@suspects("RoiAlign")
def _suspicion_of_images(node: Node) -> Suspicion:
    return lambda inputs: is_outside(inputs[2], 0, inputs[0].shape[0] - 1)
