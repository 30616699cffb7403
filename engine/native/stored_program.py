"""`StoredProgram`: the program of a blob, whose plans the native core builds from its JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from engine.ir.mapped import is_mapped
from engine.native.extension import _core
from engine.native.plan import ConstantSpans, Plan, Span, span_of
from engine.startup import dataclass

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

StoredForm: TypeAlias = "tuple[str, Sequence[int]]"
"""The name of an element type, and a shape."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A plan, the slots that it reads and writes, its interface, the friendly name and the operator of the node of each
    step, and the node and the bytes of the largest value.
    """

    plan: Plan
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inputs: Sequence[StoredForm]
    outputs: Sequence[StoredForm]
    step_nodes: tuple[tuple[str, str], ...]
    largest: str
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """Plans in the order of their execution over a table of values, whose first slots are the inputs.

    `constants` are slots, the types and the bytes of their values; `outputs` are slots.
    """

    constants: Sequence[tuple[int, StoredForm, Array]]
    segments: Sequence[StoredSegment]
    outputs: tuple[int, ...]


class StoredProgram:
    """The program of a blob before its plans are built.

    Raises `PlanError` for a text that `engine_cpu.stored_program` has not written.
    """

    __slots__ = ("_program",)

    def __init__(self, text: bytes | memoryview) -> None:
        self._program = _core.StoredProgram(text)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The operations, those that the reference evaluator runs, and the work of each."""
        nodes, reference_nodes, work, reference_work = self._program.counts
        return nodes, reference_nodes, work, reference_work

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The kernels of its plans: their families, and the instruction sets."""
        return tuple(self._program.rows)

    def missing_rows(self) -> list[str]:
        """Return those that this build leaves out, such as "gemm for avx512"."""
        return self._program.missing_rows()

    def build(
        self,
        inputs: Sequence[StoredForm],
        outputs: Sequence[StoredForm],
        isa: str,
        find_section: Callable[[str], memoryview],
    ) -> BuiltProgram:
        """Build the plans. `inputs` and `outputs` are the network's; the program has to fit them.

        `find_section` returns the bytes of a section, which are used in place if they are aligned to 64. Raises
        `PlanError`, `OutOfMemoryError`, and what `find_section` raises.
        """
        mapped: list[Span] = []

        def find(name: str) -> memoryview:
            content = np.frombuffer(find_section(name), np.uint8)
            if is_mapped(content):
                mapped.append(span_of(content))
            return content.data

        constants, segments, slots = self._program.build(inputs, outputs, isa, find)
        return BuiltProgram(
            [(slot, (name, shape), data) for slot, name, shape, data in constants],
            [StoredSegment(Plan(plan, None, _divided(read, mapped), live), *rest)
             for plan, live, read, *rest in segments],
            slots,
        )  # fmt: skip


def _divided(read: Sequence[Span], mapped: Sequence[Span]) -> ConstantSpans:
    """Constants in mapped sections, and others."""
    found = ConstantSpans()
    for start, end in read:
        is_inside = any(first <= start and end <= last for first, last in mapped)
        (found.mapped if is_inside else found.own).append((start, end))
    return found
