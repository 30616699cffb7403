"""Detects nodes for which the C++ of ONNX's inference would crash, hang, or allocate any size that the file states."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from engine.errors import ModelReadError, TypeInferenceError
from engine.ir import Output, TensorType
from engine.onnx.functions import describe, subgraphs
from engine.startup.onnx_library import onnx

_AXES: Final = frozenset({
    "axes", "axis", "batch_axis", "batch_dims", "concat_axis", "perm", "scan_input_axes", "scan_output_axes",
    "time_axis",
})  # fmt: skip
# If an input of these has no type, such as the output of a custom operator, ONNX dereferences a null pointer.
_NEEDS_TYPE: Final = frozenset({"DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"})
# Their lists may have been taken out of the proto.
_WITH_LISTS: Final = frozenset({"TreeEnsembleClassifier", "TreeEnsembleRegressor"})
# The inputs that have one element for each axis of a tensor.
_PER_AXIS: Final = {
    "CenterCropPad": 1, "ConstantOfShape": 0, "Expand": 1, "MaxUnpool": 2, "Reshape": 1, "Slice": 1, "Squeeze": 1,
    "Tile": 1, "Unsqueeze": 1, "Upsample": 1,
}  # fmt: skip
# Operators that create a vector whose length is the value of an input.
_SIZED_BY_VALUES: Final = frozenset({
    "CenterCropPad", "ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Reshape", "Resize", "Tile", "TopK",
    "Upsample",
})  # fmt: skip
# Inputs that say which axes are meant, or how: ONNX ignores values that it does not know.
_SHAPING_INPUTS: Final = {"Pad": (3,), "Slice": (3, 4)}
_WRONGLY_INFERRED: Final = frozenset({"Attention", "AveragePool", "ConvTranspose", "Einsum", "LpPool", "MaxPool"})
_HIDDEN: Final = "\0engine.hidden"
_MAX_AXES: Final = 64  # the limit of numpy
_NARROW: Final = 1 << 31


def check_values(node: onnx.NodeProto) -> None:
    """Reject attribute values that would make it access memory out of bounds, such as axes that no tensor has.

    Raises `ModelReadError`. The attributes must have the schema's types.
    """
    op_type = node.op_type
    for attribute in node.attribute:
        name = attribute.name
        if name in _AXES:
            low = 0 if name == "batch_dims" else -_MAX_AXES
            for value in attribute.ints or (attribute.i,):
                if not low <= value <= _MAX_AXES:
                    raise ModelReadError(
                        f"{describe(node)}: {name} {value} is out of range; expected {low}..{_MAX_AXES}"
                    )
        elif name == "num_outputs" and op_type == "Split" and attribute.i != len(node.output):
            raise ModelReadError(
                f"{describe(node)}: num_outputs is {attribute.i}, but the node has {len(node.output)} outputs"
            )
        elif name == "equation":
            _check_equation(node, attribute.s.decode("utf-8", "replace"))


def hide_hazards(parts: Sequence[onnx.GraphProto]) -> None:
    """Hide from inference the nodes for which it may crash the process, or is wrong.

    `parts` are a graph and its bodies. An example is a Slice without axes and with computed starts: ONNX creates as
    many axes as starts has elements. Raises `TypeInferenceError` if the file declares more elements than possible axes.
    """
    has_slices = False
    wild = _wild_steps(parts)
    declared = {value.name: value.type.tensor_type.shape.dim for value in parts[0].input}
    long = {name for name, dims in declared.items() if len(dims) == 1 and dims[0].dim_value > _MAX_AXES}
    for node in (node for part in parts for node in part.node):
        op_type = node.op_type
        if (
            op_type in _NEEDS_TYPE
            or op_type in _WITH_LISTS
            or _is_wrongly_inferred(node)
            or not wild.isdisjoint(_steps(node))
        ):
            _hide(node)
        has_slices = has_slices or (op_type == "Slice" and _lacks_axes(node)) or bool(_shaping_inputs(node))
        index = _PER_AXIS.get(op_type) if long else None
        if index is not None and index < len(node.input) and node.input[index] in long:
            raise _too_many(describe(node), index)
    if has_slices:
        _hide_undecided(parts[0], frozenset())


def hide_vector_makers(parts: Sequence[onnx.GraphProto], inferred: Sequence[onnx.GraphProto]) -> None:
    """Hide from inference with data propagation the nodes that create vectors whose lengths are computed values.

    Propagation creates an object for each element of a vector. `inferred` are the graphs after inference without it.
    """
    for part, found in zip(parts, inferred, strict=True):
        lengths = {value.name: value.type.tensor_type for value in (*found.value_info, *found.output)}
        for node in part.node:
            if node.op_type in _SIZED_BY_VALUES and not all(_is_harmless(lengths.get(name)) for name in node.output):
                _hide(node)


@contextmanager
def hidden_domains(model: onnx.ModelProto) -> Iterator[None]:
    """Let a model import the domains of hidden nodes: ONNX infers nothing of a model with a domain that it lacks."""
    count = len(model.opset_import)
    for domain in {"", "ai.onnx", *(entry.domain for entry in model.opset_import)}:
        model.opset_import.add(domain=_HIDDEN + domain, version=1)
    try:
        yield
    finally:
        del model.opset_import[count:]


def show_hidden(parts: Sequence[onnx.GraphProto]) -> None:
    """Restore the hidden nodes in the graphs that inference returned."""
    for node in (node for part in parts for node in part.node):
        if node.domain.startswith(_HIDDEN):
            node.domain = node.domain.removeprefix(_HIDDEN)


def check_call(op_type: str, inputs: Sequence[Output | None], name: str) -> None:
    """Reject a call with impossible input types before ONNX infers it as a single node.

    Raises `TypeInferenceError`.
    """
    index = _PER_AXIS.get(op_type)
    value = None if index is None or index >= len(inputs) else inputs[index]
    if value is None or not isinstance(value.type, TensorType):
        return
    shape = value.type.shape
    if shape.is_static and shape.size() > _MAX_AXES:
        raise _too_many(f"{op_type} `{name}`", index)


def _hide(node: onnx.NodeProto) -> None:
    if not node.domain.startswith(_HIDDEN):
        node.domain = _HIDDEN + node.domain


def _is_wrongly_inferred(node: onnx.NodeProto) -> bool:
    """Whether ONNX may infer a wrong shape, and `engine.ops` infers the right one.

    For a ConvTranspose it drops dimensions whose output_shape is smaller than the input, and adds output_padding to
    SAME padding; for an Attention it takes unknown lengths for 0; for an Einsum it takes the first length of a label,
    which another operand may broadcast; before opset 22, it counts windows of a pooling that are all padding.
    """
    op_type = node.op_type
    if op_type not in _WRONGLY_INFERRED:
        return False
    given = {attribute.name: attribute for attribute in node.attribute}
    if op_type == "Attention":
        return "q_num_heads" in given or len(node.output) > 3
    if op_type == "Einsum":
        return True
    if op_type != "ConvTranspose":
        return "ceil_mode" in given and given["ceil_mode"].i != 0
    is_same = "auto_pad" in given and given["auto_pad"].s.startswith(b"SAME")
    return "output_shape" in given or ("output_padding" in given and is_same)


def _is_harmless(tensor: onnx.TypeProto.Tensor | None) -> bool:
    """Whether a value is not a vector, or has a known length."""
    if tensor is None or not tensor.HasField("shape"):
        return False
    dims = tensor.shape.dim
    return len(dims) != 1 or dims[0].HasField("dim_value")


def _too_many(node: str, index: int | None) -> TypeInferenceError:
    return TypeInferenceError(f"{node}: input {index} has one element per axis; at most {_MAX_AXES} are allowed")


def _wild_steps(parts: Sequence[onnx.GraphProto]) -> set[str]:
    """The constants with steps of Slices that do not fit in 32 bits.

    ONNX propagates data with steps cut to 32 bits: a step of 2**62 becomes 0, for which it makes elements without end.
    """
    used = {name for part in parts for node in part.node for name in _steps(node)}
    if not used:
        return used
    constants = [tensor for part in parts for tensor in part.initializer if tensor.name in used]
    found = {tensor.name for tensor in constants if not _are_narrow(tensor)}
    for node in (node for part in parts for node in part.node if node.op_type == "Constant"):
        if not used.isdisjoint(node.output) and not all(
            _are_narrow(attribute.t) and all(abs(value) < _NARROW for value in (*attribute.ints, attribute.i))
            for attribute in node.attribute
        ):
            found.update(node.output)
    return found


def _steps(node: onnx.NodeProto) -> Sequence[str]:
    """The name of the steps of a Slice, if it has any."""
    return node.input[4:5] if node.op_type == "Slice" else ()


def _are_narrow(tensor: onnx.TensorProto) -> bool:
    """Whether all integers are known and fit in 32 bits."""
    if tensor.data_type != onnx.TensorProto.INT64:
        return True
    values: Sequence[int] = tensor.int64_data
    if tensor.raw_data:
        values = [value for (value,) in struct.iter_unpack("<q", tensor.raw_data[: len(tensor.raw_data) // 8 * 8])]
    return all(abs(value) < _NARROW for value in values)


def _lacks_axes(node: onnx.NodeProto) -> bool:
    return len(node.input) in (2, 3) or (len(node.input) > 3 and not node.input[3])


def _shaping_inputs(node: onnx.NodeProto) -> list[str]:
    """The inputs of a node without whose values ONNX infers a wrong shape."""
    given = node.input
    return [given[index] for index in _SHAPING_INPUTS.get(node.op_type, ()) if index < len(given) and given[index]]


def _hide_undecided(graph: onnx.GraphProto, outer: frozenset[str]) -> None:
    """Hide the Slices and Pads in `graph` and its bodies whose axes or steps are computed.

    Also hides Slices without axes whose starts are. `outer` are short constants of the enclosing graphs.
    """
    computed = {name for node in graph.node if node.op_type != "Constant" for name in node.output}
    short = outer.union(_short_constants(graph)) - computed
    for node in graph.node:
        is_open = node.op_type == "Slice" and _lacks_axes(node) and node.input[1] not in short
        if is_open or not short.issuperset(_shaping_inputs(node)):
            _hide(node)
        for body in subgraphs(node):
            _hide_undecided(body, short)


def _short_constants(graph: onnx.GraphProto) -> Iterator[str]:
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _MAX_AXES:
            yield tensor.name
    for node in graph.node:
        if node.op_type == "Constant" and all(
            len(attribute.ints) <= _MAX_AXES and math.prod(attribute.t.dims) <= _MAX_AXES
            for attribute in node.attribute
        ):
            yield from node.output


def _check_equation(node: onnx.NodeProto, text: str) -> None:
    from engine.ops.einsum import EQUATION_FORM, is_equation

    if not is_equation(text):
        raise ModelReadError(f"{describe(node)}: {text!r} is not an equation; expected {EQUATION_FORM}")
