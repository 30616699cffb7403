"""Evaluation of operators on optionals and sequences. An empty optional is None; any other is its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Node
from engine.ops.registry import attribute, evaluates
from engine.ops.result_size import VIEW, Measure, measures, value_bytes
from engine.ops.suspect_values import Suspicion, given, suspects


@evaluates("Optional")
def optional(value: Any = None) -> tuple[Any]:
    """The value as an optional; without one, an empty optional (ONNX Optional-15)."""
    return (value,)


@evaluates("OptionalHasElement")
def optional_has_element(value: Any = None) -> Any:
    """Whether an optional has a value (ONNX OptionalHasElement-18)."""
    return np.asarray(value is not None)


@evaluates("OptionalGetElement")
def optional_get_element(value: Any) -> tuple[Any]:
    """The value of an optional (ONNX OptionalGetElement-18)."""
    if value is None:
        raise ModelError("the optional is empty; check OptionalHasElement first")
    return (value,)


@evaluates("SequenceInsert")
def sequence_insert(sequence: list[Any], value: Any, position: Any = None) -> tuple[list[Any]]:
    """The sequence with a value inserted at -n..n, by default at the end (ONNX SequenceInsert-11)."""
    length = len(sequence)
    place = length if position is None else _int(position)
    if not -length <= place <= length:
        raise ModelError(f"position {place} is out of range for a sequence of {length}; expected {-length}..{length}")
    result = list(sequence)
    result.insert(place, value)
    return (result,)


@evaluates("SequenceAt")
def sequence_at(sequence: list[Any], position: Any) -> tuple[Any]:
    """The value at -n..n-1 (ONNX SequenceAt-11)."""
    return (sequence[_place(sequence, position)],)


@evaluates("SequenceErase")
def sequence_erase(sequence: list[Any], position: Any = None) -> tuple[list[Any]]:
    """The sequence without the value at -n..n-1, by default the last (ONNX SequenceErase-11)."""
    place = _place(sequence, -1 if position is None else position)
    return ([value for index, value in enumerate(sequence) if index != place],)


def _place(sequence: list[Any], position: Any) -> int:
    length, place = len(sequence), _int(position)
    if not -length <= place < length:
        raise ModelError(f"position {place} is out of range for a sequence of {length}")
    return place % length


def _int(position: Any) -> int:
    return int(np.asarray(position).reshape(-1)[0])


# -- sizes ------------------------------------------------------------------------------------------------


@measures("SplitToSequence")
def _size_of_split(node: Node) -> Measure:
    axis = node.attributes.get("axis", 0)

    def measure(inputs: Sequence[Any]) -> int:
        split = inputs[1] if len(inputs) > 1 else None
        if split is not None and split.ndim:
            return int(split.size) * VIEW
        step = 1 if split is None else max(1, int(split.item()))
        return -(-int(inputs[0].shape[axis]) // step) * VIEW

    return measure


@measures("ConcatFromSequence")
def _size_of_joined(node: Node) -> Measure:
    return lambda inputs: sum(value_bytes(value) for value in inputs[0])


@suspects("SplitToSequence")
def _suspicion_of_lengths(node: Node) -> Suspicion:
    axis = attribute(node, "axis")

    def is_suspect(inputs: Sequence[Any]) -> bool:
        lengths = given(inputs, 1)
        if lengths is None or not -inputs[0].ndim <= axis < inputs[0].ndim:
            return False  # the evaluation notices
        if not lengths.ndim:
            return bool(lengths < 1)
        return bool((lengths < 0).any()) or int(lengths.sum()) != inputs[0].shape[axis]

    return is_suspect
