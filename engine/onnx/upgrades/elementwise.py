"""Upgrades of elementwise operators: attributes of the first opsets, limited broadcasting, element types."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Output, f32, f64, undefined
from engine.onnx.upgrades.call import OldCall, Upgraded, upgrade
from engine.onnx.upgrades.compatible import CONSUMING
from engine.onnx.upgrades.emit import (
    cast,
    emit,
    i64_scalar,
    i64s,
    ones,
    rank_as_value,
    rank_of,
    reshape_to,
    scalar_like,
    shape_of,
)
from engine.startup.onnx_library import onnx

_F32_MAX: Final = float(np.finfo(np.float32).max)


@upgrade(*CONSUMING, since=1, to=6)
def _without_consumed_inputs(call: OldCall) -> OldCall:
    """See `CONSUMING`."""
    return call.at(6, drop=["consumed_inputs"])


@upgrade("Add", "Div", "Mul", "Sub", since=6, to=7)
@upgrade("And", "Equal", "Greater", "Less", "Or", "Pow", "Xor", since=1, to=7)
def _limited_broadcast(call: OldCall) -> OldCall:
    """`broadcast=1` aligns B with consecutive dimensions of A: from `axis` on if given, else the last ones."""
    a, b = call.input(0), call.input(1)
    if call.integer("broadcast", 0) and "axis" in call.attributes:
        b = _aligned(call, a, b, call.integer("axis"))
    return call.at(7, drop=["axis", "broadcast"], inputs=[a, b])


def _aligned(call: OldCall, a: Output, b: Output, axis: int) -> Output:
    """`b` with trailing dimensions of length 1, so that its first dimension aligns with dimension `axis` of `a`."""
    if axis == -1:
        return b  # aligned with the last dimensions, as in numpy's broadcasting
    if axis < 0:
        call.invalid(f"axis is {axis}; expected -1, or 0 or more")
    rank_a, rank_b = rank_of(a), rank_of(b)
    if rank_a is None or rank_b is None:
        missing = emit("Sub", emit("Sub", rank_as_value(a), i64_scalar(axis)), rank_as_value(b))
        return reshape_to(b, emit("Concat", shape_of(b), ones(missing), axis=0))
    missing_dims = rank_a - axis - rank_b
    if missing_dims < 0 and not all(dim == 1 for dim in b.shape):
        call.invalid(f"B of shape {b.shape} does not broadcast to A of shape {a.shape} from axis {axis} on")
    if missing_dims <= 0:
        return b
    return emit("Unsqueeze", b, i64s(range(rank_b, rank_b + missing_dims)))


@upgrade("Gemm", since=6, to=7)
def _gemm_broadcast(call: OldCall) -> OldCall:
    """C is a matrix, a row or a scalar, for which numpy's broadcasting is the same as `broadcast`."""
    return call.at(7, drop=["broadcast"])


@upgrade("PRelu", since=6, to=7)
def _prelu_slope(call: OldCall) -> OldCall:
    """One slope per channel was aligned with dimension 1 of X; from 7 on the slope broadcasts like any operand."""
    x, slope = call.input(0), call.input(1)
    rank_x, rank_slope = rank_of(x), rank_of(slope)
    per_channel = rank_slope is None or (rank_slope == 1 and slope.shape[0] != 1)
    if not per_channel or (rank_x is not None and rank_x <= 2):
        return call.at(7)
    if rank_x is None:
        spatial = ones(emit("Sub", rank_as_value(x), i64_scalar(2)))
        shape = emit("Concat", i64s([-1]), spatial, axis=0)
    else:
        shape = i64s([-1] + [1] * (rank_x - 2))
    return call.at(7, inputs=[x, emit("Reshape", slope, shape)])


@upgrade("Cast", since=1, to=6)
def _cast_target(call: OldCall) -> OldCall:
    """The target was the name of a `TensorProto.DataType` value."""
    name, known = call.text("to").upper(), onnx.TensorProto.DataType.keys()
    if name not in known:
        call.invalid(f"attribute `to` is {name!r}; expected one of {', '.join(known)}")
    return call.at(6, to=onnx.TensorProto.DataType.Value(name))


@upgrade("Clip", since=1, to=6)
def _clip_limits(call: OldCall) -> OldCall:
    """An absent bound was the limit of the element type; from 6 on it is the limit of f32."""
    _check_clipped_type(call)
    upgraded = call.at(6, drop=["consumed_inputs"])
    if "min" in call.attributes and "max" in call.attributes:
        return upgraded
    element_type = call.element_type(0)
    if element_type is f32:
        return upgraded
    limit = float(element_type.finfo.max)
    return upgraded.at(6, **({"min": -limit, "max": limit} | dict(upgraded.attributes)))


@upgrade("Clip", since=6, to=11)
def _clip_inputs(call: OldCall) -> OldCall:
    """The bounds became inputs; a bound that limits nothing is omitted."""
    _check_clipped_type(call)
    x = call.input(0)
    low = _bound(x, call.number("min", -_F32_MAX))
    high = _bound(x, call.number("max", _F32_MAX))
    inputs = [x, low, high] if high is not None else [x, low] if low is not None else [x]
    return call.at(11, inputs=inputs, drop=["min", "max"])


def _check_clipped_type(call: OldCall) -> None:
    """Bounds were f32 attributes: bounds of integers would be rounded, and the default would overflow."""
    element_type = call.input(0).element_type
    if element_type is not undefined and not element_type.is_real:
        call.invalid(f"input 0 is {element_type.name}; expected f16, f32 or f64, other numbers only from opset 12 on")


def _bound(x: Output, value: float) -> Output | None:
    return None if abs(value) == _F32_MAX and x.element_type is f32 else scalar_like(value, x)


@upgrade("Selu", since=1, to=6)
def _selu_constants(call: OldCall) -> OldCall:
    """The defaults became more precise."""
    defaults = {"alpha": 1.6732, "gamma": 1.0507}
    return call.at(6, **(defaults | dict(call.attributes))).at(6, drop=["consumed_inputs"])


@upgrade("Erf", since=9, to=13)
def _erf_of_integers(call: OldCall) -> Upgraded:
    """Integers were allowed; the result is truncated to an integer."""
    x = call.input(0)
    if not x.element_type.is_integral:
        return call.at(13)
    return [cast(emit("Erf", cast(x, f64)), x.element_type)]
