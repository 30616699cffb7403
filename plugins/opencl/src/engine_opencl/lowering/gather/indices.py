"""Computed indices and lengths in kernels. One out of range fails the inference with the node's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.ir import Output
from engine.ir.element_type import i32, i64
from engine.lowering import Refusal
from engine_opencl.elements import STORED
from engine_opencl.lowering.registry import check_types
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, strides_of

INDICES: Final = frozenset({i32, i64})
CHECKED: Final = """
inline long checked(long index, long length, __global long* fault) {
  const long place = index < 0 ? index + length : index;
  if (place >= 0 && place < length) return place;
  *fault = index < 0 ? index : index + 1;
  return -1;
}
"""
"""A nonnegative index; -1, with the fault recorded, if it is out of range."""


def check_indexed(data: Output, indices: Output) -> Refusal | None:
    """A refusal unless the data can be moved and the indices are integers."""
    return check_types((data,), STORED) or check_types((indices,), INDICES)


def tuple_code(lengths: Sequence[int], inner: int) -> str:
    """Statements that add the offset of the tuple in row `row` of `indices` to `offset`, or clear `is_inside`."""
    lines = []
    for axis, (length, step) in enumerate(zip(lengths, strides_of(lengths), strict=True)):
        lines.append(
            f"  {{ const long at = checked(indices[row * {len(lengths)} + {axis}], {length}, fault + slot + {axis});\n"
            f"    is_inside &= at >= 0; offset += at * {step * inner}; }}\n"
        )
    return "".join(lines)


def check_lengths(b: LaunchPlanBuilder, lengths: Output, steps: int) -> None:
    """Fail the inference if a length, of a vector of i32 or i64, is not in 0..steps."""
    source = kernel_source("check_lengths", T="int" if lengths.element_type is i32 else "long", STEPS=f"{steps}l")
    arguments: list[Given] = [b.input(lengths), *b.fault(steps, is_length=True)]
    b.launch(source, "check_lengths", arguments, b.shape(lengths))
