"""`StoredNetwork`: a network whose blob has its program, so that it is neither transformed nor lowered on import.

This module and those that it imports are all that running a blob needs; `engine_cpu.network` has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.blob.compiled_for import check_mode, check_precision
from engine.native import Plan, default_isa
from engine.plugin_api import (
    BlobReader,
    Config,
    ExecutableNetwork,
    Plugin,
    SyncInferRequest,
    engine_version,
)
from engine.properties import (
    EXECUTION_PRECISION,
    EXECUTION_THREADS,
    INSTRUCTION_SET,
    MAX_TENSOR_BYTES,
    NUM_STREAMS,
    VARYING_LENGTHS,
)
from engine_cpu.blob_check import with_needs
from engine_cpu.compilation import Compilation, most_threads_of, requirements_of, threads_of
from engine_cpu.instruction_sets import why_lower
from engine_cpu.precision import is_accurate, precision_of, remark_on
from engine_cpu.properties import (
    ARENA_BYTES,
    EXPORT_PACKED_WEIGHTS,
    INFERENCE_PRECISION_HINT,
    LOWERED_PLANS,
    NAIVE_ARENA_BYTES,
    PLANS_PER_SHAPE,
    REFERENCE_STEPS,
)
from engine_cpu.repeatability import check_made_repeatable
from engine_cpu.request import CpuInferRequest
from engine_cpu.stored_program import SECTION, WHY_NOT, StoredProgram, is_of_this_format

if TYPE_CHECKING:
    from engine.plugin_api import BlobWriter, MemoryForecast, Model, NodeCounts


def has_program(blob: BlobReader, config: Config) -> bool:
    """Whether a network can be made of the program in a blob: one of this version, with weights as kernels read them.

    What a kernel's attributes mean may change between versions; a graph means the same.
    """
    is_current = blob.manifest.engine_version == engine_version()
    if SECTION not in blob.section_names or not is_current or not config[EXPORT_PACKED_WEIGHTS]:
        return False
    return is_of_this_format(blob.section(SECTION))


def why_no_program(blob: BlobReader) -> str:
    """Why a blob has no program that could be used, as a clause."""
    if WHY_NOT in blob.section_names:
        return bytes(blob.section(WHY_NOT)).decode(errors="replace")
    made = blob.manifest.engine_version
    if made != engine_version():
        return f"it was compiled by engine {made}, and this is {engine_version()}: compile the model again"
    if SECTION in blob.section_names and not is_of_this_format(blob.section(SECTION)):
        return "its plans have another format than this engine's: compile the model again"
    return f"{EXPORT_PACKED_WEIGHTS.name} is off" if SECTION in blob.section_names else "it was exported without"


class StoredNetwork(ExecutableNetwork):
    """All nodes run natively, and all shapes are known."""

    metrics = (
        REFERENCE_STEPS, ARENA_BYTES, NAIVE_ARENA_BYTES, PLANS_PER_SHAPE, LOWERED_PLANS, VARYING_LENGTHS,
        EXECUTION_PRECISION, EXECUTION_THREADS, INSTRUCTION_SET,
    )  # fmt: skip

    def __init__(self, plugin: Plugin, config: Config, blob: BlobReader) -> None:
        """Build the program. Raises `BlobError`, `UnsupportedError`, `OutOfMemoryError`."""
        super().__init__(plugin, config, blob.manifest)
        blob.verify_ahead()
        self._blob = blob
        self._graph: Model | None = None
        self.compilation = made = Compilation.of(blob)
        check_mode(self.name, made_accurate=made.is_accurate, is_accurate=is_accurate(config))
        check_made_repeatable(self.name, config, made)
        hint = config[INFERENCE_PRECISION_HINT]
        # A network in bf16 that is given with the hint runs wherever its kernels do, if slowly.
        check_precision(self.name, made.hint, hint if hint == made.hint else precision_of(config, default_isa()))
        if remark := remark_on(config, default_isa(), made.precision, rounds_weights=made.rounds_weights):
            self.remarks.append(remark)
        if left_out := why_lower(default_isa()):
            self.remarks.append(left_out)
        stored = StoredProgram(blob, config[MAX_TENSOR_BYTES])
        self._counts = stored.counts
        states = self.signature.states
        self.program = stored.program(
            [*self.inputs, *(state.before for state in states)],
            [*self.outputs, *(state.after for state in states)],
            made.isa,
            most_threads_of(config),
            config[NUM_STREAMS] or 1,
        )
        blob.verify()  # also the graph, which is not read

    def can_share(self) -> bool:
        """All lengths are known."""
        return True

    def begin_sharing(self) -> None:
        """Take memory for runs of this network's own."""
        self.program = self.program.with_own_memory()

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request; it refers to the program, not the network: a reference cycle would delay freeing both."""
        program = self.program
        return CpuInferRequest(self, lambda inputs, *, may_assume: program)

    def export_sections(self, writer: BlobWriter) -> None:
        """Copy the sections of the imported blob."""
        for name in self._blob.section_names:
            writer.add_section(name, self._blob.section(name))

    def requirements(self) -> Mapping[str, str | Sequence[str]]:
        """The instruction set of kernels and packed weights, and the version of the weight formats."""
        return requirements_of(self.compilation.isa)

    def preferences(self) -> Mapping[str, str | Sequence[str]]:
        """Those of the imported blob."""
        return with_needs(self._blob.manifest).preferences

    def metric(self, name: str) -> object:
        """The network's own metrics; the engine answers the common ones."""
        match name:
            case REFERENCE_STEPS.name | PLANS_PER_SHAPE.name | VARYING_LENGTHS.name:
                return ()
            case LOWERED_PLANS.name:
                return 0
            case ARENA_BYTES.name:
                return sum(plan.arena_bytes for plan in self.native_plans())
            case NAIVE_ARENA_BYTES.name:
                return sum(plan.naive_bytes for plan in self.native_plans())
            case EXECUTION_PRECISION.name:
                return self.compilation.precision
            case EXECUTION_THREADS.name:
                return threads_of(self.config)
            case INSTRUCTION_SET.name:
                return self.compilation.isa
        return None

    def node_counts(self) -> NodeCounts:
        """The operations of the graph; the reference evaluator runs none."""
        return self._counts

    def memory(self) -> dict[str, int]:
        """The sections of the blob, mapped or in memory, and intermediate results of all streams."""
        arena = sum(plan.arena_bytes for plan in self.native_plans()) * (self.config[NUM_STREAMS] or 1)
        return {"weights": sum(len(self._blob.section(name)) for name in self._blob.section_names), "arena": arena}

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """All sizes are known. Of a blob in memory, also what only an export reads is there."""
        from engine.native import ConstantSpans
        from engine_cpu.memory import forecast, held_span

        sections = (np.frombuffer(self._blob.section(name), np.uint8) for name in self._blob.section_names)
        held = [held_span(section) for section in sections if section.size]
        kept, streams = ConstantSpans([*filter(None, held)]), self.config[NUM_STREAMS] or 1
        return forecast(self.signature, streams, self.program, shapes, kept)

    @property
    def graph(self) -> Model:
        """The transformed graph, which nothing else needs; read from the blob when it is first asked for."""
        from engine.lowering import read_graph

        if self._graph is None:
            self._graph = read_graph(self._blob)
        return self._graph

    def native_plans(self) -> list[Plan]:
        """The plans that the network runs, which come from its blob."""
        return self.program.plans
