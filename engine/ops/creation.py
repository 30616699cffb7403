"""Operators that create tensors from shapes: Shape, Size, EyeLike, ConstantOfShape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from engine.errors import ModelError
from engine.ir import ElementType, Node, PartialShape, TensorType, ValueType, i64
from engine.ops.registry import infers
from engine.ops.rules import tensor_type
from engine.ops.spec import OperatorSpec, evaluates_with_spec, refuse, specifies
from engine.ops.tensors import Array

LengthT = TypeVar("LengthT")


@specifies("Shape")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSpec(OperatorSpec):
    """The lengths of the axes from `start` up to, but excluding, `end`; both may be out of range; None is the end."""

    start: int
    end: int | None

    def at(self, lengths: Sequence[LengthT]) -> Sequence[LengthT]:
        """The part of `lengths` that is the result."""
        return lengths[self.start : self.end]


@specifies("EyeLike")
@dataclass(frozen=True, slots=True, kw_only=True)
class EyeLikeSpec(OperatorSpec):
    """A matrix with ones on diagonal `k`, of type `dtype`, or of the input's type if that is None."""

    k: int
    dtype: ElementType | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        if given["dtype"] is not None:
            given["dtype"] = element_type_of(node, "dtype", given["dtype"])

    def at(self, shape: Sequence[int]) -> Array:
        """The matrix of `shape`, in numpy's default type."""
        rows, columns = shape
        return np.eye(rows, columns, k=self.k)


@specifies("ConstantOfShape")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantOfShapeSpec(OperatorSpec):
    """A tensor filled with the only element of `value`, which defaults to an f32 zero."""

    value: Array = field(hash=False)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        value = given["value"]
        if value is None:
            value = np.zeros(1, np.float32)
        if np.size(value) != 1:
            refuse(node, "value", value, "a tensor of one element")
        given["value"] = np.asarray(value).reshape(-1)

    def at(self, shape: Sequence[int]) -> Array:
        """The tensor of `shape`."""
        return np.full(tuple(shape), self.value[0])


def element_type_of(node: Node, name: str, number: int) -> ElementType:
    """The element type for ONNX's `number`, the value of attribute `name`. Raises `OperatorSpecError`."""
    try:
        return ElementType.from_onnx(number)
    except ModelError as e:
        refuse(node, name, number, "a value of TensorProto.DataType", e)


@infers("Shape")
def _infer_shape(node: Node) -> Sequence[ValueType]:
    shape = tensor_type(node, 0).shape
    if shape.rank.is_dynamic:
        return (TensorType(i64, PartialShape.dynamic(1)),)
    return (TensorType(i64, PartialShape([len(ShapeSpec.of(node).at(range(len(shape))))])),)


@evaluates_with_spec("Shape")
def shape(spec: ShapeSpec, data: Array) -> Array:
    """The lengths of the chosen axes (ONNX Shape-25); a start or end before the first axis is that axis."""
    return np.array(spec.at(data.shape), dtype=np.int64)


@infers("Size")
def _infer_size(node: Node) -> Sequence[ValueType]:
    return (TensorType(i64, PartialShape([])),)
