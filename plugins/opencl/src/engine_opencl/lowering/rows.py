"""Rows of elements that an operator processes as a whole, and their work groups: see kernels/rows.cl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.ir import ElementType
from engine.ir.element_type import f32
from engine.startup import dataclass
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, kernel_text

_REGISTERS: Final = 16
"""Elements of a row that a GPU item keeps in registers between passes; on a CPU, in the first-level cache."""
_CACHED: Final = 128
_CHUNK: Final = 16
"""The same for longer rows, which are read again anyway."""
_COALESCED: Final = 32
"""Neighbouring elements of 4 bytes that fill a GPU memory transaction."""


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows of `length` elements that are `inner` apart, and their distribution over items and groups.

    Attributes:
        lanes: items of a row; a power of two, as is
        per_group: rows per work group.
        kept: elements that an item keeps in registers.
        is_across: whether neighbouring items have neighbouring rows instead of neighbouring elements.
        is_by_outer: whether the range has a separate dimension for the axes outside `inner`.
    """

    count: int
    length: int
    inner: int
    lanes: int
    per_group: int
    kept: int
    is_across: bool
    is_by_outer: bool = False

    @property
    def groups(self) -> int:
        """The number of work groups that compute all rows."""
        return -(-self.count // self.per_group)

    @property
    def group(self) -> int:
        """The number of items per work group."""
        return self.lanes * self.per_group

    def local_bytes(self, element_bytes: int) -> int:
        """Local memory of a work group whose items each have an element there for the other lanes of their row."""
        return self.group * element_bytes if self.lanes > 1 else 0

    def source(self, kernel: str, real: ElementType = f32, /, prefix: str = "", **defines: object) -> str:
        """The text of a kernel over these rows; `prefix` comes before it."""
        chunks = -(-self.length // (self.lanes * self.kept))
        # The kernel reads the number of rows only if some group has fewer: otherwise, all numbers share a source.
        count = self.count if self.count % self.per_group else self.per_group
        return prefix + kernel_source(
            "rows", real,
            LENGTH=self.length, INNER=self.inner, COUNT=f"{count}ul", LANES=self.lanes, ROWS=self.per_group,
            ACROSS=int(self.is_across), BY_OUTER=int(self.is_by_outer), KEPT=self.kept, CHUNKS=chunks, **defines,
        ) + kernel_text(kernel)  # fmt: skip


def rows_of(facts: DeviceFacts, count: int, length: int, inner: int = 1, *, is_across: bool | None = None) -> Rows:
    """The rows of a tensor, at least one, for a kind of device."""
    across = inner > 1 if is_across is None else is_across
    divide = _for_cpu if facts.kind == "cpu" else _for_gpu
    lanes, per_group = divide(facts, count, max(length, 1), max(inner, 1) if across else 0)
    whole = -(-max(length, 1) // lanes)
    most = _CACHED if facts.kind == "cpu" else _REGISTERS
    is_by_outer = facts.kind == "cpu" and across and is_across is None and lanes == 1
    return Rows(count, length, inner, lanes, per_group, whole if whole <= most else _CHUNK, across, is_by_outer)


def _for_cpu(facts: DeviceFacts, count: int, length: int, inner: int) -> tuple[int, int]:
    """As many items as vector lanes: compilers vectorize over items."""
    most = power_within(facts.max_work_group)
    group = min(16, most)
    if not inner:
        lanes = min(group, power_above(length))
        return lanes, min(group // lanes, power_above(count))
    rows = min(group, power_above(inner))
    if length < 16 or count >= 4 * group * facts.compute_units:
        return 1, rows
    # For few rows, four vectors at a time hide the latency of dependent steps.
    return min(min(4 * group, most) // rows, power_above(length)), rows


def _for_gpu(facts: DeviceFacts, count: int, length: int, inner: int) -> tuple[int, int]:
    """Groups of 256 items that keep their elements in registers, and enough groups to fill the device."""
    group = min(256, power_within(facts.max_work_group))
    enough = facts.compute_units * group * 2
    if inner:
        # Neighbouring rows fill a memory transaction as far as possible.
        most, lanes = min(group // min(_COALESCED, power_above(inner), group), power_above(length)), 1
        at_rest = _REGISTERS
    else:
        most, lanes = min(group, power_above(length)), min(8, group, power_above(length))
        at_rest = 4
    while lanes < most and (length > lanes * at_rest or count * lanes < enough):
        lanes *= 2
    return lanes, min(group // lanes, power_above(count))


def power_above(value: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(value - 1, 0).bit_length()


def power_within(value: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (value.bit_length() - 1)


def launch_rows(
    b: LaunchPlanBuilder,
    rows: Rows,
    source: str,
    kernel: str,
    arguments: Sequence[Given],
    element_bytes: int = 4,
    *,
    even_of_nothing: bool = False,
) -> None:
    """Launch a kernel that writes each element of each row; without elements there is nothing to do, unless the kernel
    also writes something for each row: then it is launched with `even_of_nothing`. `element_bytes`: see
    `Rows.local_bytes`.
    """
    size: tuple[int, ...] = (rows.groups * rows.group, 1)
    if rows.is_by_outer:
        columns = -(-rows.inner // rows.per_group)
        size = (columns * rows.per_group, rows.count // rows.inner)
    size = size if rows.length or even_of_nothing else (0,)
    b.launch(source, kernel, arguments, size, (rows.group, 1), rows.local_bytes(element_bytes))
