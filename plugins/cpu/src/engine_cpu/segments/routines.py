"""`CompiledRoutine`: a program that runs in a native loop, as a routine of the native core."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Model, TensorType, ValueType
from engine.native import Routine
from engine.startup import dataclass
from engine_cpu.program import Program
from engine_cpu.segments.routine_draft import RoutineDraft, StepNames


@dataclass(frozen=True, slots=True)
class CompiledRoutine:
    """A routine, the types of its results, and the nodes of the steps of each plan in it, in the order of a profile."""

    routine: Routine
    results: tuple[TensorType, ...]
    step_nodes: tuple[StepNames, ...]

    @classmethod
    def of(cls, program: Program, model: Model) -> CompiledRoutine | None:
        """The routine of a program of `model`; None if a part of it runs outside plans, or a size is unknown."""
        parameters = [parameter.type for parameter in model.parameters]
        results = [tensor for each in model.results if (tensor := _fixed(each.type)) is not None]
        if len(results) != len(model.results) or any(_fixed(each) is None for each in parameters):
            return None
        draft = RoutineDraft()
        ids: dict[int, int] = {}
        for slot, value_type in enumerate(parameters):
            assert isinstance(value_type, TensorType)
            ids[slot] = draft.builder.add_input(nbytes_of(value_type), value_type.element_type.numpy.itemsize)
        for slot, array in program.constants.items():
            if array.dtype.hasobject:
                return None
            ids[slot] = draft.add_constant(array)
        for scheduled in program.segments:
            made = scheduled.segment.add_to(draft, [ids[slot] for slot in scheduled.reads])
            if made is None:
                return None
            ids.update(zip(scheduled.writes, made, strict=True))
        routine = draft.builder.build([ids[slot] for slot in program.outputs])
        return cls(routine, tuple(results), tuple(draft.step_nodes))


def nbytes_of(value_type: TensorType) -> int:
    """The bytes of a tensor of known shape."""
    return int(value_type.element_type.numpy.itemsize) * value_type.shape.size()


def _fixed(value_type: ValueType) -> TensorType | None:
    """The type, if it describes a tensor of known shape whose elements are bytes in memory."""
    if not isinstance(value_type, TensorType) or not value_type.shape.is_static:
        return None
    return None if value_type.element_type.numpy.hasobject else value_type


def same_bytes(a: Sequence[TensorType], b: Sequence[TensorType]) -> bool:
    """Whether values of these types are interchangeable in memory."""
    return [(x.element_type, x.shape.get_shape()) for x in a] == [(x.element_type, x.shape.get_shape()) for x in b]
