"""Plans of a whole model from plans of its short form, in which layers that repeat are left out.

At some lengths, both are lowered. Each call that builds the plan of the whole model then has a twin among those for the
short form: the same kernel, or buffer, with the same numbers. At other lengths, its numbers are its twin's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from engine.startup import dataclass
from engine_cpu.families import Recording
from engine_cpu.recording import BufferCall, PlanCalls, StepCall

Array = np.ndarray[Any, np.dtype[Any]]

_BORDER: Final = ("input", "state", "output")


@dataclass(frozen=True, slots=True)
class Expansion:
    """The plans of the whole and the short model at the same lengths, and which calls are twins."""

    whole: Recording
    short: Recording
    calls: Sequence[int]
    """For each call of the whole, that of the short form."""
    outputs: Sequence[int]
    """The same for outputs."""
    states: Sequence[int]
    """The same for variables in place."""

    @classmethod
    def of(cls, whole: Recording, short: Recording, removed: int) -> Expansion | None:
        """The twins of the calls, without `removed` repetitions; None if there are calls without one."""
        if whole.is_assuming != short.is_assuming:
            return None
        twins: dict[int, int] = {}
        for ours, theirs in zip(_parts(whole.calls), _parts(short.calls), strict=True):
            found = twins_of(
                [_form(whole.calls[index]) for index in ours], [_form(short.calls[index]) for index in theirs], removed
            )
            if found is None:
                return None
            twins |= {ours[index]: theirs[twin] for index, twin in enumerate(found)}
        outputs = twins_of(_output_forms(whole), _output_forms(short), removed)
        states = twins_of(_state_forms(whole), _state_forms(short), removed)
        if outputs is None or states is None:
            return None
        return cls(whole, short, [twins[index] for index in range(len(whole.calls))], outputs, states)

    def at(self, short: Recording) -> Recording | None:
        """The plan of the whole model at the lengths of one of the short form; None if that has other steps."""
        if not _have_one_form(short.calls, self.short.calls):
            return None
        calls: list[BufferCall | StepCall] = []
        is_changed = [not _is_equal_call(*pair) for pair in zip(self.short.calls, short.calls, strict=True)]
        for call, twin in zip(self.whole.calls, self.calls, strict=True):
            # A call that does not change is the same object for all lengths, which `fit_family` relies on to be fast.
            made = _changed(call, self.short.calls[twin], short.calls[twin]) if is_changed[twin] else call
            if made is None:
                return None
            calls.append(made)
        outputs = tuple(
            form._replace(shape=short.outputs[twin].shape)
            for form, twin in zip(self.whole.outputs, self.outputs, strict=True)
        )
        counts = tuple(short.counts[twin] for twin in self.states)
        return replace(self.whole, calls=calls, outputs=outputs, counts=counts)


def twins_of(whole: Sequence[Hashable], short: Sequence[Hashable], removed: int) -> list[int] | None:
    """For each element of `whole`, an equal one of `short`, which lacks `removed` repetitions of a part of it."""
    left = len(whole) - len(short)
    if left < 0 or left % removed:
        return None
    period = left // removed
    begin = next((i for i, (a, b) in enumerate(zip(whole, short, strict=False)) if a != b), len(short))
    if begin < period or list(whole[begin + left :]) != list(short[begin:]):
        return None
    found = [*range(begin), *(begin - period + index % period for index in range(left)), *range(begin, len(short))]
    return found if all(each == short[twin] for each, twin in zip(whole, found, strict=True)) else None


def _parts(calls: PlanCalls) -> list[list[int]]:
    """The calls for inputs, for variables and for outputs, which repeat by themselves, and the others."""
    border: dict[str, list[int]] = {kind: [] for kind in _BORDER}
    inside: list[int] = []
    for index, call in enumerate(calls):
        is_border = isinstance(call, BufferCall) and call.kind in border
        (border[call.kind] if is_border else inside).append(index)  # type: ignore[union-attr]
    return [*border.values(), inside]


def _output_forms(recording: Recording) -> list[Hashable]:
    return [(each.dtype, each.shape) for each in recording.outputs]


def _state_forms(recording: Recording) -> list[Hashable]:
    return [(each.form, count) for each, count in zip(recording.appends, recording.counts, strict=True)]


def _form(call: BufferCall | StepCall) -> Hashable:
    """What twins have in common: all numbers but those that are not integers, which a layer may have of its own."""
    if isinstance(call, StepCall):
        numbers = tuple((key, _integers(value)) for key, value in call.numbers.items())
        return call.kernel, len(call.inputs), len(call.outputs), numbers
    array = None if call.array is None else (call.array.dtype, call.array.shape)
    return call.kind, call.nbytes, call.alignment, call.offset, array


def _integers(value: Any) -> Hashable:
    if isinstance(value, (int, np.integer, str)):
        return value
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(_integers(each) for each in value)
    return type(value).__name__


def _have_one_form(calls: PlanCalls, others: PlanCalls) -> bool:
    """Whether calls differ in numbers and constants only."""
    return len(calls) == len(others) and all(map(_is_alike, calls, others))


def _is_alike(call: BufferCall | StepCall, other: BufferCall | StepCall) -> bool:
    if isinstance(call, StepCall):
        return isinstance(other, StepCall) and (
            (call.kernel, call.inputs, call.outputs, call.numbers.keys())
            == (other.kernel, other.inputs, other.outputs, other.numbers.keys())
        )
    return isinstance(other, BufferCall) and (
        (call.kind, call.of, call.alignment, call.array is None)
        == (other.kind, other.of, other.alignment, other.array is None)
    )


def _is_equal_call(call: BufferCall | StepCall, other: BufferCall | StepCall) -> bool:
    """Whether calls of one form have the same numbers, and constants with the same elements."""
    if isinstance(call, StepCall):
        return isinstance(other, StepCall) and call.numbers == other.numbers
    if not isinstance(other, BufferCall) or (call.nbytes, call.offset) != (other.nbytes, other.offset):
        return False
    return call.array is None or (other.array is not None and _is_equal(call.array, other.array))


def _changed(
    call: BufferCall | StepCall, known: BufferCall | StepCall, now: BufferCall | StepCall
) -> BufferCall | StepCall | None:
    """A call with what has changed in its twin; None if that is not known for this one."""
    if isinstance(call, BufferCall):
        assert isinstance(known, BufferCall)
        assert isinstance(now, BufferCall)
        array = _changed_array(call.array, known.array, now.array)
        if array is None and call.array is not None:
            return None
        return replace(call, nbytes=now.nbytes, offset=now.offset, array=array)
    assert isinstance(known, StepCall)
    assert isinstance(now, StepCall)
    numbers = _changed_numbers(call.numbers, known.numbers, now.numbers)
    return None if numbers is None else replace(call, numbers=numbers)


def _changed_numbers(
    numbers: Mapping[str, Any], known: Mapping[str, Any], now: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    changed = [key for key, value in known.items() if value is not now[key] and value != now[key]]
    if not changed:
        return numbers
    if any(numbers[key] != known[key] for key in changed):
        return None
    return {**numbers, **{key: now[key] for key in changed}}


def _changed_array(array: Array | None, known: Array | None, now: Array | None) -> Array | None:
    """The constant itself if its twin has the same elements as before; the twin's if it was equal to that.

    None if the twin's is longer than what was compared: tables of two layers may be equal at their beginning only.
    """
    if array is None or known is None or now is None or _is_equal(known, now):
        return array
    return now if now.nbytes <= known.nbytes and _is_equal(array, known) else None


def _is_equal(array: Array, other: Array) -> bool:
    if array is other or (array.ctypes.data == other.ctypes.data and array.nbytes == other.nbytes):
        return True
    return array.dtype == other.dtype and array.shape == other.shape and array.tobytes() == other.tobytes()
