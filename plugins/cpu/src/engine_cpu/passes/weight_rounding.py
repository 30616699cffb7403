"""Weights in bf16 for products in f32, on CPUs that do not multiply bf16 faster."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ir import Constant, Node, f32
from engine.ir.element_type import bf16
from engine.ops.internal import INTERNAL_DOMAIN
from engine.passes import MatcherPass
from engine.passes.pattern import Matcher, wrap_type
from engine_cpu.lowering.factor import MIN_COLUMNS, MIN_NARROW

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_ROWS = 8
"""The rows up to which a product mostly waits for its weights."""


class WeightRounding(MatcherPass):
    """Rounds the large weights of products of few or unknown rows to bf16, in which the device then stores them.

    Such products take half the time. The arithmetic stays that of f32, and activations are not rounded.
    """

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(["MatMul", "Gemm", f"{INTERNAL_DOMAIN}.FusedMatMul"])
        self.register_matcher(Matcher(root, "WeightRounding"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        weights = node.input_value(1).node
        if not isinstance(weights, Constant) or weights.element_type is not f32 or len(weights.shape) != 2:
            return False
        rows, columns = weights.shape
        if rows * columns < MIN_NARROW or min(rows, columns) < MIN_COLUMNS:
            return False
        if weights.derivation is _rounded or _has_many_rows(node):
            return False
        made = Constant.derived([weights], weights.output(0).type, _rounded)  # type: ignore[arg-type]
        made.friendly_name = weights.friendly_name
        node.input(1).replace_source_output(made)
        return True


def _has_many_rows(node: Node) -> bool:
    """Whether a product is known to have more than a few rows."""
    shape = node.output(0).shape
    return shape.is_static and shape.size() > _MAX_ROWS * shape.get_shape()[-1]


def _rounded(data: Array) -> Array:
    """Values of f32, rounded to the nearest of bf16, to even of two."""
    bits = np.ascontiguousarray(data).view(np.uint32)
    if np.isnan(data).any():
        return data.astype(bf16.numpy).astype(np.float32)
    rounded = bits + np.uint32(0x7FFF)
    rounded += (bits >> np.uint32(16)) & np.uint32(1)
    rounded &= np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
