"""The memory of a network: of its weights, and of an inference with a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.ir import Constant
from engine.ir.mapped import is_mapped
from engine.ir.sizes import array_bytes, joined_bytes
from engine.ir.walk import all_nodes
from engine.native import ConstantSpans, Span, span_of
from engine.plugin_api import MemoryForecast, Signature
from engine_cpu.program import Program

if TYPE_CHECKING:
    from engine.ir import Model
    from engine_cpu.families import BoundFamily
    from engine_cpu.segments.segment import Array
    from engine_cpu.weights import WeightStore


def forecast(
    signature: Signature,
    streams: int,
    program: Program | BoundFamily,
    shapes: Sequence[tuple[int, ...]],
    kept: ConstantSpans,
) -> MemoryForecast:
    """The memory of inferences with a program.

    Args:
        shapes: of the inputs, and then of the variables' values.
        kept: what the network keeps beside the constants that the program reads.
    """
    constants = ConstantSpans([*kept.own], [*kept.mapped])
    for array in program.constants.values() if isinstance(program, Program) else ():
        if not array.dtype.hasobject:
            constants.add(array)
    for plan in program.plans:
        constants.extend(plan.constants)
    mapped = joined_bytes(constants.mapped)
    inputs = sum(array_bytes(port.type, shape) for port, shape in zip(signature.inputs, shapes, strict=False))
    memory = program.memory(len(signature.outputs)) if isinstance(program, Program) else program.memory(shapes)
    return MemoryForecast.of(
        weights=joined_bytes(constants.own) + mapped,
        mapped=mapped,
        arena=memory.run.arena,
        scratch=memory.run.scratch,
        states=memory.states,
        inputs=inputs,
        outputs=memory.outputs,
        streams=streams,
        unknown=memory.run.unknown,
    )


def kept_constants(weights: WeightStore, graph: Model) -> ConstantSpans:
    """Packed weights, and the constants of a graph that are in memory: for further plans, or for export."""
    packed = [span_of(array) for array in list(weights.packed.values())]
    constants = (node for node in all_nodes(graph) if isinstance(node, Constant) and node.is_loaded)
    held = [held_span(constant.data) for constant in constants]
    return ConstantSpans([*packed, *filter(None, held)])


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
