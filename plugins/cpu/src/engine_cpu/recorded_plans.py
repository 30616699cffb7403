"""`RecordedPlans`: the plans for some lengths of a pattern, as the calls that build them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from engine.errors import InputError, OutOfMemoryError, PlanError
from engine.lowering import Decisions, InputLengths, LengthPattern, LengthVector, PreparedGraph, Shapes
from engine.startup import dataclass
from engine_cpu.choices import Choices
from engine_cpu.expansion import Expansion
from engine_cpu.families import Recording
from engine_cpu.fitting import Lengths, Misfit
from engine_cpu.lowering import LOWERINGS
from engine_cpu.repeated_layers import short_form
from engine_cpu.transform import KNOWN_PASSES

if TYPE_CHECKING:
    from engine_cpu.lowering import CpuGraph

_MIN_DECIDED_LENGTH: Final = 4
"""The lengths for which a family is decided at least: the best choice for 2 or 3 images may be slow for many."""


class Recorder(Protocol):
    """Lowers graphs of known lengths."""

    def recording(self, prepared: CpuGraph, choices: Choices, *, may_assume: bool = True) -> Recording:
        """The calls with which the plan of a graph is built."""


@dataclass(frozen=True, slots=True)
class PreparedShortForm:
    """The short form of a graph, prepared; see `ShortForm`."""

    prepared: CpuGraph
    inputs: tuple[int, ...]
    removed: int

    @classmethod
    def of(cls, prepared: CpuGraph) -> PreparedShortForm | None:
        """The short form of a prepared graph, if it has one."""
        made = short_form(prepared.graph)
        if made is None:
            return None
        return cls(PreparedGraph(made.graph, Decisions(LOWERINGS)), made.inputs, made.removed)


class RecordedPlans:
    """The recorded plans for the lengths of a pattern, which all follow the same choices.

    If the graph has a `short` form, that is lowered for each of the lengths, and the whole graph once for each form of
    the steps. `is_free`: no decision in the graph depends on size.
    """

    def __init__(
        self,
        prepared: CpuGraph,
        lengths: InputLengths,
        compiler: Recorder,
        pattern: LengthPattern,
        static: Shapes,
        short: PreparedShortForm | None,
        *,
        may_assume: bool,
        is_free: bool = False,
    ) -> None:
        self._prepared, self._lengths, self._compiler = prepared, lengths, compiler
        self._pattern, self._static, self._may_assume = pattern, static, may_assume
        self._is_free = is_free
        self._choices = Choices()
        self._made: dict[LengthVector, Recording | Misfit] = {}
        self._short = short
        self._longest: LengthVector = ()
        self._expansions: list[Expansion] = []
        """For each form of the steps, with the longest lengths first, whose constants are the longest."""

    @property
    def has_choices(self) -> bool:
        """Whether a decision depended on size."""
        return not self._choices.is_empty

    def decide(self, least: Lengths, most: Lengths, known: Sequence[tuple[LengthVector, Choices]]) -> None:
        """Choose for a range: as a plan in it that was used, or as one at its beginning."""
        self._longest = self._pattern.vector(most)
        if self._is_free or (known and all(choices.is_empty for _, choices in known)):
            return
        choices = self._of_range(least, most, known)
        if choices is not self._choices:
            self._choices, self._made, self._expansions = choices, {}, []

    def recording(self, vector: LengthVector) -> Recording:
        """The plan for the lengths of all groups. Raises `Misfit` if it cannot be compared with others."""
        if vector not in self._made:
            made = self._expanded(vector) or self._made.get(vector)
            self._made[vector] = made or self._recorded(vector, self._choices)
        found = self._made[vector]
        if isinstance(found, Misfit):
            raise found
        return found

    def _of_range(self, least: Lengths, most: Lengths, known: Sequence[tuple[LengthVector, Choices]]) -> Choices:
        for seen, choices in known:
            leads = None if choices.is_empty else self._pattern.leading(seen)
            if leads is not None and all(
                max(low, _MIN_DECIDED_LENGTH) <= x <= high for low, x, high in zip(least, leads, most, strict=True)
            ):
                return choices
        choices = Choices()
        try:
            vector = self._pattern.vector(tuple(max(low, _MIN_DECIDED_LENGTH) for low in least))
            if self._short is None or not self._decides_nothing(self._short, vector):
                self._recorded(vector, choices)
        except (PlanError, InputError):
            return Choices()  # the first plan decides
        return choices

    def _expanded(self, vector: LengthVector) -> Recording | None:
        """The plan as that of the short form has it; None if it must be lowered."""
        if self._short is None:
            return None
        try:
            if not self._expansions:
                self._compare(self._short, self._longest, self._short_at(self._short, self._longest, self._choices))
            if self._short is None or vector in self._made:
                return None
            short = self._short_at(self._short, vector, self._choices)
            for each in self._expansions:
                if (found := each.at(short)) is not None:
                    return found
            self._compare(self._short, vector, short)  # other steps than for the lengths so far
        except (Misfit, PlanError, InputError, OutOfMemoryError):
            # It is lowered, which shows whether the whole model has the same error.
            self._short = self._short if self._expansions else None
        return None

    def _compare(self, short: PreparedShortForm, vector: LengthVector, recording: Recording) -> None:
        """Lower the whole model, too; if its steps are not those of the short form, that is of no use."""
        whole = self._made[vector] = self._recorded(vector, self._choices)
        found = None if isinstance(whole, Misfit) else Expansion.of(whole, recording, short.removed)
        if found is None:
            self._short = None
        else:
            self._expansions.append(found)

    def _decides_nothing(self, short: PreparedShortForm, vector: LengthVector) -> bool:
        """Whether lowering the short form, and so any of the layers, makes no decision that depends on size."""
        choices = Choices()
        try:
            self._short_at(short, vector, choices)
        except Misfit:
            return False
        return choices.is_empty

    def _short_at(self, short: PreparedShortForm, vector: LengthVector, choices: Choices) -> Recording:
        shapes = self._lengths.shapes(self._static, vector)
        prepared = short.prepared.at(tuple(shapes[index] for index in short.inputs), KNOWN_PASSES)
        return self._compiler.recording(prepared, choices, may_assume=self._may_assume)

    def _recorded(self, vector: LengthVector, choices: Choices) -> Recording | Misfit:
        prepared = self._prepared.at(self._lengths.shapes(self._static, vector), KNOWN_PASSES)
        try:
            return self._compiler.recording(prepared, choices, may_assume=self._may_assume)
        except Misfit as e:
            return e
