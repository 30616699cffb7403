"""The types of values: tensors, sequences, optionals, and maps (for ONNX-ML)."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from engine.ir.element_type import ElementType, undefined
from engine.ir.shape import PartialShape
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor; `element_type` is `undefined` if it is not known."""

    element_type: ElementType
    shape: PartialShape

    def __str__(self) -> str:
        return f"{self.element_type.name}{self.shape}"


@dataclass(frozen=True, slots=True)
class SparseTensorType:
    """A sparse tensor in coordinate form."""

    element_type: ElementType
    shape: PartialShape

    def __str__(self) -> str:
        return f"sparse({self.element_type.name}{self.shape})"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type; `element` is None if it is not known."""

    element: ValueType | None = None

    def __str__(self) -> str:
        return f"seq({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value or nothing; `element` is None if it is not known."""

    element: ValueType | None = None

    def __str__(self) -> str:
        return f"optional({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A map from a scalar key to values of one type (ai.onnx.ml)."""

    key: ElementType
    value: ValueType | None = field(default=None)

    def __str__(self) -> str:
        return f"map({self.key.name},{self.value or '?'})"


ValueType: TypeAlias = TensorType | SparseTensorType | SequenceType | OptionalType | MapType

UNKNOWN: TensorType = TensorType(undefined, PartialShape.dynamic())
"""The type of a value about which nothing is known; ports have it until inference finds more."""


def merge_types(declared: ValueType, inferred: ValueType) -> ValueType:
    """The more specific of two types of the same value.

    Raises `ModelError` if they contradict each other in rank or a dimension; different element types or
    kinds return `inferred` unless it is unknown.
    """
    if declared is inferred or inferred is UNKNOWN:
        return declared
    if isinstance(declared, TensorType) and isinstance(inferred, TensorType):
        element = inferred.element_type
        if element is undefined:
            element = declared.element_type
        shape = declared.shape.merge(inferred.shape)
        if element is declared.element_type and shape == declared.shape:
            return declared
        return TensorType(element, shape)
    if isinstance(declared, SequenceType) and isinstance(inferred, SequenceType):
        return declared if inferred.element is None else inferred
    if isinstance(declared, OptionalType) and isinstance(inferred, OptionalType):
        return declared if inferred.element is None else inferred
    return inferred
