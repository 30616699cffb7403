"""Addressing of an elementwise step's operands, in plain and in blocked iteration spaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import Constant, Output
from engine.ir.element_type import f32, i8, i32, u8
from engine_cpu.layout import BLOCK, Layout, padded_channels, static_shape

Array = np.ndarray[Any, np.dtype[Any]]

BLOCKED_TYPES: Final = (f32, u8, i8, i32)
"""The types of maps in blocks."""


def space(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """The dimensions that a step iterates over: its outputs' dimensions in memory."""
    if layout is Layout.PLAIN:
        return tuple(shape)
    return (shape[0], padded_channels(shape[1]) // BLOCK, *shape[2:], BLOCK)


def aligned(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """A shape with leading dimensions of 1, as for broadcasting."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def strides(shape: Sequence[int], output: Sequence[int], layout: Layout, read_as: Layout) -> list[int]:
    """The stride in elements along each dimension of a step's space; 0 if the operand is broadcast.

    Args:
        shape: the operand's shape, which broadcasts to `output`.
        output: the shape of the step's outputs.
        layout: the step's layout, PLAIN or BLOCKED.
        read_as: the operand's layout. In a BLOCKED step, a PLAIN operand has one channel, or one pixel and whole
            blocks.
    """
    full = aligned(shape, len(output))
    if layout is Layout.PLAIN:
        return _dense(full)
    if read_as is Layout.PLAIN:
        plain = _dense(full)
        return [plain[0], BLOCK if full[1] > 1 else 0, *plain[2:], 1 if full[1] > 1 else 0]
    blocks = (full[0], padded_channels(full[1]) // BLOCK, *full[2:], BLOCK)
    blocked = _dense(blocks)
    if full[1] < output[1]:  # in lane 0 of the only block
        blocked[1] = blocked[-1] = 0
    return blocked


def _dense(shape: Sequence[int]) -> list[int]:
    result, step = [], 1
    for length in reversed(shape):
        result.append(0 if length == 1 else step)
        step *= length
    return result[::-1]


def blocked_read(value: Output, rank: int) -> Layout | None:
    """The layout in which a BLOCKED step of `rank` dimensions reads an operand; None if it cannot."""
    if value.element_type not in BLOCKED_TYPES:
        return None
    shape = static_shape(value)
    full = aligned(shape, rank)
    if len(shape) == rank:
        return Layout.BLOCKED
    one_pixel = math.prod(full[2:]) == 1
    is_whole = full[1] == 1 or (one_pixel and full[1] % BLOCK == 0)
    return Layout.PLAIN if is_whole or isinstance(value.node, Constant) else None


def is_kept_plain(shape: Sequence[int], rank: int) -> bool:
    """Whether a BLOCKED step reads a constant in place, rather than from a blocked copy."""
    return aligned(shape, rank)[1] == 1


def blocked_constant(array: Array, rank: int) -> Array:
    """A constant [N, C, ...] with several channels in blocks; missing dimensions are 1, padding lanes hold ones."""
    full = array.reshape(aligned(array.shape, rank))
    channels = padded_channels(full.shape[1])
    whole = np.ones((full.shape[0], channels, *full.shape[2:]), array.dtype)
    whole[:, : full.shape[1]] = full
    split = whole.reshape(full.shape[0], channels // BLOCK, BLOCK, *full.shape[2:])
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))
