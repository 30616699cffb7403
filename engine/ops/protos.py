"""Converts value types and attributes between the IR and ONNX protos; tensor conversions are re-exported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from engine.errors import ModelReadError, ModelWriteError
from engine.ir import (
    UNKNOWN,
    Dimension,
    ElementType,
    MapType,
    Model,
    OptionalType,
    PartialShape,
    SequenceType,
    SparseTensorType,
    TensorType,
    ValueType,
    as_dimension,
)
from engine.ops.tensors import (
    SparseTensor,
    decode_text,
    encode_text,
    sparse_from_proto,
    sparse_to_proto,
    tensor_from_proto,
    tensor_from_raw,
    tensor_to_proto,
    tensor_to_raw,
)
from engine.startup.onnx_library import onnx

__all__ = [
    "SparseTensor", "attribute_from_proto", "attribute_kind", "attribute_to_proto", "decode_text", "encode_text",
    "shape_from_proto", "shape_to_proto", "sparse_from_proto", "sparse_to_proto", "tensor_from_proto",
    "tensor_from_raw", "tensor_to_proto", "tensor_to_raw", "type_from_proto", "type_to_proto",
]  # fmt: skip

GraphFromProto = Callable[[onnx.GraphProto], Model]
GraphToProto = Callable[[Model], onnx.GraphProto]

_A: Final = onnx.AttributeProto
_WITH_BOUNDS: Final = re.compile(r"(?P<symbol>[^:\s]*):(?P<low>\d{1,19})\.\.(?P<high>\d{0,19})")
"""How the exporter writes a symbol with bounds, or in blobs bounds alone (":1..8")."""
_VALUE_TYPES: Final = (TensorType, SequenceType, OptionalType, SparseTensorType, MapType)


# -- types ------------------------------------------------------------------------------------------------


def type_from_proto(proto: onnx.TypeProto) -> ValueType:
    """The value type in `proto`; `UNKNOWN` if it is empty. Raises `ModelReadError`."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return UNKNOWN
    if kind == "tensor_type":
        tensor = proto.tensor_type
        return TensorType(ElementType.from_onnx(tensor.elem_type), shape_from_proto(tensor))
    if kind == "sequence_type":
        return SequenceType(_element(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(_element(proto.optional_type.elem_type))
    if kind == "sparse_tensor_type":
        sparse = proto.sparse_tensor_type
        return SparseTensorType(ElementType.from_onnx(sparse.elem_type), shape_from_proto(sparse))
    if kind == "map_type":
        return MapType(ElementType.from_onnx(proto.map_type.key_type), _element(proto.map_type.value_type))
    raise ModelReadError(f"values of type {kind} are not supported; expected a tensor, sequence, optional or map type")


def shape_from_proto(proto: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) -> PartialShape:
    """The shape of a tensor type proto, of unknown rank if it has none."""
    if not proto.HasField("shape"):
        return PartialShape.dynamic()
    return PartialShape([_dimension(dim) for dim in proto.shape.dim])


def type_to_proto(value_type: ValueType) -> onnx.TypeProto:
    """`value_type` as a `TypeProto`; `UNKNOWN` gives an empty one.

    A symbol is written with its bounds (`N:1..8`), which `type_from_proto` reads back; bounds without a symbol
    are dropped, because ONNX would treat equal texts as equal lengths. Any other text is a symbol, also "3".
    """
    proto = onnx.TypeProto()
    _fill_type(proto, value_type)
    return proto


def shape_to_proto(shape: PartialShape, proto: onnx.TensorShapeProto) -> None:
    """Append the dimensions of `shape`, whose rank is known, to `proto`."""
    for dim in shape.dims:
        target = proto.dim.add()
        if dim.is_static:
            target.dim_value = dim.min
        elif dim.symbol is not None:
            target.dim_param = str(dim)


def _fill_type(proto: onnx.TypeProto, value_type: ValueType | None) -> None:
    if value_type is None or value_type == UNKNOWN:
        return
    if isinstance(value_type, (TensorType, SparseTensorType)):
        tensor = proto.tensor_type if isinstance(value_type, TensorType) else proto.sparse_tensor_type
        tensor.elem_type = value_type.element_type.onnx
        if value_type.shape.rank.is_static:
            tensor.shape.SetInParent()
            shape_to_proto(value_type.shape, tensor.shape)
    elif isinstance(value_type, SequenceType):
        proto.sequence_type.SetInParent()
        _fill_type(proto.sequence_type.elem_type, value_type.element)
    elif isinstance(value_type, OptionalType):
        proto.optional_type.SetInParent()
        _fill_type(proto.optional_type.elem_type, value_type.element)
    else:
        proto.map_type.key_type = value_type.key.onnx
        _fill_type(proto.map_type.value_type, value_type.value)


def _element(proto: onnx.TypeProto) -> ValueType | None:
    return None if proto.WhichOneof("value") is None else type_from_proto(proto)


def _dimension(proto: onnx.TensorShapeProto.Dimension) -> Dimension:
    kind = proto.WhichOneof("value")
    if kind == "dim_value":
        return as_dimension(proto.dim_value)
    return _named(proto.dim_param) if kind == "dim_param" else as_dimension(None)


def _named(text: str) -> Dimension:
    """The dimension with a name from a file: a symbol whatever its characters, also "3" and "1..2"."""
    if text in ("", "?"):
        return as_dimension(None)
    written = _WITH_BOUNDS.fullmatch(text)
    if written is None:
        return Dimension(symbol=text)
    symbol, low, high = written["symbol"], int(written["low"]), written["high"]
    return Dimension.at_least(low, symbol) if not high else Dimension(low, int(high), symbol)


# -- attributes -------------------------------------------------------------------------------------------


def attribute_from_proto(proto: onnx.AttributeProto, graph_from_proto: GraphFromProto | None = None) -> Any:
    """The attribute's value in the IR: int, float, str (bytes if not UTF-8), numpy array, value type, `Model`,
    `SparseTensor`, or a tuple of these.

    A float is the stored f32 value: one written as 0.1 is 0.10000000149011612. Graphs need `graph_from_proto`.
    Raises `ModelReadError`.
    """
    kind = proto.type
    if kind in _READ_ONE:
        return _READ_ONE[kind](proto)
    if kind in _READ_MANY:
        return tuple(_READ_MANY[kind](proto))
    if kind in (_A.GRAPH, _A.GRAPHS) and graph_from_proto is not None:
        return graph_from_proto(proto.g) if kind == _A.GRAPH else tuple(graph_from_proto(g) for g in proto.graphs)
    if proto.ref_attr_name:
        raise ModelReadError(f"attribute `{proto.name}` refers to `{proto.ref_attr_name}` outside of a function")
    known = _A.AttributeType.Name(kind) if kind in _A.AttributeType.values() else str(kind)
    raise ModelReadError(f"attribute `{proto.name}` of type {known} cannot be read here")


def attribute_to_proto(
    name: str, value: Any, kind: int | None = None, graph_to_proto: GraphToProto | None = None
) -> onnx.AttributeProto:
    """An `AttributeProto` of `value`, which is as `attribute_from_proto` returns it; lists are accepted for tuples.

    Args:
        name: the attribute's name.
        value: the value.
        kind: the `AttributeProto.AttributeType` of the operator's schema; by default the value's type, which is INTS
            for an empty tuple.
        graph_to_proto: writes a body; required if `value` is or contains a `Model`.

    Raises `ModelWriteError` if ONNX has no attributes of the value's type, or it is not of `kind`.
    """
    chosen = _kind_of(name, value) if kind is None else kind
    proto = onnx.AttributeProto(name=name, type=chosen)  # type: ignore[arg-type]
    try:
        if chosen in (_A.GRAPH, _A.GRAPHS):
            if graph_to_proto is None:
                raise ModelWriteError(f"attribute `{name}` holds a body, which cannot be written here")
            if chosen == _A.GRAPH:
                proto.g.CopyFrom(graph_to_proto(value))
            else:
                proto.graphs.extend(graph_to_proto(body) for body in value)
        else:
            _WRITE[chosen](proto, value)
    except (TypeError, ValueError, AttributeError, KeyError) as e:
        wanted = _A.AttributeType.Name(chosen)
        raise ModelWriteError(f"attribute `{name}`: {_short(value)} is not of type {wanted}: {e}") from e
    return proto


def attribute_kind(value: Any) -> int | None:
    """The `AttributeProto.AttributeType` of `value`; None if ONNX has none (an empty tuple counts as INTS)."""
    usual = _USUAL_KINDS.get(type(value))
    if usual is not None:
        return usual
    if isinstance(value, (tuple, list)):
        if not value:
            return _A.INTS
        kinds = {attribute_kind(item) for item in value}
        if kinds == {_A.INT, _A.FLOAT}:
            return _A.FLOATS
        return _PLURAL.get(kinds.pop()) if len(kinds) == 1 else None
    for types, kind in _KINDS:
        if isinstance(value, types):
            return kind
    return None


def _kind_of(name: str, value: Any) -> int:
    kind = attribute_kind(value)
    if kind is None:
        raise ModelWriteError(
            f"attribute `{name}`: {_short(value)} has no ONNX attribute type; expected int, float, str, bytes, a numpy "
            "array, a value type, a Model, a SparseTensor, or a tuple of one of these"
        )
    return kind


def _short(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "..."


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _texts(items: Iterable[bytes]) -> list[str | bytes]:
    """The texts; equal ones are one object, such as the modes of a tree ensemble's nodes."""
    known: dict[bytes, str | bytes] = {}
    return [known.get(item) or known.setdefault(item, _text(item)) for item in items]


_USUAL_KINDS: Final[dict[type, int]] = {int: _A.INT, float: _A.FLOAT, str: _A.STRING}
_KINDS: Final[list[tuple[Any, int]]] = [
    ((bool, int, np.integer, np.bool_), _A.INT),
    ((float, np.floating), _A.FLOAT),
    ((str, bytes), _A.STRING),
    (np.ndarray, _A.TENSOR),
    (_VALUE_TYPES, _A.TYPE_PROTO),
    (Model, _A.GRAPH),
    (SparseTensor, _A.SPARSE_TENSOR),
]
_PLURAL: Final[dict[int | None, int]] = {
    _A.INT: _A.INTS,
    _A.FLOAT: _A.FLOATS,
    _A.STRING: _A.STRINGS,
    _A.TENSOR: _A.TENSORS,
    _A.TYPE_PROTO: _A.TYPE_PROTOS,
    _A.GRAPH: _A.GRAPHS,
    _A.SPARSE_TENSOR: _A.SPARSE_TENSORS,
}
_READ_ONE: Final[dict[int, Callable[[Any], Any]]] = {
    _A.INT: lambda a: a.i,
    _A.FLOAT: lambda a: a.f,
    _A.STRING: lambda a: _text(a.s),
    _A.TENSOR: lambda a: tensor_from_proto(a.t),
    _A.TYPE_PROTO: lambda a: type_from_proto(a.tp),
    _A.SPARSE_TENSOR: lambda a: sparse_from_proto(a.sparse_tensor),
}
_READ_MANY: Final[dict[int, Callable[[Any], Any]]] = {
    _A.INTS: lambda a: a.ints,
    _A.FLOATS: lambda a: a.floats,
    _A.STRINGS: lambda a: _texts(a.strings),
    _A.TENSORS: lambda a: map(tensor_from_proto, a.tensors),
    _A.TYPE_PROTOS: lambda a: map(type_from_proto, a.type_protos),
    _A.SPARSE_TENSORS: lambda a: map(sparse_from_proto, a.sparse_tensors),
}


def _write_one(field: str, convert: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    def write(proto: Any, value: Any) -> None:
        setattr(proto, field, convert(value))

    return write


def _write_message(field: str, convert: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    def write(proto: Any, value: Any) -> None:
        getattr(proto, field).CopyFrom(convert(value))

    return write


def _write_many(field: str, convert: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    def write(proto: Any, value: Any) -> None:
        if not isinstance(value, (tuple, list)):
            raise TypeError("expected a tuple")
        getattr(proto, field).extend([convert(item) for item in value])

    return write


def _integer(value: Any) -> int:
    if isinstance(value, (float, np.floating)):
        raise TypeError("expected an integer")
    return int(value)


_WRITE: Final[dict[int, Callable[[Any, Any], None]]] = {
    _A.INT: _write_one("i", _integer),
    _A.FLOAT: _write_one("f", float),
    _A.STRING: _write_one("s", encode_text),
    _A.TENSOR: _write_message("t", tensor_to_proto),
    _A.TYPE_PROTO: _write_message("tp", type_to_proto),
    _A.SPARSE_TENSOR: _write_message("sparse_tensor", sparse_to_proto),
    _A.INTS: _write_many("ints", _integer),
    _A.FLOATS: _write_many("floats", float),
    _A.STRINGS: _write_many("strings", encode_text),
    _A.TENSORS: _write_many("tensors", tensor_to_proto),
    _A.TYPE_PROTOS: _write_many("type_protos", type_to_proto),
    _A.SPARSE_TENSORS: _write_many("sparse_tensors", sparse_to_proto),
}
