"""Softmax, LogSoftmax and Hardmax: their spec, and evaluation where `onnx.reference` is wrong (LogSoftmax) or slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.ir import Node
from engine.ops.axis_lengths import AxisLengths
from engine.ops.precision import widened
from engine.ops.spec import OperatorSpec, evaluates_with_spec, rank_of, resolved_axis, specifies
from engine.ops.tensors import Array


@specifies("Softmax", "LogSoftmax")
@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxSpec(OperatorSpec):
    """The axis along which the elements are compared."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec.resolve`."""
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))

    def at(self, shapes: Sequence[Sequence[int] | None]) -> AxisLengths:
        """The lengths around the axis."""
        return AxisLengths.of(shapes[0] or (), self.axis)


@evaluates_with_spec("Softmax")
def softmax(spec: SoftmaxSpec, x: Array) -> Array:
    """Powers of e, divided by their sum along an axis (ONNX Softmax-13)."""
    if not x.size:
        return x
    powers = np.exp(_below_largest(x, spec.axis))
    shares: Array = powers / powers.sum(axis=spec.axis, keepdims=True)
    return shares.astype(x.dtype)


@evaluates_with_spec("LogSoftmax")
def log_softmax(spec: SoftmaxSpec, x: Array) -> Array:
    """The logarithm of Softmax, also where that vanishes (ONNX LogSoftmax-13)."""
    if not x.size:
        return x
    lower = _below_largest(x, spec.axis)
    logarithms: Array = lower - np.log(np.exp(lower).sum(axis=spec.axis, keepdims=True))
    return logarithms.astype(x.dtype)


def _below_largest(x: Array, axis: int) -> Array:
    wide = widened(x)
    lower: Array = wide - wide.max(axis=axis, keepdims=True)
    return lower
