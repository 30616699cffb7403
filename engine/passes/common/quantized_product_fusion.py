"""`QuantizedProductFusion`: products of two computed matrices between quantizations, on 8-bit integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.ir import Constant, Node, Output, f32
from engine.ops.internal import ProductOperands, QuantizedProduct
from engine.passes.common.quantized_operands import is_byte_quantization, zero_point_of
from engine.passes.fusion import dims_of, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_MAX_TERMS: Final = (2**31 - 1) // 255**2  # sums of more products of differences of 8-bit integers may overflow i32


class QuantizedProductFusion(MatcherPass):
    """Turns a MatMul of two dequantized matrices, and the quantization after it, into `engine.QuantizedProduct`.

    The scores of an attention, and the product with its values, are such products. Scales and zero points must be
    constants, one for each tensor, and the length of sums must be known. Sums are exact integers; results differ from
    those in f32 by at most one quantum. Needs device kernels, so disabled unless a `PassConfig` enables it.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type(["MatMul", "QuantizeLinear"]), "QuantizedProductFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        return _multiply(node) if node.op_type == "MatMul" else _quantize(node)


def _multiply(node: Node) -> bool:
    a, b = (operation(value, "DequantizeLinear") for value in node.input_values)
    if a is None or b is None or node.output(0).element_type is not f32:
        return False
    if not is_byte_quantization(a) or not is_byte_quantization(b) or isinstance(b.input_value(0).node, Constant):
        return False
    terms = _terms(a.output(0), b.output(0))
    if terms is None or terms > _MAX_TERMS:
        return False
    made = QuantizedProduct(ProductOperands(*_operands(a), *_operands(b)))
    return replace_by(node, [node], [made])


def _operands(dequantize: Node) -> tuple[Output, Output, Output]:
    codes = dequantize.input_value(0)
    return codes, dequantize.input_value(1), zero_point_of(dequantize, codes)


def _terms(a: Output, b: Output) -> int | None:
    """The length of a sum; None unless both are matrices and it is known."""
    left, right = dims_of(a), dims_of(b)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return None
    known = [length.get_length() for length in (left[-1], right[-2]) if length.is_static]
    return max(known) if known else None


def _quantize(node: Node) -> bool:
    source = node.input_value(0)
    if source.node.op_type != "QuantizedProduct" or source.num_consumers != 1 or not is_byte_quantization(node):
        return False
    operands = replace(
        ProductOperands.of(source.node), y_scale=node.input_value(1), y_zero_point=zero_point_of(node, node.output(0))
    )
    return replace_by(node, [source.node, node], [QuantizedProduct(operands)])
