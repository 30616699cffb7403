"""Functions with which upgrades create canonical nodes. Static shapes become constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine import ops
from engine.ir import Constant, ElementType, Output, undefined


def emit(op_type: str, *inputs: Output | None, **attributes: Any) -> Output:
    """The one output of a new canonical node."""
    return ops.create(op_type, inputs, attributes).output(0)


def i64s(values: Sequence[int]) -> Output:
    """A constant vector of i64."""
    return Constant(np.array(values, np.int64)).output(0)


def i64_scalar(value: int) -> Output:
    """A constant scalar of i64, of rank 0."""
    return Constant(np.array(value, np.int64)).output(0)


def scalar_like(value: float, like: Output) -> Output:
    """`value` as a scalar of the element type of `like`; infinite if it is out of range."""
    element_type = like.element_type
    if element_type is undefined:
        return emit("CastLike", Constant(np.array(value, np.float32)).output(0), like)
    with np.errstate(over="ignore"):
        return Constant(np.array(value).astype(element_type.numpy)).output(0)


def cast(value: Output, element_type: ElementType) -> Output:
    """Convert `value` to `element_type` by a Cast."""
    return emit("Cast", value, to=element_type.onnx)


def constant_value(value: Output | None) -> NDArray[Any] | None:
    """The data of a constant; None for a computed value."""
    return value.node.data if value is not None and isinstance(value.node, Constant) else None


def rank_of(value: Output) -> int | None:
    """The rank; None if it is unknown."""
    rank = value.shape.rank
    return rank.get_length() if rank.is_static else None


def shape_of(value: Output) -> Output:
    """The shape as an i64 vector."""
    return i64s(value.shape.get_shape()) if value.shape.is_static else emit("Shape", value)


def rank_as_value(value: Output) -> Output:
    """The rank as an i64 scalar."""
    rank = rank_of(value)
    return emit("Size", emit("Shape", value)) if rank is None else i64_scalar(rank)


def ones(count: Output) -> Output:
    """An i64 vector of `count` ones; `count` is an i64 scalar."""
    length = emit("Reshape", count, i64s([1]))
    return emit("ConstantOfShape", length, value=np.ones(1, np.int64))


def reshape_to(value: Output, shape: Output) -> Output:
    """`value` reshaped to `shape`, in which 0 means a length of zero."""
    return emit("Reshape", value, shape, allowzero=1)


def reshape_like(value: Output, like: Output) -> Output:
    """`value` reshaped to the shape of `like`."""
    return reshape_to(value, shape_of(like))


def f32s(values: Sequence[float]) -> Output:
    """A constant vector of f32."""
    return Constant(np.array(values, np.float32)).output(0)


def scalar_f32(value: float) -> Output:
    """A constant scalar of f32, of rank 0."""
    return Constant(np.array(value, np.float32)).output(0)
