"""The native core: plans of kernels over one arena, run on leased cores with the GIL released.

    builder = PlanBuilder()
    x, y = builder.add_input(x_array.nbytes, alignment=4), builder.add_output(y_array.nbytes, alignment=4)
    builder.add_step("copy", [x], [y])
    context = Context(builder.build())
    context.run([x_array], [y_array])

`engine.native.graph` has the graph algorithms. Only this package imports `engine._core`. If the extension
is missing or cannot be loaded, this package can still be imported, and using it raises `NativeCoreError`. Sizes are
in bytes; kernels and callers agree on element types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from engine.errors import PropertyError
from engine.native.cancellation import CancelFlag
from engine.native.extension import _core
from engine.native.family import FamilyRunner, Number, PlanFamily, Varying, VaryingAttribute
from engine.native.memory import WeightMemory, empty_aligned, empty_huge, return_free_memory
from engine.native.plan import ArenaUsage, ConstantSpans, Plan, Span, StepInfo, span_of
from engine.native.routine import (
    NO_VALUE,
    Repetition,
    RepetitionRun,
    RepetitionRunner,
    Routine,
    RoutineBuilder,
    SequenceAxis,
)
from engine.startup import dataclass, names_on_demand

if TYPE_CHECKING:
    import numpy as np

    from engine.native.kernel_library import KernelLibrary, LibraryKernel, load_kernel_library
    from engine.native.stored_program import BuiltProgram, StoredForm, StoredProgram, StoredSegment

    Array: TypeAlias = np.ndarray[Any, Any]
else:
    # Libraries of extensions, and programs of blobs.
    __getattr__ = names_on_demand(__name__, {
        "engine.native.kernel_library": ["KernelLibrary", "LibraryKernel", "load_kernel_library"],
        "engine.native.stored_program": ["BuiltProgram", "StoredForm", "StoredProgram", "StoredSegment"],
    })  # fmt: skip


__all__ = [
    "NO_VALUE", "Attribute", "BuiltProgram", "CancelFlag", "ConstantSpans", "Context", "CpuFeatures", "FamilyRunner",
    "KernelLibrary", "LibraryKernel", "Number", "Packing", "Plan", "PlanBuilder", "PlanFamily", "PlanRunner",
    "PointwiseFunction", "ProductRates", "Repetition", "RepetitionRun", "RepetitionRunner", "Routine", "RoutineBuilder",
    "SequenceAxis", "Span", "StepInfo", "StoredForm", "StoredProgram", "StoredSegment", "Varying", "VaryingAttribute",
    "all_isas", "built_isas", "codes", "cores", "cpu_features", "default_isa", "empty_aligned", "empty_huge",
    "features", "has_feature", "isas_within", "kernel_isas", "kernels", "lay_out_arena", "left_out_kernels",
    "load_kernel_library", "pack", "packed_weight_formats", "pointwise_functions", "product_rates", "program_format",
    "return_free_memory", "run_kernel", "run_packings", "span_of", "started_threads",
]  # fmt: skip

Form: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...]]"
Attribute: TypeAlias = "int | float | str | Sequence[int] | Sequence[float]"

_weights = WeightMemory()


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """The features of this CPU; a cache of 0 bytes is one that the system does not report."""

    model: str
    """Identifies CPUs with the same timings, for the key of a tuning cache."""
    isa: str
    """The highest instruction set that the CPU has and that this build has the kernels for."""
    highest_isa: str
    """The highest instruction set that the CPU has."""
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    logical_cores: int
    usable_cores: int
    """Physical cores that the process may use, according to its affinity and its control group's quota."""


@dataclass(frozen=True, slots=True)
class ProductRates:
    """Multiplications of one core in a nanosecond, by vector instructions with operands of f32 and of bf16."""

    f32: float
    bf16: float


def cpu_features() -> CpuFeatures:
    """Return the features of this CPU."""
    return CpuFeatures(**_core.cpu_features())


def product_rates() -> ProductRates | None:
    """Return how fast this CPU multiplies, measured once in a process; None if it has no vector products of bf16.

    Having the feature "bf16" does not mean that it is fast: products take twice the time of f32 on some CPUs, and half
    of it on others.
    """
    rates = _core.product_rates()
    return None if rates is None else ProductRates(*rates)


def default_isa() -> str:
    """Return the instruction set for which plans are built: the CPU's highest, or a lower one from ENGINE_MAX_ISA.

    Raises PropertyError if that environment variable does not name an instruction set.
    """
    return _core.default_isa()


def built_isas() -> tuple[str, ...]:
    """Return the instruction sets that this build has the kernels for, ascending, whether or not this CPU has them."""
    return tuple(_core.built_isas())


def all_isas() -> tuple[str, ...]:
    """Return all instruction sets of csrc/isas.def, of every architecture, ascending."""
    return tuple(_core.isa_features())


def left_out_kernels() -> dict[str, tuple[str, ...]]:
    """Return the instruction sets that this build leaves out, by the family of kernels that has them.

    ENGINE_ISAS leaves out sets, ENGINE_KERNELS whole families.
    """
    return {family: tuple(isas) for family, isas in _core.left_out_kernels().items()}


def isas_within(limit: str) -> tuple[str, ...]:
    """Return the members of `built_isas` that every CPU with `limit` has, ascending, `limit` last if it is built.

    Raises PropertyError if `limit` is not the name of an instruction set.
    """
    return tuple(_core.isas_within(limit))


@cache
def features(isa: str) -> frozenset[str]:
    """Return the features of an instruction set, by their names in csrc/isas.def: "avx2", "fma", "vnni", "bf16", ...

    Raises PropertyError if `isa` is not the name of an instruction set.
    """
    known = _core.isa_features()
    if isa not in known:
        raise PropertyError(f"unknown instruction set {isa!r}; expected one of {', '.join(known)}")
    return frozenset(known[isa])


def has_feature(isa: str, feature: str) -> bool:
    """Whether an instruction set has a feature; unlike comparing names, this stays right when sets are added.

    Raises PropertyError for an unknown instruction set or feature.
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
    """Return, by the kernel's name, the instruction sets for which there is a version of the kernel, ascending.

    Plans use the highest version that is not above their instruction set; a step may combine several kernels.
    """
    return _core.kernel_isas()


@cache
def codes(enumeration: str) -> Mapping[str, int]:
    """Return the names of an enumeration of csrc/codes.def ("ElementCode", "Opcode", ...) with this build's numbers.

    Attributes of steps use the names; only the programs of `elementwise` use the numbers.
    """
    return MappingProxyType(_core.codes()[enumeration])


class PointwiseFunction(NamedTuple):
    """A row of csrc/pointwise.def: a function of real numbers, which kernels have for f32 and f64.

    Attributes:
        operation: the name of the ONNX operator, if there is one of this meaning.
        opcode: its name in the programs of `elementwise`, and as the attribute `activation`.
        sources: how many there are: the operator's inputs, then its attributes.
        expression: its value in C, for sources `a`, `b`, `c`; `real(x)` is a number of their type.
        is_activation: whether products and convolutions apply it to their results, with `alpha` = b and `beta` = c.
    """

    operation: str
    opcode: str
    sources: int
    expression: str
    is_activation: bool


@cache
def pointwise_functions() -> Mapping[str, PointwiseFunction]:
    """Return the rows of csrc/pointwise.def by `operation`."""
    return MappingProxyType({row[0]: PointwiseFunction(*row) for row in _core.pointwise_functions()})


def program_format() -> str:
    """Return what identifies the format of programs in blobs, and the meaning of kernels' attributes."""
    return _core.program_format()


def packed_weight_formats() -> str:
    """Return the version of the formats in which kernels expect packed weights, and of their choice."""
    return _core.packed_weight_formats


def cores() -> int:
    """Return how many cores all plans of this process share."""
    return _core.cores()


def started_threads() -> int:
    """Return how many threads of the native core exist in this process; they start on first use."""
    return _core.started_threads()


def lay_out_arena(buffers: Sequence[tuple[int, int, int, int]]) -> tuple[list[int], int, int, int]:
    """Lay out buffers, each (bytes, alignment, first time alive, last time alive), in one block.

    Returns their offsets, the bytes of the block, the bytes without sharing, and the most bytes alive at one time.
    Raises PlanError if sizes overflow.
    """
    return _core.lay_out_arena(buffers)


class PlanBuilder:
    """Collects buffers and steps, checks them, and builds a plan. Not thread-safe.

    Every method raises PlanError for invalid arguments, without changing anything.
    `isa` selects another instruction set of `built_isas` than `default_isa()`. This CPU may lack it: then a `Context`
    raises PropertyError for the plan, unless its kernels only arrange data, as those that pack weights do.
    `threads` is the number that runs are expected to have (0: the cores), by which batches are divided into slices.
    """

    __slots__ = ("_builder", "_spans", "_usage")

    def __init__(self, *, isa: str | None = None, threads: int = 0) -> None:
        self._builder = _core.PlanBuilder(isa or "", threads)
        self._usage = ArenaUsage()
        self._spans = ConstantSpans()

    def add_input(self, nbytes: int, alignment: int = 1) -> int:
        """Add memory that each run binds, with addresses aligned to `alignment`, and that steps only read."""
        return self._builder.add_input(nbytes, alignment)

    def add_output(self, nbytes: int, alignment: int = 1) -> int:
        """Add memory that each run binds and that steps must fill."""
        return self._builder.add_output(nbytes, alignment)

    def add_state(self, nbytes: int, alignment: int = 1) -> int:
        """Add memory that each run binds, of `nbytes` or more, whose content steps may read and change."""
        return self._builder.add_state(nbytes, alignment)

    def add_buffer(self, nbytes: int, alignment: int = 64) -> int:
        """Add memory of the arena, alive from the first step that writes it to the last one that reads it."""
        buffer = self._builder.add_buffer(nbytes, alignment)
        self._usage.sizes[buffer] = nbytes
        return buffer

    def add_constant(self, array: Array) -> int:
        """Add an array that steps read in place and that plans may share. It must not change afterwards."""
        constant = self._builder.add_constant(array)
        self._spans.add(array)
        return constant

    def add_view(self, of: int, offset: int, nbytes: int) -> int:
        """Name a part of a buffer, so that a Concat, Split, Slice or Reshape needs no copy."""
        view = self._builder.add_view(of, offset, nbytes)
        self._usage.roots[view] = self._usage.roots.get(of, of)
        return view

    def add_step(
        self,
        kernel: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
    ) -> int:
        """Append a step and return its number; it reads the results of earlier steps.

        `name` is for messages and profiles. Inputs must have been written; an output may be the memory of an input
        if the kernel works in place.
        """
        step = self._builder.add_step(kernel, inputs, outputs, attributes or {}, name)
        self._usage.steps.append((*inputs, *outputs))
        return step

    def build(self) -> Plan:
        """Lay out the arena and return the plan; the builder is empty afterwards."""
        usage, self._usage = self._usage, ArenaUsage()
        spans, self._spans = self._spans, ConstantSpans()
        return Plan(self._builder.build(), usage, spans)


class Context:
    """The memory to run a plan: its own arena and scratch. One run at a time.

    `max_threads` limits the cores of a run, and the scratch memory; 0 allows all cores of the process.
    Raises OutOfMemoryError.
    """

    __slots__ = ("_context",)

    def __init__(self, plan: Plan, max_threads: int = 0) -> None:
        self._context = _core.Context(plan._plan, max_threads)

    @classmethod
    def in_turns(cls, plans: Sequence[Plan], max_threads: int = 0) -> list[Context]:
        """Contexts of several plans that share the memory of the largest: while one runs, the others raise Busy."""
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
        """Run all steps: read `inputs` and fill `outputs`, both in place, contiguous and not overlapping.

        Waits while other runs use all cores; uses at most `threads` cores (0: the limit of the context).
        Returns the nanoseconds of each step if `profile` is set. Releases the GIL.

        Raises InputError for arrays that do not fit and, with the step's name, for invalid data (such as an index out
        of range), Busy if another thread runs this context, and Cancelled. The contents of `outputs` are
        undefined after a run that started and then raised.
        """
        return self._context.run(inputs, outputs, threads, None if cancel is None else cancel._flag, profile)

    @property
    def max_workers(self) -> int:
        """The most workers of a run."""
        return self._context.max_workers

    @property
    def memory_bytes(self) -> int:
        """The memory of this context: its arena and scratch."""
        return self._context.memory_bytes


class PlanRunner:
    """Runs one plan for any number of threads, each in a context of its own.

    `inputs` and `outputs` are the numpy type and the shape of each. Up to `kept` idle contexts are kept for later runs;
    `max_threads` is passed to `Context`.
    """

    __slots__ = ("_runner",)

    def __init__(
        self, plan: Plan, inputs: Sequence[Form], outputs: Sequence[Form], *, max_threads: int = 0, kept: int = 1
    ) -> None:
        self._runner = _core.PlanRunner(plan._plan, inputs, outputs, max_threads, kept)

    def bind(self, index: Mapping[Any, int], current: list[Any], given: object) -> list[Any] | None:
        """Return the arrays of all inputs: those in `given`, and of the others those in `current`.

        Returns None unless each is a plain array of the input's type and shape, contiguous and aligned, and `given` is
        None, one array, a list or tuple of all arrays, or a dict with names that `index` maps to positions.
        """
        return self._runner.bind(index, current, given)

    def run(self, inputs: Sequence[Array], cancel: CancelFlag) -> list[Array]:
        """Run all steps and return new arrays; otherwise as `fill`.

        An array of 1 MiB or more may be one that an earlier run returned, if nothing refers to it any more.
        """
        return self._runner.run(inputs, cancel._flag)

    def release(self) -> None:
        """Free the arrays that are kept for later runs."""
        self._runner.release()

    def fill(
        self, inputs: Sequence[Array], outputs: Sequence[Array], cancel: CancelFlag, *, profile: bool = False
    ) -> list[int] | None:
        """Run all steps as `Context.run` does, with its errors except Busy, and OutOfMemoryError.

        Inputs that are not contiguous, or not aligned as the plan declares, are copied. Releases the GIL unless the
        last run took less than 20 us and a core is free.
        """
        return self._runner.fill(inputs, outputs, cancel._flag, profile)


def run_kernel(
    kernel: str,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    attributes: Mapping[str, Attribute] | None = None,
    *,
    isa: str | None = None,
    threads: int = 0,
) -> None:
    """Build and run a plan of one kernel over arrays, to pack weights, to fold constants, or to test.

    Raises the errors of PlanBuilder and Context.
    """
    builder = PlanBuilder(isa=isa)
    input_ids = [builder.add_input(array.nbytes) for array in inputs]
    output_ids = [builder.add_output(array.nbytes) for array in outputs]
    builder.add_step(kernel, input_ids, output_ids, attributes)
    Context(builder.build(), threads).run(inputs, outputs)


class Packing:
    """A kernel with one output, such as one that packs weights, that is still to run.

    `packed` has the bytes of its output, aligned to 64, which `run_packings` fills; the kernel determines their number.
    Raises MemoryError and the errors of PlanBuilder.
    """

    __slots__ = ("attributes", "inputs", "isa", "kernel", "packed")

    def __init__(
        self,
        kernel: str,
        inputs: Sequence[Array],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        isa: str | None = None,
    ) -> None:
        self.kernel, self.inputs, self.attributes, self.isa = kernel, inputs, attributes, isa
        sizes = [array.nbytes for array in inputs]
        self.packed: Array = _weights.empty(_core.output_bytes(kernel, sizes, 1, attributes or {}, isa or "")[0])


def run_packings(packings: Sequence[Packing]) -> None:
    """Run kernels, all for the same instruction set, as the steps of one plan: threads are woken up once for all.

    Raises the errors of PlanBuilder and Context.
    """
    builder = PlanBuilder(isa=packings[0].isa)
    for item in packings:
        inputs = [builder.add_constant(array) for array in item.inputs]
        builder.add_step(item.kernel, inputs, [builder.add_output(item.packed.nbytes)], item.attributes)
    Context(builder.build()).run([], [item.packed for item in packings])


def pack(
    kernel: str, inputs: Sequence[Array], attributes: Mapping[str, Attribute] | None = None, *, isa: str | None = None
) -> Array:
    """Run a kernel with one output, such as one that packs weights, and return the output's bytes; see `Packing`.

    Raises MemoryError and the errors of PlanBuilder and Context.
    """
    packing = Packing(kernel, inputs, attributes, isa=isa)
    run_packings([packing])
    return packing.packed
