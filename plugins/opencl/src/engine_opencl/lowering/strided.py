"""Copies between strided ranges, used by most operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from engine.ir import ElementType, Output
from engine_opencl.elements import load_code, moved_c_type, store_code, stored_c_type
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import collapsed, index_code, strides_of

_AXES: Final = 3
"""Dimensions of a range."""


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
    source_c = target_c = moved_c_type(value.element_type)
    statement = "y[o] = x[a];"
    if stored is not None and stored[0] is not stored[1]:
        source_c, target_c = map(stored_c_type, stored)
        statement = store_code(stored[1], "y", "o", load_code(stored[0], "x", "a"))
    is_by_axes = b.facts.kind == "cpu" and len(lengths) <= _AXES
    places, more, size = (_by_axes if is_by_axes else _by_numbers)(lengths, read, written)
    parameters = "".join(f", const long {name}" for name in ("xo", "yo", *more))
    text = (
        f"__kernel void copy(__global const {source_c}* x, __global {target_c}* y{parameters}) {{\n"
        f"  {places}\n  {statement}\n}}\n"
    )
    arguments: list[Given] = [source, target, *map(np.int64, (read_offset, write_offset, *more.values()))]
    b.launch(text, "copy", arguments, size)


_SHORT: Final = 16
"""Fewer elements than this are not worth a loop over an axis."""

_Places: TypeAlias = "tuple[str, dict[str, int], tuple[int, ...]]"
"""Statements that find the places `a` and `o` to read and write, the values of their variables, and the range."""


def _by_axes(lengths: Sequence[int], read: Sequence[int], written: Sequence[int]) -> _Places:
    """An item's numbers along the axes are its element's: any lengths and strides have the same kernel, which compilers
    for CPUs take a tenth of a second for."""
    if len(lengths) > 1 and lengths[-1] < _SHORT:  # compilers for CPUs make a loop over the first axis of the range
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        order = [*(axis for axis in range(len(lengths)) if axis != longest), longest]
        lengths, read, written = ([values[axis] for axis in order] for values in (lengths, read, written))
    more: dict[str, int] = {}
    places = []
    for place, strides in (("a", read), ("o", written)):
        terms = [f"{'x' if place == 'a' else 'y'}o"]
        for axis, stride in enumerate(reversed(strides)):
            is_known = axis == 0 and stride == 1  # neighbours are moved as vectors
            terms.append(f"(long)get_global_id({axis})" + ("" if is_known else f" * {place}{axis}"))
            more |= {} if is_known else {f"{place}{axis}": stride}
        places.append(f"const long {place} = {' + '.join(terms)};")
    return "\n  ".join(places), more, tuple(reversed(lengths)) or (1,)


def _by_numbers(lengths: Sequence[int], read: Sequence[int], written: Sequence[int]) -> _Places:
    """An item finds its place along the axes from its number, by divisions by the lengths."""
    moved = [[stride % 2**64 for stride in strides] for strides in (read, written)]  # the kernel's arithmetic
    index = index_code(lengths, moved, ["ra", "ro"], item="get_global_id(0)")
    return f"{index}\n  const long a = xo + (long)ra, o = yo + (long)ro;", {}, (math.prod(lengths),)


def numbers_of(b: LaunchPlanBuilder, value: Output) -> list[int]:
    """The elements of a constant of integers, flattened."""
    data = b.constant(value)
    assert data is not None, value
    return [int(each) for each in data.reshape(-1)]
