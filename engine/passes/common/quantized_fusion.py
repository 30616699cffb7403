"""`QuantizedFusion`: convolutions and matrix products between dequantization and quantization, on 8-bit integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from engine.ir import Constant, Node, Output, TensorType, f32, i8, u8
from engine.ops.conv import ConvSpec
from engine.ops.fused_activation import Activation, activation_of
from engine.ops.internal import ACTIVATIONS, INTERNAL_DOMAIN, Quantized, QuantizedConv, QuantizedMatMul
from engine.ops.matmul import MatMulSpec
from engine.ops.quantize import QuantizeSpec
from engine.ops.spec import spec_of
from engine.ops.tensors import Array
from engine.passes.common.epilogues import fits_as_residual, with_epilogue
from engine.passes.common.qdq_propagation import is_per_tensor
from engine.passes.fusion import as_vector, constant_data, derived_constant, dims_of, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass

_CONV: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_PRODUCTS: Final = ("Conv", "MatMul", "Gemm", f"{INTERNAL_DOMAIN}.FusedConv", f"{INTERNAL_DOMAIN}.FusedMatMul")
_ACTIVATIONS: Final = tuple(name for name in ACTIVATIONS if name != "GeluTanh")  # an attribute of Gelu
_BYTES: Final = (u8, i8)
_MAX_TERMS: Final = (2**31 - 1) // (255 * 128)  # sums of more products of u8 and i8 may overflow i32
_LARGEST_SCALE: Final = 2.0**40
_LEAST_SCALE: Final = 2.0**-40
_TINY: Final = float(np.finfo(np.float32).tiny)  # scales of weights whose channel is almost zero


class QuantizedFusion(MatcherPass):
    """Makes `engine.QuantizedConv` and `engine.QuantizedMatMul` of what stands between two quantizations.

    - DequantizeLinear of x and of constant weights, Conv or MatMul: the operator on integers, with an f32 result.
    - A residual, or a sum with one after a quantization, and an activation join it; then the QuantizeLinear does.

    - A MatMulInteger, Cast, and the product with the scales become a QuantizedMatMul, whose x has scale and zero point
      that are computed, as in dynamic quantization.

    Except for those, scales and zero points must be constants, of 8-bit integers, one for each tensor; weights may have
    one scale for each output channel or column, and must be symmetric: i8 with zero point 0, or u8 with 128. Products
    and quotients of scales must not overflow. Sums of products are then exact integers; results differ from those in
    f32 by at most one quantum. Needs device kernels, so disabled unless a `PassConfig` enables it.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type([*_PRODUCTS, *_ACTIVATIONS, "Add", "Mul", "QuantizeLinear"])
        self.register_matcher(Matcher(root, "QuantizedFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        if node.op_type == "Add":
            return _add_bias(node) or _add(node)
        if node.op_type == "Mul":
            return _scale(node)
        if node.op_type == "QuantizeLinear":
            return _quantize(node)
        return _activate(node) if node.op_type in _ACTIVATIONS else _multiply(node)


def _multiply(node: Node) -> bool:
    if node.output(0).element_type is not f32:
        return False
    plain = with_epilogue(node) if node.op_type == "Gemm" else node
    if plain is None:
        return False
    made = _on_integers(plain)
    return made is not None and replace_by(node, [node], [made])


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
            if operands.y_scale is None or not _has_parameters(source, operands):
                continue
            operands = replace(
                operands,
                middle_scale=operands.y_scale,
                middle_zero_point=operands.y_zero_point,
                y_scale=None,
                y_zero_point=None,
            )
        elif operands.y_scale is not None:
            continue
        made = _copy(inner.node, _with_residual(operands, other), None)
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
    if not _is_open(source) or not _is_byte_quantization(node):
        return False
    operands = Quantized.of(source.node)
    if operands.y_scale is not None:
        return False
    if operands.residual is not None and operands.residual_scale is None:
        return False  # an f32 residual may hold NaN and infinity
    if not all(isinstance(value.node, Constant) for value in source.node.input_values[1:3] if value is not None):
        return False  # a scale that is computed cannot be folded into that of the result
    operands = replace(operands, y_scale=node.input_value(1), y_zero_point=_zero_point(node, node.output(0)))
    made = _copy(source.node, operands, spec_activation(source.node))
    return replace_by(node, [source.node, node], [made])


def _scale(node: Node) -> bool:
    """The sums of a MatMulInteger times the scales of its operands, as dynamic quantization has them."""
    for index in (0, 1):
        cast, scales = operation(node.input_value(index), "Cast"), operation(node.input_value(1 - index), "Mul")
        product = None if cast is None else operation(cast.input_value(0), "MatMulInteger")
        if product is None or scales is None or node.output(0).element_type is not f32:
            continue
        if product.output(0).num_consumers != 1 or node.input_value(index).num_consumers != 1:
            continue
        for x_scale, w_scale in (scales.input_values, scales.input_values[::-1]):
            made = _dynamic_product(product, x_scale, w_scale)
            if made is not None and replace_by(node, [product, node], [made]):
                return True
    return False


def _dynamic_product(product: Node, x_scale: Output | None, w_scale: Output | None) -> Node | None:
    x, w = product.input_value(0), product.input_value(1)
    zero = product.input_value(2) if product.has_input(2) else Constant(np.zeros((), x.element_type.numpy)).output(0)
    if x_scale is None or w_scale is None or x.element_type not in _BYTES:
        return None
    if any(not value.shape.is_static or value.shape.size() != 1 for value in (x_scale, zero)):
        return None
    if any(value.shape.rank != 0 for value in (x_scale, zero)) or x_scale.element_type is not f32:
        return None
    zero_point = product.input_value(3) if product.has_input(3) else None
    weights = _symmetric(w, zero_point, w_scale, 1)
    if weights is None or len(w.shape) != 2:
        return None
    return QuantizedMatMul(Quantized(x, x_scale, zero, *weights))


def _add_bias(node: Node) -> bool:
    for index in (0, 1):
        source, other = node.input_value(index), node.input_value(1 - index)
        if source.node.op_type != "QuantizedMatMul" or source.num_consumers != 1:
            continue
        operands = Quantized.of(source.node)
        rest = (operands.bias, operands.residual, operands.y_scale)
        columns = dims_of(source)
        if any(value is not None for value in rest) or spec_activation(source.node) or columns is None:
            continue
        bias = as_vector(other, columns[-1:]) if _is_constant(other) else None
        if bias is None:
            continue
        made = _copy(source.node, replace(operands, bias=bias), None)
        if replace_by(node, [source.node, node], [made]):
            return True
    return False


def spec_activation(node: Node) -> Activation | None:
    """The activation of a fused convolution or product."""
    spec = spec_of(node)
    assert isinstance(spec, ConvSpec | MatMulSpec)
    return spec.activation


def _is_open(value: Output) -> bool:
    """Whether `value` is the result of a quantized operator that only one node reads."""
    return value.node.op_type in ("QuantizedConv", "QuantizedMatMul") and value.num_consumers == 1


def _on_integers(node: Node) -> Node | None:
    spec = spec_of(node)
    assert isinstance(spec, ConvSpec | MatMulSpec)
    is_conv = isinstance(spec, ConvSpec)
    if isinstance(spec, ConvSpec) and spec.transposed:
        return None
    x = operation(node.input_value(0), "DequantizeLinear")
    if x is None or not _is_byte_quantization(x):
        return None
    axis = 0 if is_conv or (isinstance(spec, MatMulSpec) and spec.trans_b) else 1
    weights = _weights(node.input_value(1), axis, None if is_conv else 2)
    bias = spec.input(2)
    if weights is None or not (bias is None or _is_constant(bias)):
        return None
    operands = Quantized(x.input_value(0), x.input_value(1), _zero_point(x, x.input_value(0)), *weights, bias)
    residual = spec.input(3)
    if residual is not None:
        operands = _with_residual(operands, residual)
    if isinstance(spec, ConvSpec):
        attributes = {name: node.attributes[name] for name in _CONV if name in node.attributes}
        return QuantizedConv(operands, activation=spec.activation, **attributes)
    return QuantizedMatMul(operands, activation=spec.activation, trans_b=spec.trans_b)


def _copy(node: Node, operands: Quantized, activation: Activation | None) -> Node:
    own = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    if node.op_type == "QuantizedConv":
        return QuantizedConv(operands, activation=activation, **own)
    return QuantizedMatMul(operands, activation=activation, trans_b=bool(own.get("trans_b", 0)))


def _with_residual(operands: Quantized, residual: Output) -> Quantized:
    source = operation(residual, "DequantizeLinear")
    if source is None or not _is_byte_quantization(source):
        return replace(operands, residual=residual)
    codes = source.input_value(0)
    return replace(
        operands,
        residual=codes,
        residual_scale=source.input_value(1),
        residual_zero_point=_zero_point(source, codes),
    )


def _is_byte_quantization(node: Node) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear is between f32 and 8-bit integers, by one constant scale."""
    spec = QuantizeSpec.of(node)
    integers = node.output(0) if node.op_type == "QuantizeLinear" else node.input_value(0)
    real = node.input_value(0) if node.op_type == "QuantizeLinear" else node.output(0)
    if integers.element_type not in _BYTES or real.element_type is not f32 or spec.precision not in (None, f32):
        return False
    scale = constant_data(node.input_value(1))
    if scale is None or scale.dtype != np.float32 or not is_per_tensor(node) or not _are_within(scale, _LEAST_SCALE):
        return False
    return not node.has_input(2) or constant_data(node.input_value(2)) is not None


def _are_within(scales: Array, least: float) -> bool:
    """Whether scales are from `least` to `_LARGEST_SCALE`, so that no product or quotient of them overflows."""
    return bool(((scales >= least) & (scales <= _LARGEST_SCALE)).all())


def _zero_point(node: Node, codes: Output) -> Output:
    if node.has_input(2):
        return node.input_value(2)
    return Constant(np.zeros((), codes.element_type.numpy)).output(0)


def _has_parameters(dequantize: Node, operands: Quantized) -> bool:
    """Whether a DequantizeLinear reverts the quantization of the result."""
    if not _is_byte_quantization(dequantize):
        return False
    scale, zero = operands.y_scale, operands.y_zero_point
    assert isinstance(scale, Output)
    assert isinstance(zero, Output)
    zero_points = constant_data(_zero_point(dequantize, dequantize.input_value(0))), constant_data(zero)
    scales = constant_data(dequantize.input_value(1)), constant_data(scale)
    return all(a is not None and b is not None and a.item() == b.item() for a, b in (zero_points, scales))


def _weights(value: Output, axis: int, rank: int | None) -> tuple[Output, Output] | None:
    """Constant symmetric weights as i8, and their scales: one, or one for each index of `axis`; None for others."""
    node = operation(value, "DequantizeLinear")
    if node is None or value.element_type is not f32:
        return None
    spec, scale = QuantizeSpec.of(node), node.input_value(1)
    if spec.block_size or (rank is not None and value.shape.rank != rank):
        return None
    if (not scale.shape.is_static or scale.shape.size() != 1) and spec.axis != axis:
        return None
    return _symmetric(node.input_value(0), node.input_value(2) if node.has_input(2) else None, scale, axis)


def _symmetric(weights: Output, zero_point: Output | None, scale: Output, axis: int) -> tuple[Output, Output] | None:
    """Weights as i8 with zero point 0, and their scales."""
    data, scales = constant_data(weights), constant_data(scale)
    if data is None or scales is None or scales.dtype != np.float32 or not _are_within(scales, _TINY):
        return None
    if weights.element_type not in _BYTES or data.size // max(1, data.shape[axis]) > _MAX_TERMS:
        return None
    if scales.size != 1 and scales.shape != (data.shape[axis],):
        return None
    center = 128 if weights.element_type is u8 else 0
    zero_points = np.zeros((), data.dtype) if zero_point is None else constant_data(zero_point)
    if zero_points is None or not (zero_points == center).all():
        return None
    if scales.ndim == 1 and scales.size == 1:
        assert isinstance(scale.node, Constant)
        scale = derived_constant([scale.node], (), lambda array: array.reshape(())).output(0)
    if center:
        assert isinstance(weights.node, Constant)
        weights = _signed(weights.node).output(0)
    return weights, scale


def _signed(weights: Constant) -> Constant:
    """Weights of u8 with zero point 128 as i8 with zero point 0."""
    return Constant.derived(
        [weights],
        TensorType(i8, weights.output(0).shape),
        lambda data: (data.astype(np.int16) - 128).astype(np.int8),
    )


def _is_constant(value: Output) -> bool:
    """Whether a value is a constant, or the dequantization of one."""
    if isinstance(value.node, Constant):
        return True
    source = operation(value, "DequantizeLinear")
    return source is not None and all(
        given is None or isinstance(given.node, Constant) for given in source.input_values
    )
