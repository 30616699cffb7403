"""Operators that create tensors from shapes: Shape, Size, EyeLike, ConstantOfShape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeVar

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, ElementType, Node, PartialShape, TensorType, ValueType, f32, f64, i64
from engine.ops.axes import declare_axes
from engine.ops.registry import get_op, infers
from engine.ops.result_size import Measure, item_size, measures, numbers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, evaluates_with_spec, refuse, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

LengthT = TypeVar("LengthT")


declare("Shape", "Size", "EyeLike", shape_only=True, vectorized=True)
declare("ConstantOfShape", "Range", inflates=True, vectorized=True)
declare_axes("EyeLike", axes="rows columns -> rows' columns'")


@specifies("Shape")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSpec(OperatorSpec):
    """The lengths of the axes from `start` up to, but excluding, `end`; both may be out of range; None is the end."""

    start: int
    end: int | None

    def at(self, lengths: Sequence[LengthT]) -> Sequence[LengthT]:
        """The part of `lengths` that is the result."""
        return lengths[self.start : self.end]


@specifies("Range")
@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpec(OperatorSpec):
    """Evenly spaced numbers; `stash_type` is the type in which numbers of 16 bits are computed."""

    stash_type: ElementType

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["stash_type"] not in (f32.onnx, f64.onnx):
            refuse(node, "stash_type", given["stash_type"], f"{f32.onnx} (FLOAT) or {f64.onnx} (DOUBLE)")
        given["stash_type"] = ElementType.from_onnx(given["stash_type"])

    def at(self, start: Array, delta: Array, count: int) -> Array:
        """`count` numbers, from `start` on: each is start + i * delta, rounded once for real numbers."""
        kind, first, step = start.dtype, start.reshape(()), delta.reshape(())
        if kind.kind in "iu":
            whole: Array = (first + np.arange(count).astype(kind) * step).astype(kind)
            return whole
        wide = self.stash_type.numpy if kind.itemsize == 2 else np.float64
        numbers: Array = first.astype(wide) + np.arange(count).astype(wide) * step.astype(wide)
        return numbers.astype(kind)


@specifies("EyeLike")
@dataclass(frozen=True, slots=True, kw_only=True)
class EyeLikeSpec(OperatorSpec):
    """A matrix with ones on diagonal `k`, of type `dtype`, or of the input's type if that is None."""

    k: int
    dtype: ElementType | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
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
        value = given["value"]
        if value is None:
            value = np.zeros(1, np.float32)
        if np.size(value) != 1:
            refuse(node, "value", value, "a tensor of one element")
        given["value"] = np.asarray(value).reshape(-1)

    def at(self, shape: Sequence[int]) -> Array:
        """A tensor of this shape, filled with the attribute `value`."""
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


@infers("Range")
def _infer_range(node: Node) -> Sequence[ValueType]:
    """Evenly spaced numbers (ONNX Range-27); a vector of one number is taken as a scalar, as runtimes do.

    ONNX's inference accepts scalars only, but the function body of AffineGrid in ONNX itself has such vectors.
    """
    check_inputs(node, get_op("Range"))
    RangeSpec.of(node)
    kinds = [tensor_type(node, index) for index in range(3)]
    for index, kind in enumerate(kinds):
        if kind.shape.rank.is_static and not _may_be_one_number(kind.shape):
            fail(node, f"input {index} ({get_op('Range').input_name(index)}) is {kind}; expected one number")
    sources = [value.node for value in node.input_values if value is not None]
    start, limit, delta = (source.data.item() if isinstance(source, Constant) else None for source in sources)
    length = None
    if start is not None and limit is not None and delta is not None:
        if not delta:
            fail(node, "input 2 (delta) is 0; expected another number")
        length = range_length(start, limit, delta)
    return (TensorType(kinds[0].element_type, PartialShape([length])),)


@evaluates_with_spec("Range")
def evenly_spaced(spec: RangeSpec, start: Array, limit: Array, delta: Array) -> Array:
    """Numbers from `start` up to, but excluding, `limit` (ONNX Range-27); numpy's own rounds the step to their size."""
    count = range_length(start.item(), limit.item(), delta.item()) if delta.item() else None
    if count is None:
        given = f"start {start.item()}, limit {limit.item()} and delta {delta.item()}"
        raise ModelError(
            f"the number of elements is undefined for {given}; expected finite numbers, and a delta other than 0"
        )
    return spec.at(start, delta, count)


def range_length(start: float, limit: float, delta: float) -> int | None:
    """The number of elements of a Range, exact for integers, otherwise computed in f64; None if that is not finite.

    `delta` is not 0.
    """
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        return max(0, -((start - limit) // delta))
    steps = (limit - start) / delta
    return max(0, math.ceil(steps)) if math.isfinite(steps) else None


def _may_be_one_number(shape: PartialShape) -> bool:
    return len(shape) == 0 or (len(shape) == 1 and (not shape.is_static or shape.size() == 1))


# -- sizes ------------------------------------------------------------------------------------------------


@measures("Range")
def _size_of_range(node: Node) -> Measure:
    item = item_size(node)

    def measure(inputs: Sequence[Any]) -> int:
        start, limit, delta = (value.item() for value in inputs)
        return item * (range_length(start, limit, delta) or 0) if delta else 0  # numpy rejects the others

    return measure


@measures("ConstantOfShape")
def _size_of_constant(node: Node) -> Measure:
    item = item_size(node)
    return lambda inputs: item * math.prod(numbers(inputs[0]))
