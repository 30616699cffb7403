"""`HostSegment`: an operation without a native kernel, on the reference evaluator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.errors import UnsupportedError
from engine.ir import Node
from engine.ops.interruption import interruptible
from engine.ops.reference import compile_node
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind
from engine_cpu.segments.node_segment import NodeSegment
from engine_cpu.segments.segment import Array, Inference, Value


class HostSegment(NodeSegment):
    """One node; the inputs are the node's, None for omitted ones."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._positions = [index for index, value in enumerate(node.input_values) if value is not None]
        self._count = node.num_inputs
        self._evaluate = compile_node(node)

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        values: list[Value] = [None] * self._count
        for position, value in zip(self._positions, inputs, strict=True):
            values[position] = value
        start = time.perf_counter_ns() if inference.is_profiling else 0
        with interruptible(inference.check_cancelled):
            outputs = self._evaluate(values)
        if inference.is_profiling:
            inference.record_node(self.name, self.op_type, "reference", start, time.perf_counter_ns())
        return [_in_order(value) for value in outputs]


def _in_order(value: Value) -> Value:
    """Arrays in the form that plans read: contiguous and aligned."""
    return np.require(value, requirements=["C", "A"]) if isinstance(value, np.ndarray) else value


def _made(segment: GraphSegment, making: Making) -> ConnectedSegment:
    (node,) = segment.nodes
    for body in node.bodies.values():
        making.compiler.weights.keep(body)
    if not making.compiler.allow_reference:
        why = making.decisions.refusal(node)
        reason = why.reason if why else "its output shape depends on data"
        raise UnsupportedError(f"{node}: no native kernel ({reason}) and ALLOW_REFERENCE is off")
    return ConnectedSegment.of_node(HostSegment(node), node)


HOST: Final = SegmentKind("reference", _made, "runs on the reference evaluator")
