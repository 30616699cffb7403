"""The memory of a network: of its weights, and of an inference with a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.ir.mapped import is_mapped
from engine.ir.sizes import array_bytes
from engine.native import Span, span_of
from engine.plugin_api import ExecutableNetwork, MemoryForecast
from engine.properties import NUM_STREAMS
from engine_cpu.program import Program

if TYPE_CHECKING:
    from engine_cpu.families import BoundFamily
    from engine_cpu.segments.segment import Array


def forecast(
    network: ExecutableNetwork, program: Program | BoundFamily, shapes: Sequence[tuple[int, ...]], weights: int
) -> MemoryForecast:
    """The memory of inferences with a program; `shapes` are those of the inputs, and then of the variables' values."""
    inputs = sum(array_bytes(port.type, shape) for port, shape in zip(network.inputs, shapes, strict=False))
    memory = program.memory(len(network.outputs)) if isinstance(program, Program) else program.memory(shapes)
    return MemoryForecast.of(
        weights=weights,
        arena=memory.run.arena,
        scratch=memory.run.scratch,
        states=memory.states,
        inputs=inputs,
        outputs=memory.outputs,
        streams=network.config[NUM_STREAMS] or 1,
        unknown=memory.run.unknown,
    )


def program_spans(program: Program | BoundFamily) -> list[Span]:
    """Where the constants are that a program reads in place."""
    constants = program.constants.values() if isinstance(program, Program) else ()
    read = [span_of(array) for array in constants if not array.dtype.hasobject]
    return read + [span for plan in program.plans for span in plan.constants]


def held_span(array: Array) -> Span | None:
    """The memory that an array keeps from being freed; None for a part of a mapped file, which keeps none."""
    if is_mapped(array) or array.dtype.hasobject:
        return None
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, (bytes, bytearray)):
        return span_of(np.frombuffer(base, np.uint8))
    return span_of(base if isinstance(base, np.ndarray) and base.flags.forc else array)
