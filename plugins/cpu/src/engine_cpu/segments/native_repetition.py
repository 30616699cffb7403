"""`NativeRepetition`: a Loop or a Scan whose iterations all run in the native core."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from engine.errors import Cancelled, InputError, OutOfMemoryError
from engine.ir import Model, TensorType
from engine.limits import check_bytes, current_limits
from engine.native import Plan, Repetition, RepetitionRunner, SequenceAxis
from engine_cpu.program import Program
from engine_cpu.segments.body_profile import record_body, times_of
from engine_cpu.segments.repetition_form import RepetitionForm
from engine_cpu.segments.routine_draft import StepNames
from engine_cpu.segments.routines import CompiledRoutine, nbytes_of, same_bytes
from engine_cpu.segments.segment import Array, Inference, RunMemory, Value
from engine_cpu.segments.stacking import new_stack, stacked_shape, too_large


class NativeRepetition:
    """Carried values change places between iterations, and stacked ones are written into the output."""

    def __init__(
        self,
        node: tuple[str, str],
        form: RepetitionForm,
        parameters: Sequence[TensorType],
        routine: CompiledRoutine,
        threads: int,
        streams: int,
    ) -> None:
        """`node`: friendly name and op type. Raises `PlanError` if sizes do not fit together."""
        self._name, self._op_type = node
        self._form = form
        self._limit = current_limits().tensor_bytes
        self._inputs = parameters[form.fixed :]
        self._carried = parameters[form.fixed : form.fixed + form.carried]
        self._stacked = routine.results[int(form.is_loop) + form.carried :]
        self.step_nodes: tuple[StepNames, ...] = routine.step_nodes
        first = form.fixed + form.carried
        elements = parameters[first : first + len(form.elements)]
        self.repetition = Repetition(
            routine.routine,
            form.carried,
            [_axis_of(t, *axis) for t, axis in zip(self._stacked, form.stacks, strict=True)],
            is_loop=form.is_loop,
            elements=[_axis_of(t, *axis) for t, axis in zip(elements, form.elements, strict=True)],
        )
        self._threads = threads
        self._results = routine.results
        self._runner = RepetitionRunner(self.repetition, max_threads=threads, kept=streams)

    @classmethod
    def of(
        cls,
        node: tuple[str, str],
        form: RepetitionForm,
        program: Program | None,
        model: Model,
        threads: int,
        streams: int,
    ) -> NativeRepetition | None:
        """The native form of a node whose body has this program.

        None if a part of the body runs outside plans, or a size in it is not fixed.
        """
        if program is None:
            return None
        routine = CompiledRoutine.of(program, model)
        parameters = [each.type for each in model.parameters]
        tensors = [each for each in parameters if isinstance(each, TensorType)]
        if routine is None or len(tensors) != len(parameters):
            return None
        first = int(form.is_loop)
        carried = tensors[form.fixed : form.fixed + form.carried]
        if not same_bytes(carried, routine.results[first : first + form.carried]):
            return None
        return cls(node, form, tensors, routine, threads, streams)

    @property
    def is_unconditional(self) -> bool:
        """Whether the condition is always true, so that only the trip count ends the loop."""
        return self.repetition.is_unconditional

    def memory(self, plans: Sequence[Plan]) -> RunMemory:
        """The contexts of the body's plans share their memory; carried values have two places."""
        values = sum(map(nbytes_of, self._results)) + sum(map(nbytes_of, self._carried))
        return RunMemory.in_turns(plans, self._threads) + RunMemory(scratch=values)

    def run(self, inputs: Sequence[Value], limit: int, condition: bool, inference: Inference) -> list[Value]:
        """The outputs of the node; `inputs` are the carried values, the sequences and the captured values."""
        arrays = self._checked(inputs)
        start = time.perf_counter_ns() if inference.is_profiling else 0
        carried = [np.empty(t.shape.get_shape(), t.element_type.numpy) for t in self._carried]
        stacked = self._stacks(limit if condition else 0)
        name = f"{self._op_type} `{self._name}`"
        try:
            made = self._runner.run(
                arrays,
                carried,
                stacked,
                inference.cancel,
                limit=limit,
                condition=condition,
                profile=inference.is_profiling,
            )
        except Cancelled:
            inference.check_cancelled()  # raises the error that stopped the inference
            raise
        except OutOfMemoryError as e:
            raise too_large(name, "more than fits into memory") from e
        except InputError as e:
            raise InputError(f"{name}: {e}") from e
        if made.profile is not None:
            record_body(self._name, self._op_type, inference, start, times_of(self.step_nodes, made.profile))
        columns = zip(stacked, made.grown, self._stacked, strict=True)
        return [*carried, *(self._shaped(*column, made.trips) for column in columns)]

    def _stacks(self, trips: int) -> list[Array | None]:
        """The arrays of stacked outputs, if their length is known before."""
        if not self.is_unconditional:
            return [None] * len(self._stacked)
        return [
            new_stack(
                f"{self._op_type} `{self._name}`",
                stacked_shape(t.shape.get_shape(), trips, axis),
                t.element_type.numpy,
                self._limit,
            )
            for t, (axis, _) in zip(self._stacked, self._form.stacks, strict=True)
        ]

    def _shaped(self, given: Array | None, grown: Array | None, element: TensorType, trips: int) -> Array:
        if given is not None:
            return given
        assert grown is not None
        if self._limit:
            check_bytes(grown.nbytes, f"{self._op_type} `{self._name}`", self._limit)
        return grown.view(element.element_type.numpy).reshape(trips, *element.shape.get_shape())

    def _checked(self, inputs: Sequence[Value]) -> list[Array]:
        """The inputs; their types were inferred, and a blob or a wrong inference may contradict."""
        first = self._form.carried
        checked = []
        for index, (value, expected) in enumerate(zip(inputs, self._inputs, strict=True)):
            array = np.require(value, requirements=["C", "A"])
            shape = array.shape
            position = index - first
            if 0 <= position < len(self._form.elements):
                axis = self._form.elements[position][0]
                shape = shape[:axis] + shape[axis:][1:]
            if array.dtype != expected.element_type.numpy or shape != expected.shape.get_shape():
                raise InputError(
                    f"{self._op_type} `{self._name}`: its body takes {expected} where it is given "
                    f"{array.dtype}{list(shape)}"
                )
            checked.append(array)
        return checked


def _axis_of(element: TensorType, axis: int, is_reversed: bool) -> SequenceAxis:
    shape = element.shape.get_shape()
    place = axis if axis >= 0 else axis + len(shape) + 1
    return SequenceAxis.of(shape, element.element_type.numpy.itemsize, place, is_reversed=is_reversed)
