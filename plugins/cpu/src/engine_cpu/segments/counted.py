"""`CountedSegment`: a native operation whose kernel counts a length of its results."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import Cancelled
from engine.ir import Node
from engine.limits import check_bytes, check_planned, current_limits
from engine.lowering.checks import is_omitted
from engine.native import Plan, PlanBuilder, PlanRunner
from engine_cpu.layout import item_size, static_shape
from engine_cpu.lowering.counting import CountedLowering
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind
from engine_cpu.segments.node_segment import NodeSegment
from engine_cpu.segments.segment import Array, Inference, RunMemory, Value
from engine_cpu.step_names import step_name


class CountedSegment(NodeSegment):
    """One node with a `CountedLowering`; the inputs are the node's without omitted ones."""

    def __init__(self, spec: Any, lowering: CountedLowering[Any], isa: str, threads: int, streams: int) -> None:
        """Build the plan. Raises `OutOfMemoryError` if the machine has no memory for the largest results."""
        node: Node = spec.node
        super().__init__(node)
        self._spec, self._lowering = spec, lowering
        self._limit = current_limits().tensor_bytes
        step = lowering.counted(spec)
        self._present = [index for index, value in enumerate(node.outputs) if not is_omitted(value)]
        self._count = node.num_outputs
        self._axes = step.axes
        read = [node.input_value(index) for index in step.inputs]
        given = [index for index, value in enumerate(node.input_values) if value is not None]
        self._places = [given.index(index) for index in step.inputs]
        inputs = [(value.element_type.numpy, static_shape(value)) for value in read]
        outputs: list[tuple[np.dtype[Any], tuple[int, ...]]] = [
            (node.output(index).element_type.numpy, shape)
            for index, shape in zip(self._present, step.shapes, strict=True)
        ]
        outputs.append((np.dtype(np.int64), (1,)))
        builder = PlanBuilder(isa=isa)
        sources = [
            builder.add_input(_nbytes(form), item_size(value.element_type))
            for form, value in zip(inputs, read, strict=True)
        ]
        targets = [builder.add_output(_nbytes(form), form[0].itemsize) for form in outputs]
        builder.add_step(step.kernel, sources, targets, step.settings, step_name(node))
        self._plan = builder.build()
        self._bytes = self._plan.arena_bytes + sum(map(_nbytes, outputs))
        check_planned(self._bytes, node)
        self._threads = threads
        self._runner = PlanRunner(self._plan, inputs, outputs, max_threads=threads, kept=streams)

    def memory(self) -> RunMemory:
        """The largest results are allocated before they are counted."""
        results = self._bytes - self._plan.arena_bytes
        return RunMemory.of_plans(self.plans, self._threads) + RunMemory(scratch=results)

    @property
    def plans(self) -> list[Plan]:
        """A list of the one plan that the segment runs."""
        return [self._plan]

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        read = [inputs[place] for place in self._places]
        self._lowering.check_values(self._spec, read)
        check_bytes(self._bytes, self.title)
        start = time.perf_counter_ns() if inference.is_profiling else 0
        try:
            *results, count = self._runner.run(read, inference.cancel)
        except Cancelled:
            inference.check_cancelled()  # raises the error that stopped the inference
            raise
        if inference.is_profiling:
            inference.record_node(self.name, self.op_type, "native", start, time.perf_counter_ns())
        outputs: list[Value] = [None] * self._count
        for index, array, axis in zip(self._present, results, self._axes, strict=True):
            value = array if axis is None else _cut(array, axis, int(count[0]))
            if self._limit:
                check_bytes(value.nbytes, self.title, self._limit)
            outputs[index] = value
        return outputs


def _nbytes(form: tuple[np.dtype[Any], tuple[int, ...]]) -> int:
    dtype, shape = form
    return math.prod(shape) * dtype.itemsize


def _cut(array: Array, axis: int, length: int) -> Array:
    """The front of an array, with this length of an axis; a copy if most of the array's memory would be kept for it."""
    shape = (*array.shape[:axis], length, *array.shape[axis + 1 :])
    front = array.reshape(-1)[: math.prod(shape)].reshape(shape)
    return front.copy() if 2 * front.size < array.size else front


def _made(segment: GraphSegment, making: Making) -> ConnectedSegment:
    (node,) = segment.nodes
    compiler, decision = making.compiler, making.decisions[node]
    assert isinstance(decision.lowering, CountedLowering)
    compiler.lowered += 1
    counted = CountedSegment(decision.spec, decision.lowering, compiler.weights.isa, compiler.threads, compiler.streams)
    return ConnectedSegment.of_node(counted, node)


COUNTED: Final = SegmentKind("counted", _made, "has a result whose shape only an inference knows")
