"""`Segment`: the common interface of all parts that a program runs.

This module does not depend on a graph: a blob stores segments, and runs them where the compiling modules are missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.native import CancelFlag, Plan
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine_cpu.recording import PlanCalls
    from engine_cpu.segments.routine_draft import RoutineDraft

Value = Any
"""A numpy array, a list of values, a dict, or None for an empty optional."""
Array = np.ndarray[Any, np.dtype[Any]]


class Inference(Protocol):
    """The context that one inference passes to its segments."""

    cancel: CancelFlag
    is_profiling: bool

    def check_cancelled(self) -> None:
        """Raise if the inference should stop."""

    def record_node(
        self,
        name: str,
        op_type: str,
        status: str,
        start_ns: int,
        end_ns: int,
        *,
        kernel: str = "",
        live_bytes: int | None = None,
    ) -> None:
        """Record that a node ran from `start_ns` to `end_ns`, for the profile of the inference."""


@dataclass(frozen=True, slots=True)
class PlanForm:
    """A plan with the parts of the graph that running it needs: the numpy type and the shape of each input and output,
    the friendly name and the operator of the node of each step, and the node and the bytes of the largest value.
    """

    plan: Plan
    inputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    outputs: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    step_nodes: tuple[tuple[str, str], ...]
    largest: str
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The bytes that one run takes, and keeps for later ones.

    Attributes:
        arena: the arenas of plans.
        scratch: the memory of kernels' workers, and values outside the arenas.
        unknown: the operations whose results have sizes that only an inference knows.
    """

    arena: int = 0
    scratch: int = 0
    unknown: tuple[str, ...] = ()

    @classmethod
    def of_plans(cls, plans: Sequence[Plan], threads: int) -> RunMemory:
        """The memory of plans that each have a context."""
        return cls(sum(plan.arena_bytes for plan in plans), sum(plan.all_scratch_bytes(threads) for plan in plans))

    @classmethod
    def in_turns(cls, plans: Sequence[Plan], threads: int) -> RunMemory:
        """The memory of plans whose contexts share it."""
        return cls(
            max((plan.arena_bytes for plan in plans), default=0),
            max((plan.all_scratch_bytes(threads) for plan in plans), default=0),
        )

    def __add__(self, other: RunMemory) -> RunMemory:
        return RunMemory(self.arena + other.arena, self.scratch + other.scratch, self.unknown + other.unknown)


class Segment(ABC):
    """Compiled nodes that run together; a program runs its segments in turn.

    Shared by requests, so immutable while it runs.
    """

    title = ""
    """The operator and the name of the node that computes its results, for messages; "" for several nodes."""
    why_not_stored = "a part of it is not planned before an inference"
    """Why a blob cannot have the program, as a clause; "" if it can."""
    form: PlanForm | None = None
    """Its plan, if it is one."""
    calls: PlanCalls | None = None
    """The calls that build its plan, with which a blob stores it."""

    @abstractmethod
    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        """Run; returns the outputs; outputs with a target are written there."""

    def run_new(self, inputs: Sequence[Value], inference: Inference) -> list[Value]:
        """Run without a profile; returns new values."""
        return list(self.run(inputs, (), inference))

    def bind(self, index: Mapping[Any, int], current: list[Value], given: object) -> list[Value] | None:
        """The inputs of a run that only brings other arrays, `given`; None if they have to be checked one by one."""
        return None

    def with_own_memory(self) -> Segment:
        """The segment for another network, which has the same plans, and separate memory for runs."""
        return self

    def release(self) -> None:  # noqa: B027, most segments keep none
        """Free memory that is kept for later runs. Runs may be under way."""

    def output_shapes(self) -> Sequence[tuple[int, ...]]:
        """The shape of each output if they support targets, which only outputs of plans do; empty otherwise."""
        return ()

    def add_to(self, draft: RoutineDraft, reads: Sequence[int]) -> Sequence[int] | None:
        """Add it to a routine; returns the values that it writes, or None if it does not run without Python."""
        return None

    def memory(self) -> RunMemory:
        """What a run takes, without the outputs."""
        return RunMemory()

    @property
    def plans(self) -> list[Plan]:
        """The plans that it runs, as far as they exist before an inference."""
        return []
