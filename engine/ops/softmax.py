"""Softmax, LogSoftmax and Hardmax: spec, type rule, and evaluation where `onnx.reference`'s is wrong or slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Node, ValueType
from engine.ops.axes import Axes, AxisParameter, along, declare_parameter, maps_axes
from engine.ops.axis_lengths import AxisLengths
from engine.ops.precision import widened
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, tensor_type
from engine.ops.spec import OperatorSpec, evaluates_with_spec, rank_of, resolved_axis, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

declare("Softmax", accumulates=True, range=(0.0, 1.0), vectorized=True)
declare("LogSoftmax", accumulates=True, range=(-math.inf, 0.0), vectorized=True)
declare("Hardmax", range=(0.0, 1.0))
declare_parameter("Softmax", "LogSoftmax", "Hardmax", parameter=AxisParameter(attribute="axis"))


@specifies("Softmax", "LogSoftmax", "Hardmax")
@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxSpec(OperatorSpec):
    """Softmax, LogSoftmax or Hardmax along an axis; Hardmax is 1 at the first of the largest elements."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))

    def at(self, shapes: Sequence[Sequence[int] | None]) -> AxisLengths:
        """The lengths before, along and after the axis, for these input shapes."""
        return AxisLengths.of(shapes[0] or (), self.axis)


@infers("Softmax", "LogSoftmax", "Hardmax")
def _infer_softmax(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op(node.op_type))
    return (tensor_type(node, 0),)


@evaluates_with_spec("Softmax")
def softmax(spec: SoftmaxSpec, x: Array) -> Array:
    """Exponentials divided by their sum along an axis (ONNX Softmax-13)."""
    if not x.size:
        return x
    powers = np.exp(_below_largest(x, spec.axis))
    shares: Array = powers / powers.sum(axis=spec.axis, keepdims=True)
    return shares.astype(x.dtype)


@evaluates_with_spec("LogSoftmax")
def log_softmax(spec: SoftmaxSpec, x: Array) -> Array:
    """The logarithm of Softmax, accurate even if that underflows to 0 (ONNX LogSoftmax-13)."""
    if not x.size:
        return x
    lower = _below_largest(x, spec.axis)
    logarithms: Array = lower - np.log(np.exp(lower).sum(axis=spec.axis, keepdims=True))
    return logarithms.astype(x.dtype)


def _below_largest(x: Array, axis: int) -> Array:
    wide = widened(x)
    lower: Array = wide - wide.max(axis=axis, keepdims=True)
    return lower


@maps_axes("Softmax", "LogSoftmax", "Hardmax")
def _axes(node: Node) -> Axes:
    return along(node, [SoftmaxSpec.of(node).axis])
