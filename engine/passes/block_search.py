"""Integers and scales for the blocks of a matrix, with the least squared error that a search finds."""

from __future__ import annotations

import math
import os
from typing import Any, Final

import numpy as np

from engine.ir import ElementType
from engine.ops.tensors import Array
from engine.startup import dataclass
from engine.threads import in_threads

_PART: Final = 1 << 15
"""Elements that are searched at a time, so that they and all temporaries stay in a core's cache."""
_NARROWEST: Final = 64
_MAX_THREADS: Final = 8
_SHORT: Final = 4
_MIN_SHORT: Final = float(np.finfo(np.float16).smallest_normal)
_FACTORS: Final = {
    4: (8 / 7, 1.0, 0.92, 0.84, 0.77, 0.7, 0.63),
    8: (128 / 127, 1.0, 0.95, 0.9),
}
"""The steps to try, by number of bits, relative to the one whose range just contains the block; less than 1 clips its
extremes.

The first is for symmetric codes, -7..7.
"""


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """A matrix [K, N] as integers: (codes - zero_points) * scales, with one scale and zero point for a block of rows.

    Attributes:
        codes: [K, N].
        scales: [blocks, N], of the type that was asked for.
        zero_points: [blocks, N]; None if all are 0.
        squared_error: the sum of the squared differences from the matrix.
        squared_sum: the sum of the squares of the matrix.
        largest_error: the largest difference.
    """

    codes: Array
    scales: Array
    zero_points: Array | None
    squared_error: float
    squared_sum: float
    largest_error: float


def search_blocks(
    matrix: Array, element_type: ElementType, block: int, scale_type: np.dtype[Any], *, symmetric: bool
) -> BlockCodes:
    """The codes and scales of a matrix of finite numbers, [K, N], in blocks of `block` rows; the last may be shorter.

    For each block, several steps are tried: the largest values are clipped by different amounts. For the codes of each
    step, the least-squares scale is the best; the result with the smallest error is used. Parts of the matrix are
    searched by several threads; memory in addition to the result is bounded. `element_type` is signed if `symmetric`,
    and unsigned if not.
    """
    rows, columns = matrix.shape
    count = -(-rows // block)
    codes = np.empty((rows, columns), element_type.numpy)
    scales = np.empty((count, columns), scale_type)
    zero_points = None if symmetric else np.empty((count, columns), element_type.numpy)
    width = max(_NARROWEST, _PART // min(block, rows))

    def search_part(task: tuple[int, int]) -> tuple[float, float, float]:
        index, start = task
        lines, part = slice(index * block, min(rows, (index + 1) * block)), slice(start, start + width)
        values = matrix[lines, part].astype(np.float32)
        scale, zero = _search(values, element_type.bits, symmetric, scale_type)
        found = _codes(values, scale, zero, element_type.bits, symmetric)
        codes[lines, part] = found.astype(element_type.numpy)
        scales[index, part] = scale
        if zero_points is not None:
            zero_points[index, part] = zero.astype(element_type.numpy)
        difference = (found - zero) * scale.astype(np.float32) - values
        return _square(difference), _square(values), float(np.abs(difference).max(initial=0))

    tasks = [(index, start) for index in range(count) for start in range(0, columns, width)]
    threads = min(os.cpu_count() or 1, _MAX_THREADS)
    errors, sums, largest = zip(*in_threads(search_part, tasks, threads, "block-search"), strict=True)
    return BlockCodes(codes, scales, zero_points, math.fsum(errors), math.fsum(sums), max(largest))


def _search(values: Array, bits: int, symmetric: bool, scale_type: np.dtype[Any]) -> tuple[Array, Array]:
    """The scale and zero point of each column of [rows, N]; a scale of 1 where all elements are 0, or it would be 0."""
    low, high = _limits(bits, symmetric)
    least, most = np.minimum(values.min(axis=0), 0), np.maximum(values.max(axis=0), 0)
    largest = np.maximum(-least, most)
    unit = np.where(largest > 0, largest, 1)
    scaled = values / unit  # sums of squares neither overflow nor vanish
    least, most = least / unit, most / unit
    if symmetric:
        # The extreme value takes the code of the larger range, -8 of -8..7, by a negative scale if it is positive. With
        # 8 bits this gains little, and some runtimes take only positive scales.
        sign = np.where((-least >= most) | (bits != _SHORT), 1, -1)
        step, origin = sign / np.float32(-low), np.zeros_like(unit)
    else:
        step, origin = np.where(largest > 0, most - least, 1) / np.float32(high), -least
    center = (most + least) / 2
    best = np.full(unit.shape, -1.0, np.float32)
    scale, zero = step, origin
    codes = np.empty_like(scaled)
    for factor in _FACTORS[bits]:
        tried = step * np.float32(factor)
        # Both ends of the range are clipped alike.
        middle = origin if symmetric else np.clip(np.rint((factor * (origin + center) - center) / tried), low, high)
        np.multiply(scaled, 1 / tried, out=codes)
        np.rint(codes, out=codes)
        if not symmetric:
            codes += middle
        np.clip(codes, low, high, out=codes)
        if not symmetric:
            codes -= middle
        product = np.einsum("ij,ij->j", codes, scaled)
        square = np.einsum("ij,ij->j", codes, codes)
        # With the scale product / square, the squared error is the error of zeros less this gain.
        fitted = product / np.where(square > 0, square, 1)
        gain = product * fitted
        is_better = gain > best
        best = np.where(is_better, gain, best)
        scale = np.where(is_better, fitted, scale)
        zero = np.where(is_better, middle, zero)
    with np.errstate(over="ignore"):
        result = (scale * unit).astype(scale_type)
        if bits == _SHORT and scale_type == np.float32:
            # Devices store scales in f16 where it has them; a code is at most 15, so this changes no value by more than
            # a hundredth of the step.
            short = result.astype(np.float16).astype(np.float32)
            result = np.where((np.abs(short) >= _MIN_SHORT) & np.isfinite(short), short, result)
    return np.where(np.isfinite(result) & (result != 0), result, np.ones((), scale_type)), zero


def _square(values: Array) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def _codes(values: Array, scale: Array, zero: Array, bits: int, symmetric: bool) -> Array:
    low, high = _limits(bits, symmetric)
    codes: Array = np.rint(values / scale.astype(np.float32))
    codes += zero
    return np.clip(codes, low, high, out=codes)


def _limits(bits: int, symmetric: bool) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if symmetric else (0, (1 << bits) - 1)
