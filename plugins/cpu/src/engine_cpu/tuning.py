"""Choice among several kernels for a step: the CPU part of `engine.lowering.tuning`.

Candidates are timed with cold caches, as in a network.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.ir import Node
from engine.lowering.tuning import Times, Timing, Tuner, time_in_turns
from engine.native import Attribute, Context, Plan, PlanBuilder, cpu_features, empty_aligned
from engine.startup import dataclass

Array = np.ndarray[Any, np.dtype[Any]]

# What measuring saves on average, as a share of a step's time: over eight networks, 0.15 s of it saved 0 to 1.5 %.
_SAVED: Final = 0.01
# Filling the caches between two runs takes about as long on CPUs with 1 or 2 MB of second-level cache.
_EVICTION_SECONDS: Final = 1e-3
_ROUNDS: Final = Timing().rounds + 1


@dataclass(frozen=True, slots=True)
class Effort:
    """How long one compilation may measure.

    `inferences`: a problem is measured only if that can be expected to save more time than it takes within this number
    of inferences.
    """

    seconds: float
    inferences: float


DEFAULT_L2_BYTES: Final = 1 << 20
"""The second-level cache for which kernels are chosen unless TARGET says another: one blob serves all CPUs of a set."""
EFFORTS: Final = {"none": Effort(0.0, 0.0), "quick": Effort(0.15, 1000.0), "full": Effort(60.0, math.inf)}
"""The efforts by the values of COMPILE_EFFORT."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a step.

    `name` identifies the candidate within its problem, and is stable across versions; `inputs` and `outputs` are the
    sizes in bytes of the step's operands, for measuring.
    """

    name: str
    kernel: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


class Candidates(Sequence[Candidate]):
    """The candidates for a problem, the default first; any of them can be found by its name."""

    @abstractmethod
    def named(self, name: str) -> Candidate | None:
        """The candidate of this name, which may be one that is not worth measuring; None if there is none."""

    @abstractmethod
    def estimate(self, candidate: Candidate) -> float:
        """The estimated core cycles of a candidate, at least 1."""


@dataclass(slots=True)
class CpuTuner(Tuner):
    """Chooses the kernels of one network, which is compiled for a number of threads.

    `inferences`: see `Effort`. `is_accurate`: whether kernels with larger rounding errors than others are left out.
    `saves_memory`: whether kernels whose weights take more than the model's are left out.
    `l2_bytes`: the second-level cache of a core.
    """

    threads: int
    inferences: float = math.inf
    is_accurate: bool = False
    saves_memory: bool = False
    l2_bytes: int = DEFAULT_L2_BYTES

    def choose(
        self, node: Node, key: str, candidates: Sequence[Candidate], isa: str, seconds: float = 0.0, uses: int = 1
    ) -> Candidate:
        """The choice for `node`. Raises `PlanError` if a candidate cannot be built.

        `seconds` estimates one run of the step; `uses` is how many equal steps the network has.
        """

        def measure(deadline: float) -> Times | None:
            if not self._pays(len(candidates), seconds, uses):
                return None
            return _measure(candidates, isa, self.threads, deadline)

        return self.choose_candidate(f"{key}|{self.threads} threads|{isa}", candidates, measure)

    def _pays(self, candidates: int, seconds: float, uses: int) -> bool:
        """Whether measuring can be expected to save more time than it takes, within `inferences`."""
        spent = candidates * _ROUNDS * (seconds + _EVICTION_SECONDS)
        return self.inferences * _SAVED * seconds * uses > spent or math.isinf(self.inferences)


def _measure(candidates: Sequence[Candidate], isa: str, threads: int, deadline: float) -> Times | None:
    """The median nanoseconds of each candidate; None if the deadline passes before all rounds are done."""
    memory = _Memory()
    contexts = Context.in_turns([_plan(candidate, isa) for candidate in candidates], threads)
    trials = [_Trial(context, c, memory) for context, c in zip(contexts, candidates, strict=True)]
    for trial in trials:
        trial.run()  # pages are faulted in, threads wake up
        if time.perf_counter() > deadline:
            return None
    return time_in_turns({str(c): trial.run for c, trial in zip(candidates, trials, strict=True)}, deadline)


class _Memory:
    """Arrays shared by trials that run in turns: one for all that need the same size at the same position."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, int, int], Array] = {}

    def arrays(self, role: str, sizes: Sequence[int]) -> list[Array]:
        """An array of each size, all distinct."""
        keys = [(role, place, nbytes) for place, nbytes in enumerate(sizes)]
        for key in keys:
            if key not in self._arrays:
                self._arrays[key] = _filled(key[2])
        return [self._arrays[key] for key in keys]


def _plan(candidate: Candidate, isa: str) -> Plan:
    """A plan with a single step."""
    builder = PlanBuilder(isa=isa)
    inputs = [builder.add_input(nbytes) for nbytes in candidate.inputs]
    outputs = [builder.add_output(nbytes) for nbytes in candidate.outputs]
    builder.add_step(candidate.kernel, inputs, outputs, candidate.attributes)
    return builder.build()


class _Trial:
    """A candidate with the plan and memory to run it."""

    def __init__(self, context: Context, candidate: Candidate, memory: _Memory) -> None:
        self._context = context
        self._inputs = memory.arrays("input", candidate.inputs)
        self._outputs = memory.arrays("output", candidate.outputs)
        self._source, self._target = memory.arrays("eviction", [2 * max(cpu_features().l2_bytes, 1 << 20)] * 2)

    def run(self) -> int:
        """The nanoseconds of one run."""
        np.copyto(self._target, self._source)  # evicts the data of the last trial from per-core caches
        durations = self._context.run(self._inputs, self._outputs, profile=True)
        assert durations is not None
        return sum(durations)


def _filled(nbytes: int) -> Array:
    """Page-aligned memory, filled with normal numbers: equal ones, so that no kernel finds their range too large."""
    block = empty_aligned(nbytes)
    block.fill(0x3C)  # about 0.01 in f32 and in bf16
    return block
