"""`hand_over`: a model as ONNX for a runtime that a plugin wraps, and the names of its inputs and outputs there."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from engine.ir import UNREAD_CONSTANTS, Model, Parameter
from engine.ir.walk import all_nodes
from engine.onnx.naming import UniqueNames
from engine.startup import dataclass

_NOT_FOR_RUNTIMES: Final = frozenset({"overridable", "affinity", "metadata", "accuracy_level", "doc_string"})
"""Annotations that runtimes do not read: metadata of nodes would need IR version 10."""


@dataclass(frozen=True, slots=True)
class HandedModel:
    """A model as ONNX.

    Attributes:
        source: the file's bytes, or its path if it is a file; both are valid within the `with` block of `hand_over`,
            and the bytes also later.
        inputs: the name in ONNX of each input, in the order of `Model.parameters`, which is that of
            `SyncInferRequest.inputs`. The inputs of variables are the last.
        outputs: the name in ONNX of each output, in the order of `Model.results`, which is that of `store_output`. The
            outputs of variables are the last.
    """

    source: bytes | str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@contextmanager
def hand_over(
    model: Model, *, as_file: bool = False, folder: str | os.PathLike[str] | None = None
) -> Iterator[HandedModel]:
    """Write a model as ONNX for another runtime to read within the `with` block; the model is not changed.

        with hand_over(model) as given:
            session = onnxruntime.InferenceSession(given.source)
        results = session.run(given.outputs, dict(zip(given.inputs, request_inputs)))

    The graph is what `engine.onnx.write_model` writes: ONNX operators at the lowest opset from 13 on that expresses
    all nodes, with its lowest IR version. Operators of the domain `engine`, which passes make, are decomposed; those of
    other domains stay. Lengths keep their symbols.

    Inputs and outputs are those of the model, in order. They keep their names, unless a name is empty, or an input and
    an output have the same one: then they get others, so use `inputs` and `outputs`. An output that is an input is one
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

    Raises `ModelWriteError` if ONNX cannot express the model, or the file cannot be written.
    """
    from engine.onnx.exporter import MAX_INLINE_BYTES, weight_bytes
    from engine.onnx.writer import write_model

    copy = _with_plain_border(model)
    inputs = tuple(parameter.friendly_name for parameter in copy.parameters)
    outputs = tuple(result.friendly_name for result in copy.results)
    if not as_file and weight_bytes(copy) <= MAX_INLINE_BYTES:
        stream = io.BytesIO()
        write_model(copy, stream)
        del copy
        yield HandedModel(stream.getvalue(), inputs, outputs)
        return
    with tempfile.TemporaryDirectory(prefix="engine-", dir=folder, ignore_cleanup_errors=True) as made:
        path = os.path.join(made, "model.onnx")
        write_model(copy, path)
        del copy
        yield HandedModel(path, inputs, outputs)


def _with_plain_border(model: Model) -> Model:
    """A copy without variables and without constants that are inputs, whose inputs and outputs have names of their own.

    A result keeps the name of the parameter that it reads: both are one value then.
    """
    copy = model.clone()
    for variable in copy.variables:
        copy.remove_variable(variable.name)
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
