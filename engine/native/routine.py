"""Control flow of the native core: loops and branches over plans, which run without Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.native.cancellation import CancelFlag
from engine.native.extension import _core
from engine.native.plan import Plan
from engine.startup import dataclass

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]

NO_VALUE = -1
"""An omitted value of a routine."""


@dataclass(frozen=True, slots=True)
class SequenceAxis:
    """How the elements of a sequence lie along one axis of a tensor.

    Each of `outer` blocks has `inner_bytes` of every element, one behind the other.
    """

    outer: int
    inner_bytes: int
    is_reversed: bool = False

    @classmethod
    def of(cls, element_shape: Sequence[int], itemsize: int, axis: int, *, is_reversed: bool = False) -> SequenceAxis:
        """The axis `axis` of a sequence whose elements have a shape."""
        outer = inner = 1
        for length in element_shape[:axis]:
            outer *= length
        for length in element_shape[axis:]:
            inner *= length
        return cls(outer, inner * itemsize, is_reversed)

    def _native(self) -> tuple[int, int, bool]:
        return self.outer, self.inner_bytes, self.is_reversed


class Routine:
    """Plans and control flow in order, over values of fixed sizes: the body of a loop or a branch. Immutable."""

    __slots__ = ("_routine",)

    def __init__(self, routine: _core.Routine) -> None:
        self._routine = routine


class Repetition:
    """A Loop or a Scan over a body, which is a routine. Immutable.

    The body of a Loop takes the number of the trip (i64), the condition (bool), the carried and the captured values,
    and returns the condition, the carried values and those to stack. That of a Scan takes the carried values, one
    element of each sequence and the captured values, and returns the carried values and those to stack. Raises
    PlanError unless the sizes fit.
    """

    __slots__ = ("_repetition",)

    def __init__(
        self,
        body: Routine,
        carried: int,
        stacks: Sequence[SequenceAxis],
        *,
        is_loop: bool,
        elements: Sequence[SequenceAxis] = (),
    ) -> None:
        self._repetition = _core.Repetition(
            body._routine, is_loop, carried, [axis._native() for axis in elements], [axis._native() for axis in stacks]
        )

    @property
    def is_unconditional(self) -> bool:
        """Whether the condition stays true once it is, so that the number of trips is known before the first one."""
        return self._repetition.is_unconditional


class RoutineBuilder:
    """Collects values and calls in the order of execution, checks them, and builds a routine. Not thread-safe.

    Values are numbers. All methods raise PlanError for arguments that do not fit, without changing anything.
    """

    __slots__ = ("_builder",)

    def __init__(self) -> None:
        self._builder = _core.RoutineBuilder()

    def add_input(self, nbytes: int, alignment: int) -> int:
        """Add an input; inputs come before all other values."""
        return self._builder.add_input(nbytes, alignment)

    def add_constant(self, array: Array) -> int:
        """Add an array that is read in place. It must not change afterwards."""
        return self._builder.add_constant(array)

    def add_plan(self, plan: Plan, inputs: Sequence[int]) -> list[int]:
        """Run a plan; returns its outputs."""
        return self._builder.add_plan(plan._plan, inputs)

    def add_repetition(
        self,
        repetition: Repetition,
        inputs: Sequence[int],
        *,
        count: int = NO_VALUE,
        condition: int = NO_VALUE,
        length: int = 0,
    ) -> list[int]:
        """Run a repetition with its carried values, sequences and captured values; returns the final carried values,
        then the stacked ones.

        `length` is the length of a Scan's sequences; a Loop has at most `count` trips, and none if `condition` is
        false.
        """
        return self._builder.add_repetition(repetition._repetition, inputs, count, condition, length)

    def add_choice(
        self,
        condition: int,
        then_branch: Routine,
        then_inputs: Sequence[int],
        else_branch: Routine,
        else_inputs: Sequence[int],
    ) -> list[int]:
        """Run one of two routines whose results have equal sizes; returns these."""
        return self._builder.add_choice(condition, then_branch._routine, then_inputs, else_branch._routine, else_inputs)

    def build(self, results: Sequence[int]) -> Routine:
        """Return the routine; the builder is empty afterwards."""
        return Routine(self._builder.build(results))


@dataclass(frozen=True, slots=True)
class RepetitionRun:
    """The result of a run.

    Attributes:
        trips: how many there were.
        grown: the bytes of each stacked result for which no array was given, of all trips; None for the others.
        profile: the nanoseconds of each step over all trips, for each plan in the order of calls, the first branch of a
            choice before the second; None without a profile.
    """

    trips: int
    grown: list[Array | None]
    profile: list[list[int]] | None


class RepetitionRunner:
    """Runs one repetition for any number of threads, each in memory of its own; `kept` of these are kept when idle."""

    __slots__ = ("_runner",)

    def __init__(self, repetition: Repetition, *, max_threads: int = 0, kept: int = 1) -> None:
        self._runner = _core.RepetitionRunner(repetition._repetition, max_threads, kept)

    def run(
        self,
        inputs: Sequence[Array],
        carried: Sequence[Array],
        stacked: Sequence[Array | None],
        cancel: CancelFlag,
        *,
        limit: int,
        condition: bool = True,
        profile: bool = False,
    ) -> RepetitionRun:
        """Run all trips, at most `limit`, which for a Scan is the length of the sequences.

        Fills `carried` with the final values, and `stacked`, which has None for a result that is stacked an unknown
        number of times. Releases the GIL. Raises InputError for arrays that do not fit and for invalid data, with the
        step's name, Cancelled before a trip or between two steps, and OutOfMemoryError if the stacked values do not fit
        into the available memory.
        """
        trips, grown, durations = self._runner.run(limit, condition, inputs, carried, stacked, cancel._flag, profile)
        return RepetitionRun(trips, grown, durations)
