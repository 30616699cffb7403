"""`QuantizedFusion`: convolutions and matrix products between dequantization and quantization, on 8-bit integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.ir import Constant, Node, Output, f32, i8, u8
from engine.ops.conv import ConvSpec
from engine.ops.fused_activation import Activation, activation_of
from engine.ops.internal import ACTIVATIONS, INTERNAL_DOMAIN, Quantized, QuantizedConv, QuantizedMatMul
from engine.ops.matmul import MatMulSpec
from engine.ops.spec import spec_of
from engine.passes.common.epilogues import fits_as_residual, with_epilogue
from engine.passes.common.quantized_operands import (
    StaysRealError,
    dequantization_of,
    has_nan,
    is_byte_quantization,
    is_constant,
    note_real,
    operands_of,
    weights_of,
    with_residual,
    zero_point_of,
)
from engine.passes.fusion import as_vector, constant_data, dims_of, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_CONV: Final = (
    "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "output_padding", "output_shape",
)  # fmt: skip
_PRODUCTS: Final = (
    "Conv", "ConvTranspose", "MatMul", "Gemm", f"{INTERNAL_DOMAIN}.FusedConv", f"{INTERNAL_DOMAIN}.FusedMatMul",
)  # fmt: skip
_PRODUCT_TYPES: Final = frozenset(name.rpartition(".")[2] for name in _PRODUCTS)
_ACTIVATIONS: Final = tuple(name for name in ACTIVATIONS if name != "GeluTanh")  # an attribute of Gelu
_BYTES: Final = (u8, i8)


class QuantizedFusion(MatcherPass):
    """Makes `engine.QuantizedConv` and `engine.QuantizedMatMul` from the operators between two quantizations.

    - DequantizeLinear of x and of constant weights, Conv or MatMul: the operator on integers, with an f32 result.
    - A residual, or a sum with one after a quantization, and an activation join it; then the QuantizeLinear does.

    - A MatMulInteger, Cast, and the product with the scales become a QuantizedMatMul, whose x has scale and zero point
      that are computed, as in dynamic quantization.

    Except for those, scales and zero points must be constants, of 8-bit integers, one for each tensor; weights may have
    one scale and zero point for each output channel or column. Products and quotients of scales must not overflow. Sums
    of products are then exact integers; results differ from those in f32 by at most one quantum. Disabled unless
    `QuantizationCapabilities.configure` enables it for what a device declares. In a model with `fused_names`, products
    of quantized values that stay have the reason in their rt_info.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type([*_PRODUCTS, *_ACTIVATIONS, "Add", "Mul", "QuantizeLinear"])
        self.register_matcher(Matcher(root, "QuantizedFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if node.op_type in _PRODUCT_TYPES:
            return self._multiply(node)
        if self.transformation_callback(node):
            return False
        if node.op_type == "Add":
            return _add_bias(node) or _add(node)
        if node.op_type == "Mul":
            return self._scale(node)
        return _quantize(node) if node.op_type == "QuantizeLinear" else _activate(node)

    def _multiply(self, node: Node) -> bool:
        operands = node.input_values[:2]
        if not any(value is not None and dequantization_of(value) for value in operands):
            return False
        why = self.reason_to_skip(node)
        if why is None and node.output(0).element_type is f32:
            plain = with_epilogue(node) if node.op_type == "Gemm" else node
            if plain is None:
                why = "alpha, beta or transA of the Gemm is not what a product with a bias has"
            else:
                try:
                    return replace_by(node, [node], [_on_integers(plain)])
                except StaysRealError as e:
                    why = str(e)
        note_real(node, why)
        return False

    def _scale(self, node: Node) -> bool:
        """The sums of a MatMulInteger times the scales of its operands, as dynamic quantization has them."""
        for index in (0, 1):
            cast, scales = operation(node.input_value(index), "Cast"), operation(node.input_value(1 - index), "Mul")
            product = None if cast is None else operation(cast.input_value(0), "MatMulInteger")
            if product is None or scales is None or node.output(0).element_type is not f32:
                continue
            if product.output(0).num_consumers != 1 or node.input_value(index).num_consumers != 1:
                continue
            why = self.reason_to_skip(product)
            if why is not None:
                note_real(product, why)
                continue
            for x_scale, w_scale in (scales.input_values, scales.input_values[::-1]):
                try:
                    made = _dynamic_product(product, x_scale, w_scale)
                except StaysRealError as e:
                    note_real(product, str(e))
                    continue
                if made is not None and replace_by(node, [product, node], [made]):
                    return True
        return False


def _add(node: Node) -> bool:
    for index in (0, 1):
        sums, other = node.input_value(index), node.input_value(1 - index)
        source = operation(sums, "DequantizeLinear")
        inner = sums if source is None else source.input_value(0)
        if not _is_open(inner) or sums.num_consumers != 1:
            continue
        operands = Quantized.of(inner.node)
        if operands.residual is not None or spec_activation(inner.node) or not fits_as_residual(other, sums):
            continue
        if source is not None:
            if not _ends_with(operands, source):
                continue
            operands = _with_middle(operands)
        elif operands.y_scale is not None:
            continue
        made = _copy(inner.node, with_residual(operands, other), None)
        if replace_by(node, [inner.node, node], [made]):
            return True
    return False


def _activate(node: Node) -> bool:
    source = node.input_value(0)
    if not _is_open(source) or spec_activation(source.node):
        return False
    operands, activation = Quantized.of(source.node), activation_of(node)
    if operands.y_scale is not None or activation is None:
        return False
    return replace_by(node, [source.node, node], [_copy(source.node, operands, activation)])


def _quantize(node: Node) -> bool:
    source = node.input_value(0)
    if not _is_open(source) or not is_byte_quantization(node):
        return False
    operands = Quantized.of(source.node)
    if operands.y_scale is not None:
        return False
    if operands.residual is not None and operands.residual_scale is None:
        return False  # an f32 residual may hold NaN and infinity
    if not all(isinstance(value.node, Constant) for value in source.node.input_values[1:3] if value is not None):
        return False  # a computed scale cannot be folded into the result's
    operands = replace(operands, y_scale=node.input_value(1), y_zero_point=zero_point_of(node, node.output(0)))
    made = _copy(source.node, operands, spec_activation(source.node))
    return replace_by(node, [source.node, node], [made])


def _dynamic_product(product: Node, x_scale: Output | None, w_scale: Output | None) -> Node | None:
    x, w = product.input_value(0), product.input_value(1)
    if x_scale is None or w_scale is None or x.element_type not in _BYTES:
        return None
    zero = zero_point_of(product, x)
    if any(not value.shape.is_static or value.shape.size() != 1 for value in (x_scale, zero)):
        return None
    if any(value.shape.rank != 0 for value in (x_scale, zero)) or x_scale.element_type is not f32:
        return None
    if w.shape.rank != 2:
        return None
    zero_point = product.input_value(3) if product.has_input(3) else None
    weights, scale, points = weights_of(w, zero_point, w_scale, 1)
    return QuantizedMatMul(Quantized(x, x_scale, zero, weights, scale, weights_zero_point=points))


def _add_bias(node: Node) -> bool:
    for index in (0, 1):
        sums, other = node.input_value(index), node.input_value(1 - index)
        dequantize = operation(sums, "DequantizeLinear")
        source = sums if dequantize is None else dequantize.input_value(0)
        if source.node.op_type != "QuantizedMatMul" or source.num_consumers != 1 or sums.num_consumers != 1:
            continue
        operands, columns = Quantized.of(source.node), dims_of(source)
        if operands.residual is not None or spec_activation(source.node) or columns is None:
            continue
        bias = as_vector(other, columns[-1:]) if is_constant(other) and not has_nan(other) else None
        if bias is None:
            continue
        if dequantize is None:
            if any(value is not None for value in (operands.bias, operands.middle_scale, operands.y_scale)):
                continue
            operands = replace(operands, bias=bias)
        elif not _ends_with(operands, dequantize):
            continue
        else:
            operands = replace(_with_middle(operands), middle_bias=bias)
        if replace_by(node, [source.node, node], [_copy(source.node, operands, None)]):
            return True
    return False


def _with_middle(operands: Quantized) -> Quantized:
    """The operands of an operator that continues after the quantization of the result."""
    return replace(
        operands,
        middle_scale=operands.y_scale,
        middle_zero_point=operands.y_zero_point,
        y_scale=None,
        y_zero_point=None,
    )


def spec_activation(node: Node) -> Activation | None:
    """The activation of a fused convolution or product."""
    spec = spec_of(node)
    assert isinstance(spec, ConvSpec | MatMulSpec)
    return spec.activation


def _is_open(value: Output) -> bool:
    """Whether `value` is the result of a quantized operator that only one node reads."""
    return value.node.op_type in ("QuantizedConv", "QuantizedMatMul") and value.num_consumers == 1


def _on_integers(node: Node) -> Node:
    """The quantized operator of a product. Raises `StaysRealError`."""
    spec = spec_of(node)
    assert isinstance(spec, ConvSpec | MatMulSpec)
    operands = operands_of(spec)
    residual = spec.input(3)
    if residual is not None:
        operands = with_residual(operands, residual)
    if isinstance(spec, ConvSpec):
        attributes = {name: node.attributes[name] for name in _CONV if name in node.attributes}
        return QuantizedConv(operands, activation=spec.activation, transposed=spec.transposed, **attributes)
    return QuantizedMatMul(operands, activation=spec.activation, trans_b=spec.trans_b)


def _copy(node: Node, operands: Quantized, activation: Activation | None) -> Node:
    own = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    if node.op_type == "QuantizedConv":
        return QuantizedConv(operands, activation=activation, **own)
    return QuantizedMatMul(operands, activation=activation, trans_b=bool(own.get("trans_b", 0)))


def _ends_with(operands: Quantized, dequantize: Node) -> bool:
    """Whether a DequantizeLinear reverts the quantization of the result, which is the only one so far."""
    if operands.y_scale is None or operands.middle_scale is not None or not is_byte_quantization(dequantize):
        return False
    scale, zero = operands.y_scale, operands.y_zero_point
    assert isinstance(scale, Output)
    assert isinstance(zero, Output)
    zero_points = constant_data(zero_point_of(dequantize, dequantize.input_value(0))), constant_data(zero)
    scales = constant_data(dequantize.input_value(1)), constant_data(scale)
    return all(a is not None and b is not None and a.item() == b.item() for a, b in (zero_points, scales))
