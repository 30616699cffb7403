"""Type rules of signal operators for which ONNX's inference is wrong (STFT) or missing (windows, MelWeightMatrix).

And the evaluation of windows and mel weights, in f64: `onnx.reference` counts elements of windows in the type of the
result, computes frequencies in the type of the edges, and takes some beyond the spectrum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, Dimension, ElementType, Node, PartialShape, TensorType, ValueType, as_dimension
from engine.ops.cost import CALL, lengths_of, more_time
from engine.ops.precision import truncated
from engine.ops.registry import attribute, evaluates, get_op, infers, restricts
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.suspect_values import Suspicion, given, is_outside, least, suspects
from engine.ops.tensors import Array
from engine.ops.traits import declare

declare("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "DFT", "STFT", inflates=True)


@infers("BlackmanWindow", "HammingWindow", "HannWindow")
def _infer_window(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type))
    size = constant_int(node, 0)
    if size is not None and size < 0:
        fail(node, f"size {size} must not be negative")
    return (TensorType(ElementType.from_onnx(attribute(node, "output_datatype")), PartialShape([size])),)


@evaluates("BlackmanWindow")
def blackman_window(size: Array, *, output_datatype: int, periodic: int) -> Array:
    """The window of Blackman (ONNX BlackmanWindow-17)."""
    angles = _angles(size, periodic)
    return _of_type(-0.5 * np.cos(angles) + 0.08 * np.cos(2 * angles) + 0.42, output_datatype)


@evaluates("HammingWindow")
def hamming_window(size: Array, *, output_datatype: int, periodic: int) -> Array:
    """The window of Hamming (ONNX HammingWindow-17)."""
    return _of_type(25 / 46 - 21 / 46 * np.cos(_angles(size, periodic)), output_datatype)


@evaluates("HannWindow")
def hann_window(size: Array, *, output_datatype: int, periodic: int) -> Array:
    """The window of Hann (ONNX HannWindow-17)."""
    return _of_type(np.sin(_angles(size, periodic) / 2) ** 2, output_datatype)


def _angles(size: Array, periodic: int) -> Array:
    """A full circle over the window; NaN, which is 0 / 0, for the only element of a symmetric one."""
    count = int(size.reshape(-1)[0])
    angles: Array = np.arange(count) * (2 * np.pi) / np.float64(count if periodic else count - 1)
    return angles


def _of_type(window: Array, output_datatype: int) -> Array:
    dtype = ElementType.from_onnx(output_datatype).numpy
    return truncated(window, dtype) if np.dtype(dtype).kind in "iu" else window.astype(dtype)


@infers("MelWeightMatrix")
def _infer_mel_weights(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("MelWeightMatrix"))
    bins, length = constant_int(node, 0), constant_int(node, 1)
    shape = PartialShape([None if length is None else length // 2 + 1, bins])
    return (TensorType(ElementType.from_onnx(attribute(node, "output_datatype")), shape),)


@evaluates("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Array, dft_length: Array, sample_rate: Array, lower: Array, upper: Array, *, output_datatype: int
) -> Array:
    """Triangles over bins of the spectrum, [dft_length // 2 + 1, num_mel_bins] (ONNX MelWeightMatrix-17), in f64.

    Raises `ModelError` for edges that are not in order, or beyond the bins.
    """
    count, length, rate = (int(each.reshape(-1)[0]) for each in (num_mel_bins, dft_length, sample_rate))
    edges = [float(each.reshape(-1)[0]) for each in (lower, upper)]
    bins = length // 2 + 1
    first, last = 2595 * np.log10(1 + np.array(edges) / 700)
    points = first + np.arange(count + 2) * (last - first) / (count + 2)
    found = (length + 1) * 700 * (10 ** (points / 2595) - 1) / rate
    if not (0 <= edges[0] <= edges[1] and found[-1] < bins):
        raise ModelError(
            f"lower_edge_hertz is {edges[0]:g} and upper_edge_hertz {edges[1]:g}; expected 0 <= lower <= upper and the "
            f"highest triangle within {bins} bins, which is certain up to {rate / 2:g} Hz, half of sample_rate"
        )
    places = np.floor(found).astype(np.int64)
    weights = np.zeros((bins, count))
    for index in range(count):
        low, centre, high = places[index : index + 3]
        if low == centre:
            weights[centre, index] = 1
        else:
            weights[low : centre + 1, index] = np.arange(centre + 1 - low) / (centre - low)
        if centre < high:
            weights[centre:high, index] = np.arange(high - centre, 0, -1) / (high - centre)
    return _of_type(weights, output_datatype)


@infers("STFT")
def _infer_stft(node: Node) -> Sequence[ValueType]:
    """[batch, length, 1 or 2] to [batch, frames, bins, 2]; ONNX's inference assumes a default of 0 for `onesided`."""
    check_inputs(node, get_op("STFT"))
    signal = tensor_type(node, 0)
    for index, name in ((1, "frame_step"), (3, "frame_length")):
        number = tensor_type(node, index).shape if node.has_input(index) else None
        if number is not None and number.rank.is_static and len(number):
            fail(node, f"{name} has shape {number}; expected a scalar")
    window = tensor_type(node, 2).shape if node.has_input(2) else None
    if window is not None and window.rank.is_static and len(window) != 1:
        fail(node, f"window has shape {window}; expected a vector")
    batch = length = as_dimension(None)
    if signal.shape.rank.is_static:
        if len(signal.shape) not in (2, 3):
            fail(node, "the signal must have shape [batch, length] or [batch, length, 1 or 2]")
        batch, length = signal.shape[0], signal.shape[1]
    frame = _frame_length(node, length)
    step = constant_int(node, 1)
    if step is not None and step < 1:
        fail(node, f"frame_step {step} must be 1 or more")
    if frame is not None and window is not None and window.rank.is_static and not window[0].accepts(frame):
        fail(node, f"window has {window[0]} elements; expected {frame}, which is frame_length")
    if frame is not None and frame < 1:
        fail(node, f"frame_length {frame} must be 1 or more")
    if frame is not None and length.max is not None and frame > length.max:
        fail(node, f"frames of {frame} do not fit a signal of length {length}")
    frames: int | None = None
    if frame is not None and step is not None and length.is_static:
        frames = 1 + (length.min - frame) // step
    bins = None if frame is None else frame // 2 + 1 if attribute(node, "onesided") else frame
    return (TensorType(signal.element_type, PartialShape([batch, frames, bins, 2])),)


def _frame_length(node: Node, length: Dimension) -> int | None:
    if node.has_input(3):
        return constant_int(node, 3)
    if node.has_input(2):
        window = tensor_type(node, 2).shape
        return window[0].min if window.rank.is_static and len(window) == 1 and window[0].is_static else None
    return length.min if length.is_static else None


@restricts("DFT", "MelWeightMatrix")
def _restrict_lengths(node: Node) -> None:
    names = {1: "dft_length"} if node.op_type == "DFT" else {0: "num_mel_bins", 1: "dft_length", 2: "sample_rate"}
    for index, name in names.items():
        number = constant_int(node, index) if node.has_input(index) else None
        if number is not None and number < 1:
            fail(node, f"{name} is {number}; expected 1 or more")
    shape = tensor_type(node, 0).shape
    axis = constant_int(node, 2) if node.op_type == "DFT" and node.has_input(2) else -2
    if node.op_type != "DFT" or node.has_input(1) or shape.rank.is_dynamic or axis is None:
        return
    is_halved = attribute(node, "inverse") and attribute(node, "onesided")
    if is_halved and -len(shape) <= axis < len(shape) and shape[axis].max in (0, 1):
        fail(node, f"axis {axis} has length {shape[axis]}; a onesided inverse needs 2 or more, or dft_length")


def constant_int(node: Node, index: int) -> int | None:
    """The value of an input that is a constant with one integer; None if it is computed."""
    source = node.input_value(index)
    if not isinstance(source.node, Constant) or source.node.output(0).shape.size() != 1:
        return None
    return int(source.node.data.reshape(-1)[0])


@more_time("STFT")
def _time(node: Node) -> float:
    """Some steps for each frame."""
    return 10.0 * CALL * sum(lengths_of(node.output(0))[1:2])


@suspects("DFT")
def _suspicion_of_dft(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        axis, rank = given(inputs, 2), inputs[0].ndim
        return axis is not None and (is_outside(axis, -rank, rank - 2) or int(axis.reshape(-1)[0]) == -1)

    return is_suspect


@suspects("MelWeightMatrix")
def _suspicion_of_mel_weights(node: Node) -> Suspicion:
    return lambda inputs: any(int(value.reshape(-1)[0]) < 1 for value in inputs[:3])


@suspects("STFT")
def _suspicion_of_frames(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        signal, step, window, length = inputs[0], inputs[1], given(inputs, 2), given(inputs, 3)
        frames = {int(value) for value in (None if window is None else window.size, length) if value is not None}
        if len(frames) > 1 or step.min() < 1:
            return True
        return any(not 1 <= frame <= signal.shape[1] for frame in frames)

    return is_suspect


suspects("BlackmanWindow", "HammingWindow", "HannWindow")(least(0, 0))
