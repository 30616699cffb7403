"""Which of several kernels runs a step: the default, or what was measured to be faster on this machine.

Candidates of one problem are timed in turns, so that what disturbs the machine meets all of them, from buffers that
the caches do not hold, as in a network; the default gives way only to what is clearly faster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine.ir import Node
from engine.native import Attribute, Context, Plan, PlanBuilder, cpu_features, empty_aligned
from engine_cpu.tuning_cache import TuningCache

Array = np.ndarray[Any, np.dtype[Any]]

BUDGETS: Final = {"none": 0.0, "quick": 0.15, "full": 60.0}
"""Seconds of measuring a network may take, by COMPILE_EFFORT."""
_ROUNDS: Final = 5
_MARGIN: Final = 0.95
"""Two equal kernels differ by more than this in a good part of single shots, and seldom in medians of rounds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a step.

    `name` tells candidates of one problem apart, and stays the same from version to version; `inputs` and `outputs`
    are the bytes of the step's operands, so that it can be measured.
    """

    name: str
    kernel: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True)
class Tuner:
    """Chooses among candidates for one network.

    `choices` are by problem, as a blob stores them; known ones, also from `cache`, are taken without measuring.
    """

    threads: int
    budget: float = 0.0
    choices: dict[str, str] = field(default_factory=dict)
    cache: TuningCache | None = None

    def choose(self, node: Node, key: str, candidates: Sequence[Candidate], isa: str) -> Candidate:
        """The choice for `node`. Raises `PlanError` where a candidate cannot be built."""
        if len(candidates) == 1:
            return candidates[0]
        problem = f"{key}|{self.threads} threads|{isa}"
        by_name = {candidate.name: candidate for candidate in candidates}
        known = self.choices.get(problem) or (self.cache.get(problem) if self.cache else None)
        if known in by_name:
            self.choices[problem] = known
            return by_name[known]
        if self.budget <= 0.0:
            return candidates[0]
        start = time.perf_counter()
        times = _measure(candidates, isa, self.threads, limit=self.budget)
        self.budget -= time.perf_counter() - start
        if times is None:
            return candidates[0]
        best = min(range(len(candidates)), key=times.__getitem__)
        chosen = candidates[best if times[best] < _MARGIN * times[0] else 0]
        self.choices[problem] = chosen.name
        if self.cache is not None:
            self.cache.put(problem, chosen.name)
        return chosen


def _measure(candidates: Sequence[Candidate], isa: str, threads: int, limit: float) -> list[float] | None:
    """The median nanoseconds of each candidate; None where the time does not suffice for all rounds."""
    deadline = time.perf_counter() + limit
    memory = _Memory()
    contexts = Context.in_turns([_plan(candidate, isa) for candidate in candidates], threads)
    trials = [_Trial(context, c, memory) for context, c in zip(contexts, candidates, strict=True)]
    source, target = memory.arrays("eviction", [2 * max(cpu_features().l2_bytes, 1 << 20)] * 2)
    times: list[list[int]] = [[] for _ in trials]
    for trial in trials:
        trial.run()  # pages come in, threads wake up
        if time.perf_counter() > deadline:
            return None
    for _ in range(_ROUNDS):
        for index, trial in enumerate(trials):
            np.copyto(target, source)  # pushes what the last trial left out of the caches of single cores
            times[index].append(trial.run())
            if time.perf_counter() > deadline:
                return None
    return [sorted(each)[_ROUNDS // 2] for each in times]


class _Memory:
    """Arrays for trials that take turns: one for all that need as many bytes in the same place."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, int, int], Array] = {}

    def arrays(self, role: str, sizes: Sequence[int]) -> list[Array]:
        """An array of each size, all apart."""
        keys = [(role, place, nbytes) for place, nbytes in enumerate(sizes)]
        for key in keys:
            if key not in self._arrays:
                self._arrays[key] = _filled(key[2])
        return [self._arrays[key] for key in keys]


def _plan(candidate: Candidate, isa: str) -> Plan:
    """A plan of the one step."""
    builder = PlanBuilder(isa=isa)
    inputs = [builder.add_input(nbytes) for nbytes in candidate.inputs]
    outputs = [builder.add_output(nbytes) for nbytes in candidate.outputs]
    builder.add_step(candidate.kernel, inputs, outputs, candidate.attributes)
    return builder.build()


class _Trial:
    """A candidate with all that it takes to run it."""

    def __init__(self, context: Context, candidate: Candidate, memory: _Memory) -> None:
        self._context = context
        self._inputs = memory.arrays("input", candidate.inputs)
        self._outputs = memory.arrays("output", candidate.outputs)

    def run(self) -> int:
        durations = self._context.run(self._inputs, self._outputs, profile=True)
        assert durations is not None
        return sum(durations)


def _filled(nbytes: int) -> Array:
    """Memory of its own pages, with numbers that are quick to compute with."""
    block = empty_aligned(nbytes)
    block.fill(0x3C)  # about 0.01 in f32 and in bf16
    return block
