"""Values of inputs that an operator does not allow, but an evaluation would take: it would give some result.

The reason, as for a failed evaluation, is the type rule's: see `engine.ops.refusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from engine.ir import Node
from engine.ops.registry import attribute

Suspicion: TypeAlias = Callable[[Sequence[Any]], bool]
"""Whether the values of a node's inputs are not allowed."""


def suspicion_of(node: Node) -> Suspicion | None:
    """The check of the values of inputs of `node`, which is not kept; None if its evaluation fails for all others."""
    factory = None if node.domain else _FACTORIES.get(node.op_type)
    return None if factory is None else factory(node)


def _is_outside(values: Any, low: int, high: int) -> bool:
    return values.size > 0 and (int(values.min()) < low or int(values.max()) > high)


def _given(inputs: Sequence[Any], index: int) -> Any:
    return inputs[index] if index < len(inputs) else None


def _dft(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        axis, rank = _given(inputs, 2), inputs[0].ndim
        return axis is not None and (_is_outside(axis, -rank, rank - 2) or int(axis.reshape(-1)[0]) == -1)

    return is_suspect


def _dropout(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        ratio, training = _given(inputs, 1), _given(inputs, 2)
        return ratio is not None and training is not None and bool(training) and not 0 <= float(ratio) < 1

    return is_suspect


def _least(index: int, low: int) -> Callable[[Node], Suspicion]:
    """No element of input `index` is below `low`."""

    def factory(node: Node) -> Suspicion:
        def is_suspect(inputs: Sequence[Any]) -> bool:
            value = _given(inputs, index)
            return value is not None and value.size > 0 and bool(value.min() < low)

        return is_suspect

    return factory


def _mel_weights(node: Node) -> Suspicion:
    return lambda inputs: any(int(value.reshape(-1)[0]) < 1 for value in inputs[:3])


def _recurrent(node: Node) -> Suspicion:
    axis = 1 if attribute(node, "layout") else 0

    def is_suspect(inputs: Sequence[Any]) -> bool:
        counts = _given(inputs, 4)
        return counts is not None and _is_outside(counts, 0, inputs[0].shape[axis])

    return is_suspect


def _reverse_sequence(node: Node) -> Suspicion:
    axis = attribute(node, "time_axis")
    return lambda inputs: _is_outside(inputs[1], 0, inputs[0].shape[axis])


def _roi_align(node: Node) -> Suspicion:
    return lambda inputs: _is_outside(inputs[2], 0, inputs[0].shape[0] - 1)


def _split_to_sequence(node: Node) -> Suspicion:
    axis = attribute(node, "axis")

    def is_suspect(inputs: Sequence[Any]) -> bool:
        lengths = _given(inputs, 1)
        if lengths is None or not -inputs[0].ndim <= axis < inputs[0].ndim:
            return False  # the evaluation notices
        if not lengths.ndim:
            return bool(lengths < 1)
        return bool((lengths < 0).any()) or int(lengths.sum()) != inputs[0].shape[axis]

    return is_suspect


def _stft(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        signal, step, window, length = inputs[0], inputs[1], _given(inputs, 2), _given(inputs, 3)
        frames = {int(value) for value in (None if window is None else window.size, length) if value is not None}
        if len(frames) > 1 or step.min() < 1:
            return True
        return any(not 1 <= frame <= signal.shape[1] for frame in frames)

    return is_suspect


def _top_k(node: Node) -> Suspicion:
    axis = attribute(node, "axis")

    def is_suspect(inputs: Sequence[Any]) -> bool:
        shape = inputs[0].shape
        return -len(shape) <= axis < len(shape) and _is_outside(inputs[1], 0, shape[axis])

    return is_suspect


def _empty_maps(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        return inputs[0].size == 0 and all(inputs[0].shape[:2])

    return is_suspect


_FACTORIES: Final[dict[str, Callable[[Node], Suspicion]]] = {
    "BlackmanWindow": _least(0, 0),
    "DFT": _dft,
    "Dropout": _dropout,
    "GRU": _recurrent,
    "GlobalAveragePool": _empty_maps,
    "HammingWindow": _least(0, 0),
    "HannWindow": _least(0, 0),
    "LSTM": _recurrent,
    "MelWeightMatrix": _mel_weights,
    "OneHot": _least(1, 0),
    "RNN": _recurrent,
    "ReverseSequence": _reverse_sequence,
    "Reshape": _least(1, -1),
    "RoiAlign": _roi_align,
    "STFT": _stft,
    "SplitToSequence": _split_to_sequence,
    "TensorScatter": _least(2, 0),
    "TopK": _top_k,
}
