"""`RepetitionSegment`: a Loop or a Scan, whose body is compiled once for all iterations.

If all sizes in the body are known and everything in it runs in plans, the native core runs all iterations. Otherwise
Python calls the body's programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from engine.errors import InputError, ModelError
from engine.ir import Constant, Node, Output, TensorType
from engine.limits import current_limits
from engine.native import NO_VALUE, Plan
from engine.ops.loop import formal_inputs
from engine.ops.stacks import empty_stacks
from engine_cpu.segments.bodies import Body, BodyGraph
from engine_cpu.segments.body_profile import profiled_body
from engine_cpu.segments.kind import SegmentCompiler
from engine_cpu.segments.native_repetition import NativeRepetition
from engine_cpu.segments.node_segment import NodeSegment
from engine_cpu.segments.repetition_form import RepetitionForm
from engine_cpu.segments.routine_draft import RoutineDraft
from engine_cpu.segments.segment import Array, Inference, RunMemory, Value
from engine_cpu.segments.stacking import Stack

_ENDLESS: Final = (1 << 63) - 1


class RepetitionSegment(NodeSegment):
    """Reads the inputs of the node that are not omitted, then what the body captures, without constants."""

    def __init__(self, node: Node, compiler: SegmentCompiler) -> None:
        super().__init__(node)
        self._form = RepetitionForm.of(node)
        self._limit = current_limits().tensor_bytes
        graph = BodyGraph.of(node, "body", self._form.num_parameters, self._form.num_results)
        if self._form.is_loop and not self._form.is_conditional:
            graph.model.results[0].input(0).replace_source_output(Constant(np.array(True)))
        self._body = Body(graph, compiler)
        formal = node.input_values[: node.num_formal_inputs]
        if self._form.is_loop:
            formal = formal_inputs(formal, len(formal))
        self._positions = [index for index, value in enumerate(formal) if value is not None]
        self._reads: list[Output] = [value for value in formal if value is not None] + list(graph.captured)
        self._num_formal = len(formal)
        self.native = NativeRepetition.of(
            (self.name, self.op_type), self._form, self._body.program, graph.model, compiler.threads, compiler.streams
        )
        self._length = _static_length(formal, self._form)

    @property
    def reads(self) -> list[Output]:
        """The values that the segment reads: the node's inputs, and those that the body captures."""
        return self._reads

    def memory(self) -> RunMemory:
        return self._body.memory() if self.native is None else self.native.memory(self.plans)

    @property
    def plans(self) -> list[Plan]:
        """The plans of the body, which each iteration runs."""
        return self._body.plans

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        given: list[Value] = [None] * self._num_formal
        for position, value in zip(self._positions, inputs, strict=False):
            given[position] = value
        captured = inputs[len(self._positions) :]
        limit, condition = self._limits(given)
        if self.native is not None:
            return self.native.run([*given[self._form.fixed :], *captured], limit, condition, inference)
        with profiled_body(self.name, self.op_type, inference) as inner:
            return self._run_in_python(given, captured, limit, condition, inner)

    def add_to(self, draft: RoutineDraft, reads: Sequence[int]) -> Sequence[int] | None:
        if self.native is None or (not self._form.is_loop and self._length is None):
            return None
        values = dict(zip(self._positions, reads, strict=False))
        count, condition = (values.get(index, NO_VALUE) if self._form.is_loop else NO_VALUE for index in (0, 1))
        known = draft.constant(condition)
        if known is not None and _is_true(known):
            condition = NO_VALUE
        if self._form.is_loop and self._form.stacks:
            is_counted = draft.constant(count) is not None and condition == NO_VALUE
            if not (is_counted and self.native.is_unconditional):
                return None
        given = [values[index] for index in range(self._form.fixed, self._num_formal)]
        captured = reads[len(self._positions) :]
        draft.step_nodes += [
            [(f"{self.name}/{name}", op_type) for name, op_type in nodes] for nodes in self.native.step_nodes
        ]
        return draft.builder.add_repetition(
            self.native.repetition, [*given, *captured], count=count, condition=condition, length=self._length or 0
        )

    def _limits(self, given: Sequence[Value]) -> tuple[int, bool]:
        """The largest number of iterations, and whether there are any."""
        if self._form.is_loop:
            count, condition = given[:2]
            limit = _ENDLESS if count is None else int(np.asarray(count).reshape(-1)[0])
            return max(0, limit), condition is None or _is_true(condition)
        sequences = given[self._form.carried :]
        lengths = [each.shape[axis] for each, (axis, _) in zip(sequences, self._form.elements, strict=True)]
        if len(set(lengths)) != 1:
            raise InputError(
                f"{self.op_type} `{self.name}`: the scan inputs have sequence lengths {sorted(set(lengths))}; "
                "expected equal lengths"
            )
        return lengths[0], True

    def _run_in_python(
        self, given: Sequence[Value], captured: Sequence[Value], limit: int, condition: bool, inference: Inference
    ) -> list[Value]:
        form, first = self._form, int(self._form.is_loop)
        carried = list(given[form.fixed : form.fixed + form.carried])
        sequences = [
            _elements(value, axis, is_reversed)
            for value, (axis, is_reversed) in zip(given[form.fixed + form.carried :], form.elements, strict=True)
        ]
        if not condition or limit == 0:
            return [*carried, *self._empty_stacks(carried, given, captured)]
        stacks = [Stack(f"{self.op_type} `{self.name}`", index, self._limit) for index in range(len(form.stacks))]
        trip = 0
        while condition and trip < limit:
            inference.check_cancelled()
            fixed = [np.array(trip, np.int64), np.array(True)] if form.is_loop else []
            elements = [next(sequence) for sequence in sequences]
            results = self._body.run([*fixed, *carried, *elements, *captured], inference)
            if form.is_loop:
                condition = _is_true(results[0])
            carried = results[first : first + form.carried]
            for stack, element in zip(stacks, results[first + form.carried :], strict=True):
                stack.append(element)
            trip += 1
        stacked = [
            stack.array(axis, is_reversed=is_reversed)
            for stack, (axis, is_reversed) in zip(stacks, form.stacks, strict=True)
        ]
        return [*carried, *stacked]

    def _empty_stacks(
        self, carried: Sequence[Value], given: Sequence[Value], captured: Sequence[Value]
    ) -> Sequence[Array]:
        form = self._form
        scanned = zip(given[form.fixed + form.carried :], form.elements, strict=True)
        elements = [np.delete(value.shape, axis).tolist() for value, (axis, _) in scanned]
        shapes = [*[()] * form.fixed, *map(_shape, carried), *elements, *map(_shape, captured)]
        try:
            return empty_stacks(self._body.model, shapes, [axis for axis, _ in form.stacks])
        except ModelError as e:
            raise InputError(f"{self.op_type} `{self.name}`: {e}") from e


def _shape(value: Value) -> tuple[int, ...] | None:
    return value.shape if isinstance(value, np.ndarray) else None


def _static_length(formal: Sequence[Output | None], form: RepetitionForm) -> int | None:
    """The length of the sequences of a Scan, if it is known."""
    for value, (axis, _) in zip(formal[form.fixed + form.carried :], form.elements, strict=True):
        if value is not None and isinstance(value.type, TensorType) and value.shape.is_static:
            return int(value.shape.get_shape()[axis])
    return None


def _elements(sequence: Array, axis: int, is_reversed: bool) -> Iterator[Array]:
    moved = np.moveaxis(sequence, axis, 0)
    for element in moved[::-1] if is_reversed else moved:
        yield np.require(element, requirements=["C", "A"])


def _is_true(value: Value) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])
