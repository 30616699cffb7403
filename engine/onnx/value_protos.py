"""Values as ONNX's messages: `TensorProto`, `SequenceProto`, `OptionalProto` and `MapProto`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from engine.errors import InputError, ModelError
from engine.ir import MapType, OptionalType, SequenceType, ValueType, string
from engine.ops.tensors import tensor_from_proto, tensor_to_proto
from engine.startup.onnx_library import onnx

# Kinds of elements and their fields, the same for sequences and optionals.
_FIELDS: Final = {
    onnx.SequenceProto.TENSOR: "tensor",
    onnx.SequenceProto.SEQUENCE: "sequence",
    onnx.SequenceProto.MAP: "map",
}


def message(value_type: ValueType | None) -> Any:
    """An empty protobuf message that can hold a value of this type; for None, a tensor's."""
    match value_type:
        case SequenceType():
            return onnx.SequenceProto()
        case OptionalType():
            return onnx.OptionalProto()
        case MapType():
            return onnx.MapProto()
    return onnx.TensorProto()


def from_proto(proto: Any) -> Any:
    """The value of a message. Raises `ModelError`."""
    if isinstance(proto, onnx.TensorProto):
        return tensor_from_proto(proto)
    if isinstance(proto, onnx.MapProto):
        return _from_map(proto)
    field = _FIELDS.get(proto.elem_type)
    if isinstance(proto, onnx.OptionalProto) and (field is None or not proto.HasField(f"{field}_value")):
        return None
    if field is None:
        raise ModelError(
            f"a sequence of element type {proto.elem_type} cannot be read; expected tensors, sequences or maps"
        )
    if isinstance(proto, onnx.OptionalProto):
        return from_proto(getattr(proto, f"{field}_value"))
    return [from_proto(element) for element in getattr(proto, f"{field}_values")]


def _from_map(proto: Any) -> dict[Any, Any]:
    """A dict of Python's strings or integers, as inference gives it; scalars are numpy's."""
    is_of_strings = proto.key_type == onnx.TensorProto.STRING
    keys = [key.decode() for key in proto.string_keys] if is_of_strings else list(proto.keys)
    values = from_proto(proto.values)
    if len(keys) != len(values):
        raise ModelError(f"a map has {len(keys)} keys and {len(values)} values")
    return {key: value[()] if isinstance(value, np.ndarray) else value for key, value in zip(keys, values, strict=True)}


def _to_map(value: Mapping[Any, Any], value_type: ValueType | None, name: str) -> Any:
    """Not by `onnx.numpy_helper.from_dict`, which takes a string key for the name of a type (onnx 1.23.2)."""
    proto = onnx.MapProto(name=name)
    if isinstance(value_type, MapType):
        is_of_strings, element_type = value_type.key is string, value_type.value
    else:
        is_of_strings, element_type = any(isinstance(key, str) for key in value), None
    proto.key_type = onnx.TensorProto.STRING if is_of_strings else onnx.TensorProto.INT64
    if is_of_strings:
        proto.string_keys.extend(key.encode() for key in value)
    else:
        proto.keys.extend(value)
    values = [each if isinstance(each, list | dict) else np.asarray(each) for each in value.values()]
    proto.values.CopyFrom(to_proto(values, SequenceType(element_type), name))
    return proto


def to_proto(value: Any, value_type: ValueType | None, name: str) -> Any:
    """A value as a message. Raises `InputError` for anything that is not a value."""
    if isinstance(value_type, OptionalType):
        optional = onnx.OptionalProto(name=name)
        if value is not None:
            optional.elem_type, field = _kind_of(value, name)
            getattr(optional, f"{field}_value").CopyFrom(to_proto(value, value_type.element, ""))
        return optional
    if isinstance(value, list):
        sequence = onnx.SequenceProto(name=name, elem_type=onnx.SequenceProto.TENSOR)
        element_type = value_type.element if isinstance(value_type, SequenceType) else None
        for element in value:
            sequence.elem_type, field = _kind_of(element, name)
            getattr(sequence, f"{field}_values").append(to_proto(element, element_type, ""))
        return sequence
    if isinstance(value, dict):
        return _to_map(value, value_type, name)
    _kind_of(value, name)
    return tensor_to_proto(value.astype(object) if value.dtype.kind in "UT" else value, name)


def _kind_of(value: Any, name: str) -> tuple[int, str]:
    """The element kind of a value in a sequence or optional, and the name of its field."""
    if isinstance(value, np.ndarray):
        return onnx.SequenceProto.TENSOR, "tensor"
    if isinstance(value, list):
        return onnx.SequenceProto.SEQUENCE, "sequence"
    if isinstance(value, dict):
        return onnx.SequenceProto.MAP, "map"
    raise InputError(
        f"`{name}`: a {type(value).__name__} cannot be written to a file; expected arrays, lists and dicts"
    )
