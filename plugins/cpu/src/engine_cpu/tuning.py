"""Choice among several kernels for a step: the CPU part of `engine.lowering.tuning`.

Candidates are timed with cold caches, as in a network.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine.ir import Node
from engine.lowering.tuning import Times, Tuner, time_in_turns
from engine.native import Attribute, Context, Plan, PlanBuilder, cpu_features, empty_aligned

Array = np.ndarray[Any, np.dtype[Any]]

BUDGETS: Final = {"none": 0.0, "quick": 0.15, "full": 60.0}
"""The seconds for measuring in one compilation, by COMPILE_EFFORT."""


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


@dataclass(slots=True)
class CpuTuner(Tuner):
    """Chooses the kernels of one network, which is compiled for a number of threads."""

    threads: int

    def choose(self, node: Node, key: str, candidates: Sequence[Candidate], isa: str) -> Candidate:
        """The choice for `node`. Raises `PlanError` if a candidate cannot be built."""
        return self.choose_candidate(
            f"{key}|{self.threads} threads|{isa}",
            candidates,
            lambda deadline: _measure(candidates, isa, self.threads, deadline),
        )


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
    """Page-aligned memory, filled with normal numbers."""
    block = empty_aligned(nbytes)
    block.fill(0x3C)  # about 0.01 in f32 and in bf16
    return block
