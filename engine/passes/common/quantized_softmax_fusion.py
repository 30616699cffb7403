"""`QuantizedSoftmaxFusion`: a Softmax before a quantization, with its result as 8-bit integers."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Constant, Node, Output, f32, i8, u8
from engine.ops.internal import Codes, QuantizedSoftmax
from engine.ops.quantize import QuantizeSpec
from engine.ops.softmax import SoftmaxSpec
from engine.passes.common.qdq_propagation import is_per_tensor
from engine.passes.common.quantized_operands import zero_point_of
from engine.passes.fusion import constant_data, dims_of, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_BYTES: Final = (u8, i8)
_MIN_SCALE: Final = float(np.finfo(np.float32).tiny)
_MAX_SCALE: Final = float(np.finfo(np.float32).max) / 255  # no dequantized number is infinite


class QuantizedSoftmaxFusion(MatcherPass):
    """Turns a Softmax along the last axis, and the quantization after it, into `engine.QuantizedSoftmax`.

    A DequantizeLinear before it becomes a part of it. Scales and zero points must be constants, one for each tensor.
    Needs device kernels, so disabled unless a `PassConfig` enables it.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("QuantizeLinear"), "QuantizedSoftmaxFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        softmax = operation(node.input_value(0), "Softmax")
        if softmax is None or softmax.output(0).num_consumers != 1 or self.transformation_callback(node):
            return False
        x, dims = softmax.input_value(0), dims_of(softmax.input_value(0))
        if x.element_type is not f32 or dims is None or SoftmaxSpec.of(softmax).axis != len(dims) - 1:
            return False
        if node.output(0).element_type not in _BYTES or not _has_one_scale(node):
            return False
        result = Codes(None, node.input_value(1), zero_point_of(node, node.output(0)))
        made = QuantizedSoftmax(_argument(x), result, axis=-1)
        return replace_by(node, [softmax, node], [made])


def _argument(x: Output) -> Codes | Output:
    """The codes of a value, if it is dequantized."""
    node = operation(x, "DequantizeLinear")
    if node is None or not _has_one_scale(node):
        return x
    codes, scale = node.input_value(0), constant_data(node.input_value(1))
    if codes.element_type not in _BYTES or isinstance(codes.node, Constant):
        return x
    if scale is None or not _MIN_SCALE <= scale.item() <= _MAX_SCALE:
        return x
    return Codes(codes, node.input_value(1), zero_point_of(node, codes))


def _has_one_scale(node: Node) -> bool:
    """Whether a quantization or dequantization has one scale of f32, and constants."""
    if not is_per_tensor(node) or QuantizeSpec.of(node).precision not in (None, f32):
        return False
    numbers = [value for value in node.input_values[1:] if value is not None]
    return all(constant_data(value) is not None for value in numbers) and numbers[0].element_type is f32
