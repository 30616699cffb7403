"""`hand_over`: a model as ONNX for a runtime that a plugin wraps, and the names of its inputs and outputs there."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from engine.errors import DeviceError, UnsupportedError
from engine.ir import (
    UNREAD_CONSTANTS,
    ElementType,
    Model,
    Node,
    Output,
    Parameter,
    TensorType,
    ValueType,
    bf16,
    f32,
    i8,
    u8,
)
from engine.ir.element_type import ALL, undefined
from engine.ir.walk import all_nodes
from engine.onnx.naming import UniqueNames
from engine.startup import dataclass

_NOT_FOR_RUNTIMES: Final = frozenset({"overridable", "affinity", "metadata", "accuracy_level", "doc_string"})
"""Annotations that runtimes do not read: metadata of nodes would need IR version 10."""


NOT_IN_NUMPY: Final = frozenset(
    each for each in ALL if 0 < each.bits < 8 or (each.is_real and each.bits < 16) or each is bf16
)
"""The element types that numpy lacks: their arrays have dtypes of the package ml_dtypes."""


@dataclass(frozen=True, slots=True)
class RuntimePorts:
    """The inputs and outputs of a model that a runtime has read, for its requests.

    Attributes:
        inputs: the name in ONNX of each input, in the order of `Model.parameters`, which is that of
            `SyncInferRequest.inputs`. The inputs of variables are the last.
        outputs: the name in ONNX of each output, in the order of `Model.results`, which is that of `store_output`. The
            outputs of variables are the last.
        input_types: the element type of each input in ONNX, which differs from the model's if it was widened; None for
            values that are not tensors, or whose type only the runtime knows.
        output_types: the element type of each output in ONNX.
        result_types: the element type of each output in the model.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_types: tuple[ElementType | None, ...]
    output_types: tuple[ElementType | None, ...]
    result_types: tuple[ElementType | None, ...]

    def feeds(self, values: Sequence[Any]) -> dict[str, Any]:
        """The values of `SyncInferRequest.inputs` by their names in ONNX, in the types that they have there."""
        given = zip(self.inputs, values, self.input_types, strict=True)
        return {name: as_element_type(value, element_type) for name, value, element_type in given}

    def results(self, values: Sequence[Any]) -> list[Any]:
        """What the runtime has returned, in the order of `outputs`, for `store_output`: in the model's types.

        Raises `DeviceError` unless there is a value for each output, with the element type of the file.
        """
        if len(values) != len(self.outputs):
            raise DeviceError(
                f"the runtime returned {len(values)} values; expected {len(self.outputs)}: {self.outputs}"
            )
        found = []
        for name, value, given, wanted in zip(self.outputs, values, self.output_types, self.result_types, strict=True):
            is_array = isinstance(value, (np.ndarray, np.generic))
            if given is not None and (not is_array or ElementType.from_numpy(value.dtype) is not given):
                what = value.dtype if is_array else type(value).__name__
                raise DeviceError(f"the runtime returned {what} for output `{name}`; expected an array of {given}")
            found.append(as_element_type(np.asarray(value) if given is not None else value, wanted))
        return found


@dataclass(frozen=True, slots=True)
class HandedModel:
    """A model as ONNX.

    Attributes:
        source: the file's bytes, or its path if it is a file; both are valid within the `with` block of `hand_over`,
            and the bytes also later.
        ports: the names and types of its inputs and outputs, which a network keeps.
    """

    source: bytes | str
    ports: RuntimePorts

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs' names in ONNX, in the model's order."""
        return self.ports.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs' names in ONNX, in the model's order."""
        return self.ports.outputs


@contextmanager
def hand_over(
    model: Model,
    *,
    as_file: bool = False,
    folder: str | os.PathLike[str] | None = None,
    widen: Collection[ElementType] = (),
) -> Iterator[HandedModel]:
    """Write a model as ONNX for another runtime to read within the `with` block; the model is not changed.

        with hand_over(model) as given:
            session, ports = onnxruntime.InferenceSession(given.source), given.ports
        values = session.run(ports.outputs, ports.feeds(request.inputs))
        for index, value in enumerate(ports.results(values)):
            request.store_output(index, value)

    The graph is what `engine.onnx.write_model` writes: ONNX operators at the lowest opset from 13 on that expresses
    all nodes, with its lowest IR version. Operators of the domain `engine`, which passes make, are decomposed; those of
    other domains stay. Lengths keep their symbols.

    Inputs and outputs are those of the model, in order. They keep their names, unless a name is empty, or an input and
    an output have the same one: then they get others, so use `ports`. An output that is an input is one
    value with one name if both names are equal; otherwise an Identity is between them, as between two outputs of one
    value.

    Variables become plain inputs and outputs, the last ones: the request's `inputs` has their values, and
    `store_output` takes the new ones. Constants that are also inputs of the user's file are constants only, so that the
    runtime can fold them.

    Args:
        model: the model, or a part of one that HETERO gives to the device.
        as_file: write a file also for a model that fits in memory.
        folder: where to make the temporary folder with the file and `<name>.data`, which has the weights if they exceed
            2 GB; by default, where `tempfile` makes one. It needs space for the weights, and is removed after the
            block. A runtime that maps the files may keep them mapped, but not open them again.
        widen: element types that the runtime does not take from numpy, such as `NOT_IN_NUMPY`. Inputs and outputs of
            these types are of f32 in ONNX, or of i8 or u8 for integers, and are cast to their type behind the input,
            and from it before the output; `RuntimePorts` converts the arrays. This changes no value: each type holds
            all values of the narrower one.

    Raises `ModelWriteError` if ONNX cannot express the model, or the file cannot be written, and `UnsupportedError` for
    a type that cannot be widened.
    """
    from engine.onnx.exporter import MAX_INLINE_BYTES, weight_bytes
    from engine.onnx.writer import write_model

    copy = _with_plain_border(model, frozenset(widen))
    ports = RuntimePorts(
        tuple(parameter.friendly_name for parameter in copy.parameters),
        tuple(result.friendly_name for result in copy.results),
        tuple(_element_type(parameter.type) for parameter in copy.parameters),
        tuple(_element_type(result.type) for result in copy.results),
        tuple(_element_type(result.type) for result in model.results),
    )
    if not as_file and weight_bytes(copy) <= MAX_INLINE_BYTES:
        stream = io.BytesIO()
        write_model(copy, stream)
        del copy
        yield HandedModel(stream.getvalue(), ports)
        return
    with tempfile.TemporaryDirectory(prefix="engine-", dir=folder, ignore_cleanup_errors=True) as made:
        path = os.path.join(made, "model.onnx")
        write_model(copy, path)
        del copy
        yield HandedModel(path, ports)


def as_element_type(value: Any, element_type: ElementType | None) -> Any:
    """A tensor in another element type, as `RuntimePorts` converts inputs and outputs.

    `value` itself if it has the type, or is not an array. A value that is NaN stays NaN, without a warning.
    """
    if element_type is None or not isinstance(value, np.ndarray) or value.dtype == element_type.numpy:
        return value
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return value.astype(element_type.numpy)


def _with_plain_border(model: Model, widen: frozenset[ElementType]) -> Model:
    """A copy without variables and without constants that are inputs, whose inputs and outputs have names of their own.

    A result keeps the name of the parameter that it reads: both are one value then.
    """
    copy = model.clone()
    for variable in copy.variables:
        copy.remove_variable(variable.name)
    _widen_border(copy, widen)
    copy.rt_info.pop(UNREAD_CONSTANTS, None)
    for node in all_nodes(copy):
        for key in node.annotations.keys() & _NOT_FOR_RUNTIMES:
            node.rt_info.pop(key)
    names = UniqueNames()
    passed: dict[str, Parameter] = {}  # by the name that a result must have to be one value with the parameter
    for index, parameter in enumerate(copy.parameters):
        passed.setdefault(parameter.friendly_name, parameter)
        parameter.friendly_name = names.take(parameter.friendly_name or f"input_{index}")
    for index, result in enumerate(copy.results):
        given = passed.pop(result.friendly_name, None)
        if given is not None and result.input_value(0) == given.output(0):
            result.friendly_name = given.friendly_name
        else:
            result.friendly_name = names.take(result.friendly_name or f"output_{index}")
    return copy


def _widen_border(model: Model, widen: frozenset[ElementType]) -> None:
    wide = {element_type: _wider(element_type) for element_type in widen}
    for parameter in model.parameters:
        narrow = _element_type(parameter.type)
        if narrow in wide:
            readers = parameter.output(0).target_inputs
            parameter.type = TensorType(wide[narrow], parameter.output(0).shape)
            cast = _cast(parameter.output(0), narrow)
            for reader in readers:
                reader.replace_source_output(cast)
    for result in model.results:
        narrow = _element_type(result.input_value(0).type)
        if narrow in wide:
            result.input(0).replace_source_output(_cast(result.input_value(0), wide[narrow]))


def _cast(value: Output, element_type: ElementType) -> Node:
    # Saturated, infinity would become the largest number.
    is_narrow = element_type.is_real and element_type.bits <= 8
    attributes = {"to": element_type.onnx} | ({"saturate": 0} if is_narrow else {})
    return Node("Cast", [value], attributes, types=[TensorType(element_type, value.shape)])


def _wider(element_type: ElementType) -> ElementType:
    if element_type.is_real and element_type.bits < 32:
        return f32
    if element_type.is_integral and element_type.bits < 8:
        return i8 if element_type.is_signed else u8
    raise UnsupportedError(
        f"{element_type} cannot be widened: expected floating-point types of less than 32 bits, and integers of less "
        "than 8; refuse models with other types that the runtime does not take"
    )


def _element_type(value_type: ValueType) -> ElementType | None:
    if not isinstance(value_type, TensorType) or value_type.element_type is undefined:
        return None
    return value_type.element_type
