"""`Programs`: the programs of a network with dynamic shapes, for single sets of shapes and for lengths that vary."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from engine.errors import OutOfMemoryError
from engine.lowering import (
    InputLengths,
    LengthPattern,
    LengthVector,
    PlanCache,
    Shapes,
    irregular_node,
    pattern_between,
    pattern_of_growth,
    pattern_of_sequences,
    shapes_of,
)
from engine.startup import paused_collector
from engine_cpu.choices import Choices
from engine_cpu.families import BoundFamily, FamilyProgram
from engine_cpu.family_builder import HALVINGS, FamilyBuilder, NoFamily, ProgramBuilder, Range
from engine_cpu.fitting import Misfit
from engine_cpu.program import Program
from engine_cpu.segments.segment import Value
from engine_cpu.transform import KNOWN_PASSES
from engine_cpu.weights import OverLimit

if TYPE_CHECKING:
    from engine_cpu.lowering import CpuGraph

logger = logging.getLogger("engine.cpu")

_REMEMBERED: Final = 16
"""The lengths of this many inferences without a program of a family are compared with the next one's."""
_MIN_RANGE_END: Final = 64
_MIN_PAST_END: Final = 4096
"""The smallest upper ends of the ranges of a family, for a length and for the past."""
_IRREGULAR: Final = "its result for lengths has no form that a few of them would show"

FamilyKey: TypeAlias = "tuple[LengthPattern, Range, Range, Shapes, bool]"
"""The pattern, the ranges that are tried, the shapes with 0 for unknown lengths, and whether plans may assume."""


class ProgramCheck(Protocol):
    """Decides whether programs may be used."""

    def require(self, program: Program | BoundFamily, shapes: Shapes) -> None:
        """Raise an error unless a program may be used for inputs of these shapes."""

    def over_limit(self, shapes: Shapes) -> Exception:
        """The error for a program that could not be made, since weights reached their limit."""


class Programs:
    """Programs by the shapes of the inputs; built when they are first needed. Thread-safe.

    The first shapes have a program of their own. When one or two lengths have changed, or a past has grown, a family is
    built for all the lengths that follow from those that changed; where the plans for several lengths do not have one
    form, each set of shapes has its program.
    """

    def __init__(self, prepared: CpuGraph, compiler: ProgramBuilder, size: int) -> None:
        """Programs of a graph; at most `size` for single shapes, and twice as many families, are kept."""
        self._prepared, self._compiler = prepared, compiler
        self.lengths = InputLengths(prepared.graph)
        """The unknown lengths of the inputs."""
        self._builder = FamilyBuilder(prepared, self.lengths, compiler)
        irregular = irregular_node(prepared.graph)
        self.why_none = "" if irregular is None else f"{irregular}: {_IRREGULAR}"
        """Why there are no families at all; empty if there may be some."""
        self._exact: PlanCache[tuple[Shapes, bool], Program | FamilyProgram] = PlanCache(
            self._built, size, building=compiler.building
        )
        # Unsuccessful attempts also take places.
        self._families: PlanCache[FamilyKey, FamilyProgram | NoFamily] = PlanCache(
            self._built_family, 2 * size, building=compiler.building
        )
        self._seen: deque[tuple[LengthVector, Choices | None]] = deque(maxlen=_REMEMBERED)
        self.last: Program | BoundFamily | None = None
        """The program used last."""
        self.budget: ProgramCheck | None = None
        """Checks each program before it is used."""

    def release(self) -> None:
        """Drop all programs; they are built again when they are needed."""
        self.last = None
        self._exact.clear()
        self._families.clear()

    def get(self, inputs: Sequence[Value], *, may_assume: bool = True) -> Program | BoundFamily:
        """The program for these inputs. Raises `InputError` if the model cannot take them.

        With `may_assume`, it may fail with an `InputError` if the model does not append to variables in place, although
        it can; see `InPlace.is_assumed`.
        """
        self.last = self._found(inputs, may_assume)
        return self.last

    def prepare(self, shapes: Shapes) -> None:
        """Build what inputs of these shapes need, and if possible those of other numbers of tokens and sequences."""
        vector = self.lengths.vector(shapes) if self.lengths.is_complete else None
        if vector is not None and not self.why_none and self._prepared.graph.variables:
            if self._known(vector, may_assume=True) is not None:
                return
            pattern = pattern_of_sequences(vector, self.lengths.sequences)
            if pattern is not None and self._made(pattern, vector, shapes, may_assume=True) is not None:
                return
        self._of_shapes(shapes, may_assume=True)

    def for_shapes(self, shapes: Shapes) -> Program | BoundFamily:
        """The program that the next inference would have with inputs of these shapes.

        A family that it would make is kept, and a program for these shapes alone is not.
        """
        try:
            return self._for_shapes(shapes)
        except OverLimit as e:
            assert self.budget is not None
            raise self.budget.over_limit(shapes) from e

    def _for_shapes(self, shapes: Shapes) -> Program | BoundFamily:
        known = self._exact.cached((shapes, True))
        if known is not None:
            return _bound(known)
        vector = self.lengths.vector(shapes) if self.lengths.is_complete else None
        if vector is not None and not self.why_none:
            if (family := self._known(vector, may_assume=True)) is not None:
                return family
            for pattern in self._patterns(vector):
                made = self._families.get(self._key(pattern, vector, shapes, may_assume=True))
                if isinstance(made, FamilyProgram) and (family := made.at(vector)) is not None:
                    return family
        with self._compiler.building:
            return _bound(self._built((shapes, True)))

    def _found(self, inputs: Sequence[Value], may_assume: bool) -> Program | BoundFamily:
        shapes = shapes_of(inputs)
        if self.budget is None:
            return self._of_shapes(shapes, may_assume)
        try:
            found = self._of_shapes(shapes, may_assume)
        except OverLimit as e:
            raise self.budget.over_limit(shapes) from e
        self.budget.require(found, shapes)
        return found

    def _of_shapes(self, shapes: Shapes, may_assume: bool) -> Program | BoundFamily:
        known = self._exact.cached((shapes, may_assume))
        if known is not None:
            return _bound(known)
        vector = self.lengths.vector(shapes) if self.lengths.is_complete else None
        if vector is not None and not self.why_none:
            family = self._of_family(vector, shapes, may_assume)
            if family is not None:
                return family
        if vector is not None and all(vector != seen for seen, _ in self._seen.copy()):
            self._seen.append((vector, Choices()))
        return _bound(self._exact.get((shapes, may_assume)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why lengths that varied have a program for each set of shapes."""
        if self.why_none:
            return () if len(self._seen) < 2 else (self.why_none,)
        return tuple(str(each) for each in self.families if isinstance(each, NoFamily))

    @property
    def families(self) -> list[FamilyProgram | NoFamily]:
        """The families, the most recently used one last, and why there is none where one was tried."""
        return self._families.plans()

    def family(self, pattern: LengthPattern, vector: LengthVector) -> FamilyProgram | NoFamily:
        """The family that inferences with these lengths would have, which is not kept."""
        key = self._key(pattern, vector, self.shapes(vector), may_assume=True)
        with self._compiler.building:
            return self._built_family(key)

    def check(self, vector: LengthVector) -> None:
        """Raise `InputError` if the model cannot take inputs of these lengths."""
        self._prepared.at(self.shapes(vector), KNOWN_PASSES)

    def shapes(self, vector: LengthVector) -> Shapes:
        """The shapes of inputs of these lengths."""
        known = tuple(
            tuple(dim.min if dim.is_static else 0 for dim in each.output(0).shape)
            for each in self._prepared.graph.parameters
        )
        return self.lengths.shapes(known, vector)

    def plans(self) -> list[Program | FamilyProgram]:
        """The programs for single sets of shapes, the most recently used one last."""
        return self._exact.plans()

    def _of_family(self, vector: LengthVector, shapes: Shapes, may_assume: bool) -> BoundFamily | None:
        if (found := self._known(vector, may_assume)) is not None:
            return found
        for pattern in self._patterns(vector):
            if (found := self._made(pattern, vector, shapes, may_assume)) is not None:
                return found
        return None

    def _known(self, vector: LengthVector, may_assume: bool) -> BoundFamily | None:
        """The program of a family that exists."""
        for index, family in enumerate(reversed(self._families.plans())):
            if isinstance(family, FamilyProgram) and (may_assume or not family.is_assuming):
                found = family.at(vector)
                if found is not None:
                    if index:
                        self._families.touch(family)
                    return found
        return None

    def _made(
        self, pattern: LengthPattern, vector: LengthVector, shapes: Shapes, may_assume: bool
    ) -> BoundFamily | None:
        """The program of the family of a pattern, if there is one for these lengths."""
        made = self._families.get(self._key(pattern, vector, shapes, may_assume))
        found = made.at(vector) if isinstance(made, FamilyProgram) else None
        if found is not None:
            self._seen.append((vector, None))
        return found

    def _patterns(self, vector: LengthVector) -> list[LengthPattern]:
        """The patterns for which a family of these lengths is worthwhile."""
        found = [pattern_between(seen, vector) for seen, _ in reversed(self._seen.copy())]
        patterns = [pattern for pattern in found if pattern is not None]
        if self.lengths.has_past and vector[0] > 0:
            several = pattern_of_sequences(vector, self.lengths.sequences)
            if several is not None:
                # Two inferences after the same past do not show that the mask grows with it.
                patterns = [several if each.leads == several.leads else each for each in patterns]
                # Numbers of new tokens are expected to vary; those of sequences, once they have.
                if self.lengths.sequences.isdisjoint(several.leads):
                    patterns.append(several)
            patterns.append(pattern_of_growth(vector))
        return list(dict.fromkeys(patterns))

    def _key(self, pattern: LengthPattern, vector: LengthVector, shapes: Shapes, may_assume: bool) -> FamilyKey:
        leads = pattern.leading(vector)
        assert leads is not None
        is_past = [self.lengths.has_past and group == 0 for group in pattern.leads]
        least = tuple(1 if past else 2 for past in is_past)
        # Where short lengths differ from long ones, as with a window of keys, a family of long ones is tried.
        near = tuple(max(low, 1 << length.bit_length() - 1) for low, length in zip(least, leads, strict=True))
        most = tuple(
            self._most_past(length) if past else max(_MIN_RANGE_END, HALVINGS << (length - 1).bit_length())
            for past, length in zip(is_past, leads, strict=True)
        )
        static = self.lengths.shapes(shapes, (0,) * self.lengths.count)
        return pattern, (least, most), (near, most), static, may_assume

    def _most_past(self, length: int) -> int:
        bound = self.lengths.bound
        if bound is None:
            return max(_MIN_PAST_END, 2 << (length - 1).bit_length())
        return max(bound - 1, length)  # an inference appends a position or more

    def _choices_at(self, shapes: Shapes) -> Choices:
        """The table for the decisions for these shapes, which families follow."""
        vector = self.lengths.vector(shapes) if self.lengths.is_complete else None
        kept = next((choices for seen, choices in self._seen.copy() if seen == vector), None)
        return kept or Choices()

    def _built(self, key: tuple[Shapes, bool]) -> Program | FamilyProgram:
        shapes, may_assume = key
        choices = self._choices_at(shapes)
        with paused_collector(), self._prepared.compilation():  # built during an inference
            prepared = self._prepared.at(shapes, KNOWN_PASSES)
            if self.lengths.has_past:
                try:
                    return self._compiler.in_place(prepared, choices, may_assume=may_assume)
                except Misfit as e:
                    logger.debug("%s: variables are copied: %s", self._prepared.graph.name, e)
            return self._compiler.program(prepared, choices)

    def _built_family(self, key: FamilyKey) -> FamilyProgram | NoFamily:
        pattern, *ranges, static, may_assume = key
        known = [(seen, choices) for seen, choices in reversed(self._seen.copy()) if choices is not None]
        with paused_collector(), self._prepared.compilation():
            try:
                return self._builder.build(pattern, ranges, static, known, may_assume=may_assume)
            except (OutOfMemoryError, OverLimit) as e:
                return NoFamily(str(e), "")  # the longest lengths of the range do not fit, but those given may


def _bound(program: Program | FamilyProgram) -> Program | BoundFamily:
    return BoundFamily(program, ()) if isinstance(program, FamilyProgram) else program
