"""The native core: plans of kernels over one arena, run on leased cores with the GIL released.

    builder = PlanBuilder()
    x, y = builder.add_input(x_array.nbytes, alignment=4), builder.add_output(y_array.nbytes, alignment=4)
    builder.add_step("copy", [x], [y])
    context = Context(builder.build())
    context.run([x_array], [y_array])

`engine.native.graph` has the graph algorithms. This package is the only importer of `engine._core`. Where the extension
is missing or cannot be loaded, it can still be imported, and what is used of it raises `NativeCoreError`. Sizes are
bytes; what they mean is between kernels and callers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.errors import PropertyError
from engine.native.extension import _core
from engine.native.memory import WeightMemory, empty_aligned

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, Any]


__all__ = [
    "CancelFlag", "Context", "CpuFeatures", "Plan", "PlanBuilder", "StepInfo", "built_isas", "codes", "cores",
    "cpu_features", "default_isa", "empty_aligned", "features", "has_feature", "isas_within", "kernel_isas", "kernels",
    "lay_out_arena", "pack", "run_kernel", "started_threads",
]  # fmt: skip

Attribute: TypeAlias = "int | float | str | Sequence[int] | Sequence[float]"

_weights = WeightMemory()


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """What this CPU can do; a cache of 0 bytes is one that the system does not tell of."""

    model: str
    """Tells CPUs apart whose timings differ, for the key of a tuning cache."""
    isa: str
    """The highest instruction set that kernels exist for and the CPU has."""
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    logical_cores: int
    usable_cores: int
    """Physical cores that the process may use, by its affinity and its control group's quota."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step of a plan: its name, the kernel asked for, the instruction set it got, and what it computes."""

    name: str
    kernel: str
    isa: str
    phases: int
    work: float
    """Floating-point operations; 0 where the kernel does not count them."""


def cpu_features() -> CpuFeatures:
    """Return what this CPU can do."""
    return CpuFeatures(**_core.cpu_features())


def default_isa() -> str:
    """Return the instruction set that plans are built for: the CPU's best, or the lower one of ENGINE_MAX_ISA.

    Raises PropertyError where that variable has no instruction set's name.
    """
    return _core.default_isa()


def built_isas() -> tuple[str, ...]:
    """Return the instruction sets that this build has kernels for, ascending, whether or not this CPU has them."""
    return tuple(_core.built_isas())


def isas_within(limit: str) -> tuple[str, ...]:
    """Return those of `built_isas` whose kernels run wherever `limit` does, ascending; `limit` is the last.

    Raises PropertyError where no instruction set has that name.
    """
    return tuple(_core.isas_within(limit))


@cache
def features(isa: str) -> frozenset[str]:
    """Return what an instruction set has, by the names of csrc/isas.def: "avx2", "fma", "avx512", "vnni", "bf16", ...

    Raises PropertyError where no instruction set has that name.
    """
    known = _core.isa_features()
    if isa not in known:
        raise PropertyError(f"unknown instruction set {isa!r}; expected one of {', '.join(known)}")
    return frozenset(known[isa])


def has_feature(isa: str, feature: str) -> bool:
    """Whether an instruction set has a feature; what asks so goes on working on those that come later.

    Raises PropertyError where no instruction set has that name or feature.
    """
    if feature in features(isa):
        return True
    known = sorted({name for names in _core.isa_features().values() for name in names})
    if feature not in known:
        raise PropertyError(f"unknown feature {feature!r}; expected one of {', '.join(known)}")
    return False


def kernels() -> tuple[str, ...]:
    """Return the names that `PlanBuilder.add_step` takes."""
    return tuple(_core.kernels())


def kernel_isas() -> dict[str, tuple[str, ...]]:
    """Return the instruction sets, ascending, that have a kernel of their own, by the kernel's name.

    A step of several kernels names one of its own; plans take the highest that is not above theirs.
    """
    return _core.kernel_isas()


@cache
def codes(enumeration: str) -> Mapping[str, int]:
    """Return the names of an enumeration of csrc/codes.def ("ElementCode", "Opcode", ...) with this build's numbers.

    A step's attribute is a name; only the programs of `elementwise` consist of numbers.
    """
    return MappingProxyType(_core.codes()[enumeration])


def cores() -> int:
    """Return how many cores all plans of this process share."""
    return _core.cores()


def started_threads() -> int:
    """Return how many threads of the native core exist in this process now; they start when first needed."""
    return _core.started_threads()


def lay_out_arena(buffers: Sequence[tuple[int, int, int, int]]) -> tuple[list[int], int, int, int]:
    """Lay out buffers, each (bytes, alignment, first time alive, last time alive), in one block.

    Returns their offsets, the bytes of the block, the bytes without sharing, and the most bytes alive at one time.
    Raises PlanError where sizes overflow.
    """
    return _core.lay_out_arena(buffers)


class CancelFlag:
    """Stops the runs that it was given to, between two steps. Any thread may set it."""

    __slots__ = ("_flag",)

    def __init__(self) -> None:
        self._flag = _core.CancelFlag()

    def cancel(self) -> None:
        """Ask the runs to stop."""
        self._flag.cancel()

    def reset(self) -> None:
        """Make the flag usable again."""
        self._flag.reset()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called since the last `reset`."""
        return self._flag.cancelled


class Plan:
    """Steps, laid out and ready to run. Immutable: any number of contexts, in any threads, share one."""

    __slots__ = ("_plan",)

    def __init__(self, plan: _core.Plan) -> None:
        self._plan = plan

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
    def arena_bytes(self) -> int:
        """The memory for intermediate results that each context has."""
        return self._plan.arena_bytes

    @property
    def naive_bytes(self) -> int:
        """What the arena would take if no two buffers shared memory."""
        return self._plan.naive_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """The most bytes that are alive at one time: no arena can be smaller."""
        return self._plan.lower_bound_bytes

    @property
    def scratch_bytes(self) -> int:
        """The memory that each worker of a context has to itself."""
        return self._plan.scratch_bytes

    @property
    def max_workers(self) -> int:
        """The most workers that any step has something to do for."""
        return self._plan.max_workers

    @property
    def barriers(self) -> int:
        """How often all workers wait for each other in a run."""
        return self._plan.barriers

    @property
    def isa(self) -> str:
        """The highest instruction set that kernels were taken from."""
        return self._plan.isa


class PlanBuilder:
    """Collects buffers and steps, checks them, and builds a plan. For one thread.

    Every method raises PlanError for what a plan cannot have, and has changed nothing then.
    `isa` forces a lower instruction set; without it `default_isa()` decides.
    """

    __slots__ = ("_builder",)

    def __init__(self, *, isa: str | None = None) -> None:
        self._builder = _core.PlanBuilder(isa or "")

    def add_input(self, nbytes: int, alignment: int = 1) -> int:
        """Add memory that each run binds and steps only read; `alignment` is required of what is bound."""
        return self._builder.add_input(nbytes, alignment)

    def add_output(self, nbytes: int, alignment: int = 1) -> int:
        """Add memory that each run binds and that steps have to fill."""
        return self._builder.add_output(nbytes, alignment)

    def add_buffer(self, nbytes: int, alignment: int = 64) -> int:
        """Add memory of the arena, alive from the first step that writes it to the last one that reads it."""
        return self._builder.add_buffer(nbytes, alignment)

    def add_constant(self, array: Array) -> int:
        """Add an array that steps read in place, shared by all plans it is given to. It must not change afterwards."""
        return self._builder.add_constant(array)

    def add_view(self, of: int, offset: int, nbytes: int) -> int:
        """Name a part of a buffer, so that a Concat, Split, Slice or Reshape needs no copy."""
        return self._builder.add_view(of, offset, nbytes)

    def add_step(
        self,
        kernel: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
    ) -> int:
        """Append a step and return its number; steps see what those before them have written.

        `name` is for messages and profiles. Inputs have to be written; an output may be the very bytes of an input
        where the kernel works in place.
        """
        return self._builder.add_step(kernel, inputs, outputs, attributes or {}, name)

    def build(self) -> Plan:
        """Lay out the arena and return the plan; the builder is empty afterwards."""
        return Plan(self._builder.build())


class Context:
    """What one stream needs to run a plan: an arena of its own. One run at a time.

    `max_threads` bounds the cores of a run, and the scratch memory; 0 is all that the process has.
    Raises OutOfMemoryError.
    """

    __slots__ = ("_context",)

    def __init__(self, plan: Plan, max_threads: int = 0) -> None:
        self._context = _core.Context(plan._plan, max_threads)

    @classmethod
    def in_turns(cls, plans: Sequence[Plan], max_threads: int = 0) -> list[Context]:
        """Contexts of several plans over the memory of the largest: while one runs, running another raises Busy."""
        contexts = []
        for made in _core.Context.in_turns([plan._plan for plan in plans], max_threads):
            context = cls.__new__(cls)
            context._context = made
            contexts.append(context)
        return contexts

    def run(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *,
        threads: int = 0,
        cancel: CancelFlag | None = None,
        profile: bool = False,
    ) -> list[int] | None:
        """Run all steps: read `inputs` and fill `outputs`, both in place, contiguous and apart from each other.

        Waits for cores where other runs have all of them; takes `threads` at most (0: as many as the context has).
        Returns the nanoseconds of each step where `profile` is set. Releases the GIL.

        Raises InputError for arrays that do not fit and for data that a step cannot compute with (an index out of
        range; it names the step), Busy where another thread runs this context, and Cancelled. What is in `outputs` is
        undefined after a run that has started and then raised.
        """
        return self._context.run(inputs, outputs, threads, None if cancel is None else cancel._flag, profile)

    @property
    def max_workers(self) -> int:
        """The most workers that a run has."""
        return self._context.max_workers

    @property
    def memory_bytes(self) -> int:
        """The memory of this context: its arena and scratch."""
        return self._context.memory_bytes


def run_kernel(
    kernel: str,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    attributes: Mapping[str, Attribute] | None = None,
    *,
    isa: str | None = None,
    threads: int = 0,
) -> None:
    """Run one kernel over arrays: to pack weights, to fold constants, to test. Builds a plan for it.

    Raises what PlanBuilder and Context raise.
    """
    builder = PlanBuilder(isa=isa)
    input_ids = [builder.add_input(array.nbytes) for array in inputs]
    output_ids = [builder.add_output(array.nbytes) for array in outputs]
    builder.add_step(kernel, input_ids, output_ids, attributes)
    Context(builder.build(), threads).run(inputs, outputs)


def pack(
    kernel: str, inputs: Sequence[Array], attributes: Mapping[str, Attribute] | None = None, *, isa: str | None = None
) -> Array:
    """Run a kernel of one output and return that: as many bytes as the kernel asks for, aligned to 64.

    How weights are brought into a kernel's format. Raises MemoryError and what PlanBuilder and Context raise.
    """
    nbytes = _core.output_bytes(kernel, [array.nbytes for array in inputs], 1, attributes or {}, isa or "")[0]
    packed = _weights.empty(nbytes)
    run_kernel(kernel, inputs, [packed], attributes, isa=isa)
    return packed
