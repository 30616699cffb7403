"""Copies between strided ranges, used by most operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.ir import ElementType, Output
from engine_opencl.elements import load_code, moved_c_type, store_code, stored_c_type
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import collapsed, index_code, strides_of


def copy_strided(b: LaunchPlanBuilder, value: Output, result: Output, strides: Sequence[int], offset: int = 0) -> None:
    """Fill `result` in order from elements of `value` at an offset and along strides."""
    shape = b.shape(result)
    strided_copy(b, value, b.input(value), b.output(result), shape, strides, offset, strides_of(shape), 0)


def strided_copy(
    b: LaunchPlanBuilder,
    value: Output,
    source: Buffer,
    target: Buffer,
    shape: Sequence[int],
    read: Sequence[int],
    read_offset: int,
    written: Sequence[int],
    write_offset: int,
    *,
    stored: tuple[ElementType, ElementType] | None = None,
) -> None:
    """Copy elements between two strided ranges of equal shape; `stored`: source and target types, if different."""
    lengths, (read, written) = collapsed(shape, read, written)
    index = index_code(lengths, [_modular(read), list(written)], ["a", "o"])
    source_c = target_c = moved_c_type(value.element_type)
    statement = "y[yo + (long)o] = x[xo + (long)a];"
    if stored is not None and stored[0] is not stored[1]:
        source_c, target_c = map(stored_c_type, stored)
        statement = store_code(stored[1], "y", "yo + (long)o", load_code(stored[0], "x", "xo + (long)a"))
    text = (
        f"__kernel void copy(__global const {source_c}* x, __global {target_c}* y, const long xo, const long yo) {{\n"
        f"  const ulong i = get_global_id(0);\n  {index}\n  {statement}\n}}\n"
    )
    b.launch(text, "copy", [source, target, np.int64(read_offset), np.int64(write_offset)], (math.prod(shape),))


def _modular(strides: Sequence[int]) -> list[int]:
    """Negative strides modulo 2^64, the kernel's arithmetic."""
    return [stride % 2**64 for stride in strides]


def numbers_of(b: LaunchPlanBuilder, value: Output) -> list[int]:
    """The integers of a constant."""
    data = b.constant(value)
    assert data is not None, value
    return [int(each) for each in data.reshape(-1)]
