"""Attributes of node protos, whose tensors may be in the file; and Constant nodes, which become constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from engine.errors import ModelReadError
from engine.ir import Constant, Model, f32, i64, string
from engine.onnx.stored_tensors import TensorStore
from engine.ops.protos import attribute_from_proto, decode_text
from engine.startup.onnx_library import onnx

_A: Final = onnx.AttributeProto

_LISTS: Final = (_A.INTS, _A.FLOATS, _A.STRINGS)

# Before IR version 2, an attribute did not state its type.
_TYPE_OF_FIELD: Final = {
    "f": _A.FLOAT, "i": _A.INT, "s": _A.STRING, "t": _A.TENSOR, "g": _A.GRAPH, "floats": _A.FLOATS, "ints": _A.INTS,
    "strings": _A.STRINGS, "tensors": _A.TENSORS, "graphs": _A.GRAPHS,
}  # fmt: skip


def attribute_type(proto: onnx.AttributeProto) -> int:
    """The attribute's type; in an old file that does not state it, the type of the field that is set."""
    if proto.type != _A.UNDEFINED:
        return proto.type
    for field, _ in proto.ListFields():
        if field.name in _TYPE_OF_FIELD:
            proto.type = _TYPE_OF_FIELD[field.name]
            return proto.type
    return _A.UNDEFINED


def read_attribute(
    proto: onnx.AttributeProto, kind: int, store: TensorStore, build: Callable[[onnx.GraphProto], Model]
) -> Any:
    """The value of an attribute of type `kind`; `store` reads its tensors and `build` its bodies.

    Raises `ModelReadError`.
    """
    _check_given(proto)
    if kind in _LISTS and proto.HasField("t") and (found := store.long_list(proto.t)) is not None:
        return found
    if kind == _A.INT:
        return proto.i
    if kind == _A.INTS:
        return tuple(proto.ints)
    if kind == _A.TENSOR:
        return store.array(proto.t)
    if kind == _A.TENSORS:
        return tuple(store.array(tensor) for tensor in proto.tensors)
    if kind == _A.SPARSE_TENSOR:
        return store.sparse(proto.sparse_tensor)
    if kind == _A.SPARSE_TENSORS:
        return tuple(store.sparse(tensor) for tensor in proto.sparse_tensors)
    return attribute_from_proto(proto, build)


def read_constant(proto: onnx.NodeProto, store: TensorStore) -> Constant:
    """The constant of a Constant node, under the name of its output. Raises `ModelReadError`."""
    if len(proto.output) != 1 or len(proto.attribute) != 1 or proto.input:
        raise ModelReadError(
            f"Constant has {len(proto.input)} inputs, {len(proto.output)} outputs and {len(proto.attribute)} values; "
            "expected 0, 1 and 1"
        )
    attribute = proto.attribute[0]
    read = _VALUES.get(attribute.name)
    if read is None:
        raise ModelReadError(f"Constant has no attribute `{attribute.name}`; it has {', '.join(_VALUES)}")
    _check_given(attribute)
    if attribute.name == "sparse_value":
        attribute.sparse_tensor.values.name = proto.output[0]  # which messages name
    constant = read(attribute, store)
    constant.friendly_name = proto.output[0]
    return constant


def _check_given(proto: onnx.AttributeProto) -> None:
    if proto.ref_attr_name:
        raise ModelReadError(
            f"attribute `{proto.name}` refers to attribute `{proto.ref_attr_name}` of a local function, but is not in "
            "one; give it a value"
        )


_VALUES: Final[dict[str, Callable[[onnx.AttributeProto, TensorStore], Constant]]] = {
    "value": lambda a, store: store.constant(a.t),
    "sparse_value": lambda a, store: store.sparse_constant(a.sparse_tensor),
    "value_float": lambda a, _: Constant(np.array(a.f, f32.numpy)),
    "value_floats": lambda a, _: Constant(np.array(a.floats, f32.numpy)),
    "value_int": lambda a, _: Constant(np.array(a.i, i64.numpy)),
    "value_ints": lambda a, _: Constant(np.array(a.ints, i64.numpy)),
    "value_string": lambda a, _: Constant(np.array(decode_text(a.s), string.numpy)),
    "value_strings": lambda a, _: Constant(np.array([decode_text(item) for item in a.strings], string.numpy)),
}
