"""A session's description of its model: inputs and outputs in onnxruntime's words, and the file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from engine.ir import MapType, Model, OptionalType, SequenceType, SparseTensorType, TensorType, ValueType
from engine.ir.element_type import ElementType
from engine.startup import dataclass
from engine.startup.onnx_library import onnx


@dataclass(frozen=True, slots=True)
class NodeArg:
    """One input, output or overridable initializer of a session.

    Attributes:
        name: its name in the model.
        type: such as "tensor(float)" or "seq(map(int64,tensor(float)))".
        shape: a number, the name of a length, or None for each dimension; empty if it is not a tensor, or the rank is
            not known.
    """

    name: str
    type: str
    shape: list[int | str | None]

    @classmethod
    def of(cls, name: str, value_type: ValueType) -> NodeArg:
        """Describe a value as onnxruntime does: the type as text, and the shape with names of dynamic axes."""
        return cls(name, type_text(value_type), shape_of(value_type))

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def type_text(value_type: ValueType | None) -> str:
    """A type in onnxruntime's words: "tensor(float)"."""
    match value_type:
        case TensorType(element_type, _):
            return f"tensor({element_text(element_type)})"
        case SparseTensorType(element_type, _):
            return f"sparse_tensor({element_text(element_type)})"
        case SequenceType(element):
            return f"seq({type_text(element)})"
        case OptionalType(element):
            return f"optional({type_text(element)})"
        case MapType(key, value):
            return f"map({element_text(key)},{type_text(value)})"
    return "unknown"


def element_text(element_type: ElementType) -> str:
    """An element type in ONNX's words: "float", "int64", "bfloat16"."""
    return str(onnx.TensorProto.DataType.Name(element_type.onnx)).lower()


def shape_of(value_type: ValueType) -> list[int | str | None]:
    """The shape of a type in the form that `NodeArg.shape` documents."""
    if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic:
        return []
    return [dim.get_length() if dim.is_static else dim.symbol for dim in value_type.shape.dims]


@dataclass(slots=True)
class ModelMetadata:
    """The metadata of the model's file."""

    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = 0

    @classmethod
    def of(cls, model: Model) -> ModelMetadata:
        """The metadata of a model that was read from a file."""
        about: Mapping[str, Any] = model.rt_info.get("onnx", {})
        return cls(
            custom_metadata_map=dict(model.metadata),
            description=about.get("doc_string", ""),
            domain=about.get("domain", ""),
            graph_description=about.get("graph_doc_string", ""),
            graph_name=model.name,
            producer_name=about.get("producer_name", ""),
            version=about.get("model_version", 0),
        )
