"""`Plan`: steps of the native core that are ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from engine.ir.mapped import is_mapped
from engine.startup import dataclass

if TYPE_CHECKING:
    import numpy as np

    from engine.native.extension import _core

Span: TypeAlias = tuple[int, int]
"""The address of the first byte of an array, and the one behind its last byte."""
_LINE: Final = 64


def span_of(array: np.ndarray[Any, Any]) -> Span:
    """The addresses of a contiguous array."""
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes


@dataclass(slots=True)
class ConstantSpans:
    """Where constants are: those in the process's own memory, and those in mapped files."""

    own: list[Span] = field(default_factory=list)
    mapped: list[Span] = field(default_factory=list)

    def add(self, array: np.ndarray[Any, Any]) -> None:
        """Add the addresses of a contiguous array."""
        (self.mapped if is_mapped(array) else self.own).append(span_of(array))

    def extend(self, other: ConstantSpans) -> None:
        """Add the addresses of others."""
        self.own += other.own
        self.mapped += other.mapped


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step of a plan: its name, its kernel, the kernel's instruction set, and its cost."""

    name: str
    kernel: str
    isa: str
    phases: int
    work: float
    """Floating-point operations; 0 if the kernel does not count them."""


@dataclass(slots=True)
class ArenaUsage:
    """Which steps of a plan use which memory of its arena: the size of each buffer, the buffer of each view, and the
    numbers that each step reads and writes."""

    sizes: dict[int, int] = field(default_factory=dict)
    roots: dict[int, int] = field(default_factory=dict)
    steps: list[tuple[int, ...]] = field(default_factory=list)

    def live_bytes(self) -> tuple[int, ...]:
        """For each step, the bytes of the buffers that were written and are still needed. Linear."""
        spans: dict[int, tuple[int, int]] = {}
        for number, used in enumerate(self.steps):
            for each in used:
                buffer = self.roots.get(each, each)
                if buffer in self.sizes:
                    spans[buffer] = spans.get(buffer, (number, 0))[0], number
        changes = [0] * (len(self.steps) + 1)
        for buffer, (first, last) in spans.items():
            changes[first] += self.sizes[buffer]
            changes[last + 1] -= self.sizes[buffer]
        return tuple(accumulate(changes))[: len(self.steps)]


class Plan:
    """Steps that are laid out and ready to run. Immutable: any number of contexts, in any threads, may share it."""

    __slots__ = ("_live", "_plan", "_usage", "constants")

    def __init__(
        self,
        plan: _core.Plan,
        usage: ArenaUsage | None = None,
        constants: ConstantSpans | None = None,
        live_bytes: Sequence[int] | None = None,
    ) -> None:
        self._plan = plan
        self.constants = constants or ConstantSpans()
        """Where the arrays are that steps read in place."""
        self._usage = usage
        self._live = live_bytes

    @property
    def inputs(self) -> tuple[int, ...]:
        """The bytes of each input, in the order in which they were added."""
        return self._plan.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """The bytes of each output, in the order in which they were added."""
        return self._plan.outputs

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """The steps, in the order in which they were added."""
        return tuple(StepInfo(*step) for step in self._plan.steps)

    @property
    def live_bytes(self) -> Sequence[int]:
        """For each step, the bytes of the arena that it and later steps need; empty for the plan of a family.

        The arena may be larger: steps without a barrier between them run at the same time.
        """
        if self._live is None:
            self._live = () if self._usage is None else self._usage.live_bytes()
            self._usage = None
        return self._live

    @property
    def arena_bytes(self) -> int:
        """The memory of each context for intermediate results."""
        return self._plan.arena_bytes

    @property
    def naive_bytes(self) -> int:
        """The size of the arena if no two buffers shared memory."""
        return self._plan.naive_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """The most bytes that are alive at one time: no arena can be smaller."""
        return self._plan.lower_bound_bytes

    @property
    def scratch_bytes(self) -> int:
        """The memory for each worker of a context."""
        return self._plan.scratch_bytes

    def all_scratch_bytes(self, max_threads: int = 0) -> int:
        """The memory for all workers of a context with `max_threads`: its `memory_bytes` without the arena."""
        from engine.native.extension import _core

        workers = min(max_threads or _core.cores(), _core.cores(), self.max_workers)
        # As in csrc/executor/context.cpp: workers are on different lines, and at different offsets within pages.
        return 0 if self.scratch_bytes == 0 else (self.scratch_bytes + -self.scratch_bytes % _LINE + _LINE) * workers

    @property
    def max_workers(self) -> int:
        """The most workers that any step can use."""
        return self._plan.max_workers

    @property
    def barriers(self) -> int:
        """How often all workers wait for each other in a run."""
        return self._plan.barriers

    @property
    def isa(self) -> str:
        """The highest instruction set of the plan's kernels."""
        return self._plan.isa

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The family and instruction set of the kernels that its steps are made of; empty for the plan of a family."""
        return tuple(self._plan.rows)
