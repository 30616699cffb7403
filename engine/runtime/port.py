"""`Port`: the description of one input or output of a compiled network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import BlobFormatError, EngineError, ModelError
from engine.ir import (
    Dimension,
    ElementType,
    MapType,
    OptionalType,
    PartialShape,
    SequenceType,
    SparseTensorType,
    TensorType,
    ValueType,
)
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.ir import Parameter, Result


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output: its name and type.

    What applications use first:

        port = network.inputs[0]
        port.name                     # such as "x"
        port.element_type.numpy       # such as float32
        port.shape                    # such as [N,3,224,224]
        port.shape.is_static          # whether all lengths are known
        port.type                     # of any value, also of a sequence

    `layout` ("NCHW") and `preprocess` (how data is prepared, JSON values: its "steps" are those that `PrePostProcessor`
    made part of the model) are for the user; they come from the `rt_info` of the model's parameter or result and are
    stored in blobs. `declared_of` names the node that computes an output ("Reshape `r`") if its type depends on what
    the model's file declares, beyond what follows from the operators; otherwise it is empty.
    """

    name: str
    type: ValueType
    layout: str = ""
    preprocess: Mapping[str, Any] = field(default_factory=dict, hash=False)
    declared_of: str = ""

    @classmethod
    def of(cls, node: Parameter | Result, *, is_declared: bool = False) -> Port:
        """Describe a model's parameter or result. Raises `ModelError` if its `rt_info` cannot be stored in a blob."""
        name, layout = node.friendly_name, node.rt_info.get("layout", "")
        if not isinstance(layout, str):
            raise ModelError(f'`{name}`: rt_info["layout"] must be a string such as "NCHW"; got {layout!r}')
        declared_of = str(node.input_value(0).node) if is_declared and node.op_type == "Result" else ""
        return cls(name, node.type, layout, _as_json(name, node.rt_info.get("preprocess", {})), declared_of)

    @property
    def element_type(self) -> ElementType:
        """The element type of a tensor. Raises `ModelError` for other values."""
        return self._tensor().element_type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of a tensor's elements. Raises `ModelError` for other values."""
        return self.element_type.numpy

    @property
    def shape(self) -> PartialShape:
        """The shape of a tensor; a static one is a shape for numpy: `np.zeros(port.shape, port.dtype)`.

        Raises `ModelError` for other values.
        """
        return self._tensor().shape

    def _tensor(self) -> TensorType:
        if not isinstance(self.type, TensorType):
            raise ModelError(f"`{self.name}` is {self.type}, not a tensor; read its type instead")
        return self.type

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON values, for a blob's manifest."""
        described: dict[str, Any] = {"name": self.name, "type": _type_to_json(self.type)}
        if self.layout:
            described["layout"] = self.layout
        if self.preprocess:
            described["preprocess"] = dict(self.preprocess)
        if self.declared_of:
            described["declared_of"] = self.declared_of
        return described

    @classmethod
    def from_json(cls, value: object) -> Port:
        """Read the result of `to_json`. Raises `BlobFormatError` for anything else."""
        try:
            name, layout, preprocess = value["name"], value.get("layout", ""), value.get("preprocess", {})  # type: ignore[index,attr-defined]
            declared_of = value.get("declared_of", "")  # type: ignore[attr-defined]
            texts = (name, layout, declared_of)
            if not (all(isinstance(text, str) for text in texts) and isinstance(preprocess, dict)):
                raise TypeError("name, layout and declared_of must be strings, preprocess a mapping")
            return cls(name, _type_from_json(value["type"]), layout, preprocess, declared_of)  # type: ignore[index]
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, EngineError) as e:
            raise BlobFormatError(f"the description of an input or output is malformed: {e}") from e

    def _repr_html_(self) -> str:
        from engine.drawing.html import html_table

        return html_table("Port", ("Name", "Type", "Layout"), [(self.name, self.type, self.layout)])

    def __repr__(self) -> str:
        return f"<Port {self}>"

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{f' ({self.layout})' if self.layout else ''}"


def _as_json(name: str, preprocess: object) -> dict[str, Any]:
    """`preprocess` as a blob returns it."""
    problem = f"got {type(preprocess).__name__}"
    if isinstance(preprocess, Mapping):
        try:
            kept: dict[str, Any] = json.loads(json.dumps(dict(preprocess), allow_nan=False))
            return kept
        except (TypeError, ValueError, RecursionError) as e:
            problem = str(e)
    raise ModelError(f'`{name}`: rt_info["preprocess"] must be a mapping of names to JSON values: {problem}')


def _type_to_json(value_type: ValueType | None) -> Any:
    match value_type:
        case None:
            return None
        case TensorType(element_type, shape):
            return {"tensor": element_type.name, "shape": _shape_to_json(shape)}
        case SparseTensorType(element_type, shape):
            return {"sparse": element_type.name, "shape": _shape_to_json(shape)}
        case SequenceType(element):
            return {"sequence": _type_to_json(element)}
        case OptionalType(element):
            return {"optional": _type_to_json(element)}
        case MapType(key, value):
            return {"map": key.name, "value": _type_to_json(value)}


def _type_from_json(described: Any) -> ValueType:
    match described:
        case {"tensor": str(element), "shape": shape}:
            return TensorType(ElementType.parse(element), _shape_from_json(shape))
        case {"sparse": str(element), "shape": shape}:
            return SparseTensorType(ElementType.parse(element), _shape_from_json(shape))
        case {"sequence": element}:
            return SequenceType(None if element is None else _type_from_json(element))
        case {"optional": element}:
            return OptionalType(None if element is None else _type_from_json(element))
        case {"map": str(key), "value": value}:
            return MapType(ElementType.parse(key), None if value is None else _type_from_json(value))
    raise ValueError(f"unknown value type {described!r}")


def _shape_to_json(shape: PartialShape) -> Any:
    return [_dimension_to_json(dim) for dim in shape.dims] if shape.rank.is_static else None


def _dimension_to_json(dim: Dimension) -> Any:
    if dim.is_static:
        return dim.min
    bounds = {"min": dim.min} if dim.min else {}
    bounds |= {} if dim.max is None else {"max": dim.max}
    return bounds if dim.symbol is None else {**bounds, "symbol": dim.symbol}


def _shape_from_json(dims: Any) -> PartialShape:
    if dims is None:
        return PartialShape.dynamic()
    if not isinstance(dims, list):
        raise TypeError(f"a shape must be a list; got {dims!r}")
    return PartialShape([_dimension_from_json(dim) for dim in dims])


def _dimension_from_json(dim: Any) -> Dimension:
    if _is_length(dim):
        return Dimension(dim)
    match dim:
        case dict() if dim.keys() <= {"min", "max", "symbol"}:
            low, high, symbol = dim.get("min", 0), dim.get("max"), dim.get("symbol")
            if _is_length(low) and (high is None or _is_length(high)) and isinstance(symbol, (str, type(None))):
                return Dimension.at_least(low, symbol) if high is None else Dimension(low, high, symbol)
    raise TypeError(f"a dimension must be a length or an interval; got {dim!r}")


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
