"""`FamilyBuilder`: the families of a graph, each for a pattern and the widest range of lengths that has one form."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from engine.lowering import InputLengths, LengthPattern, LengthVector, Shapes
from engine.startup import dataclass
from engine_cpu.choices import Choices
from engine_cpu.families import FamilyProgram, Recording
from engine_cpu.fitting import Lengths, Misfit
from engine_cpu.program import Program
from engine_cpu.recorded_plans import PreparedShortForm, RecordedPlans

if TYPE_CHECKING:
    from engine.runtime.lifecycle import ForkSafeLock
    from engine_cpu.lowering import CpuGraph

logger = logging.getLogger("engine.cpu")

HALVINGS: Final = 8
"""The part of the range that a family must have at least."""

Range: TypeAlias = "tuple[Lengths, Lengths]"
"""The least and the greatest leading lengths."""


class ProgramBuilder(Protocol):
    """The builder of programs: the `Compiler` of a network, which documents the methods."""

    threads: int
    streams: int
    building: ForkSafeLock

    def program(self, prepared: CpuGraph, choices: Choices | None = None) -> Program:
        """A program for a graph of known lengths."""

    def in_place(self, prepared: CpuGraph, choices: Choices, *, may_assume: bool = True) -> FamilyProgram:
        """A program that appends to variables in place."""

    def recording(self, prepared: CpuGraph, choices: Choices, *, may_assume: bool = True) -> Recording:
        """The calls with which a program's plan is built."""


@dataclass(frozen=True, slots=True)
class NoFamily:
    """The reason for which lengths that match a pattern have a plan for each of them."""

    reason: str
    node: str

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}" if self.node else self.reason


class FamilyBuilder:
    """Builds the families of a graph. The caller holds the compiler's lock."""

    def __init__(self, prepared: CpuGraph, lengths: InputLengths, compiler: ProgramBuilder) -> None:
        self._prepared, self._lengths, self._compiler = prepared, lengths, compiler
        self._is_free = False
        """Whether a family of layers that repeat was made without a decision that depends on size."""

    def build(
        self,
        pattern: LengthPattern,
        ranges: Sequence[Range],
        static: Shapes,
        known: Sequence[tuple[LengthVector, Choices]],
        *,
        may_assume: bool,
    ) -> FamilyProgram | NoFamily:
        """The family for the first of the ranges that has one, or the reason of the first range.

        Args:
            pattern: which lengths vary.
            ranges: of the leading lengths.
            static: the shapes of the inputs, with 0 for unknown lengths.
            known: the decisions for plans of single lengths, most recently used first.
            may_assume: see `Programs.get`.
        """
        reasons: list[NoFamily] = []
        plans = RecordedPlans(
            self._prepared, self._lengths, self._compiler, pattern, static, self._short,
            may_assume=may_assume, is_free=self._is_free,
        )  # fmt: skip
        for least, most in dict.fromkeys(ranges):
            plans.decide(least, most, known)
            made = self._fitted(pattern, least, most, plans)
            if isinstance(made, FamilyProgram):
                self._is_free = self._short is not None and not plans.has_choices
                return made
            reasons.append(made)
        logger.info("%s: a plan for each length: %s", self._prepared.graph.name, reasons[0])
        return reasons[0]

    @cached_property
    def _short(self) -> PreparedShortForm | None:
        return PreparedShortForm.of(self._prepared)

    def _fitted(
        self, pattern: LengthPattern, least: Lengths, most: Lengths, plans: RecordedPlans
    ) -> FamilyProgram | NoFamily:
        """The family for a range of lengths, or for the beginning of the range.

        Tables of positions, and operators that are computed in other ways for great lengths, may end it.
        """
        high, compiler = most, self._compiler
        while True:
            try:
                return FamilyProgram(pattern, least, high, plans.recording, compiler.threads, compiler.streams)
            except Misfit as e:
                high = tuple(length // 2 if index in e.ends else length for index, length in enumerate(high))
                if not e.ends or any(a * HALVINGS < b for a, b in zip(high, most, strict=True)):
                    return NoFamily(e.reason, e.node)
