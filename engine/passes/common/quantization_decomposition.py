"""`QuantizationDecomposition`: quantization and dequantization as arithmetic in f32."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, ElementType, Model, Node, Output, TensorType, f32, u8
from engine.ops.quantize import QuantizeSpec
from engine.ops.reference import evaluate
from engine.ops.tensors import Array
from engine.passes.common.qdq_propagation import have_equal_parameters
from engine.passes.fusion import dims_of, fits, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import BackwardGraphRewrite, MatcherPass
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node

_MAX_BITS: Final = 16
_BYTE: Final = 8
_PRODUCTS: Final = frozenset({"Conv", "MatMul", "Gemm"})


class DequantizedConstantFolding(MatcherPass):
    """Turns DequantizeLinear of a constant into a constant, computed when it is read, except for 8-bit weights.

    Weights of convolutions and matrix products stay as they are, for `QuantizedFusion`; other passes see constants. For
    devices that compute what is not fused in f32, so disabled unless a `PassConfig` enables it.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("DequantizeLinear"), "DequantizedConstantFolding"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node) or not all(isinstance(v.node, Constant) for v in _inputs(node)):
            return False
        if node.input_value(0).element_type.bits <= _BYTE and any(
            target.node.op_type in _PRODUCTS and target.index == 1 for target in node.output(0).target_inputs
        ):
            return False
        return _replace_by_constant(node)


class DynamicQuantizationDecomposition(MatcherPass):
    """Turns DynamicQuantizeLinear into the computation of its scale and zero point, and a QuantizeLinear.

    The same numbers as ONNX's definition. For devices that have no kernel for the operator, so disabled unless a
    `PassConfig` enables it.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type("DynamicQuantizeLinear")
        self.register_matcher(Matcher(root, "DynamicQuantizationDecomposition"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        x = node.input_value(0)
        if self.transformation_callback(node) or x.element_type is not f32 or dims_of(x) is None:
            return False
        zero = Constant(0.0, f32)
        least, most = ops.ReduceMin(x, keepdims=0), ops.ReduceMax(x, keepdims=0)
        low, high = ops.Min(least, zero), ops.Max(most, zero)
        is_zero, span = ops.Equal(high, low), ops.Sub(high, low)
        range_ = ops.Where(is_zero, Constant(1.0, f32), span)
        scale = ops.Div(range_, Constant(255.0, f32))
        steps = ops.Div(low, scale)
        start = ops.Sub(zero, steps)
        clipped = ops.Clip(start, zero, Constant(255.0, f32))
        rounded = ops.Round(clipped)
        zero_point = ops.Cast(rounded, to=u8.onnx)
        codes = ops.QuantizeLinear(x, scale, zero_point)
        results = [made.output(0) for made in (codes, scale, zero_point)]
        if not all(map(fits, node.outputs, results)):
            return False
        codes.friendly_name = node.friendly_name
        between = [least, most, low, high, is_zero, span, range_, scale, steps, start, clipped, rounded, zero_point]
        copy_runtime_info([node], [*between, codes])
        for old, new in zip(node.outputs, results, strict=True):
            old.replace(new)
        return True


class QuantizationDecomposition(MatcherPass):
    """Decomposes QuantizeLinear and DequantizeLinear of f32, for devices that compute quantized models in f32.

    - DequantizeLinear of a constant becomes a constant, computed when it is read.
    - DequantizeLinear of a QuantizeLinear with equal parameters rounds and clips in f32, without integers.
    - Others become a division, rounding, clipping and a Cast, or a Cast and a product.

    Each result is the operator's, bit for bit: codes of up to 16 bits, and their sums with a zero point, are exact in
    f32. Scales must be constants, or one number; blocked scales are decomposed only on constants.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(["QuantizeLinear", "DequantizeLinear"])
        self.register_matcher(Matcher(root, "QuantizationDecomposition"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node) or node.input_value(1).element_type is not f32:
            return False
        spec = QuantizeSpec.of(node)
        if node.op_type == "DequantizeLinear" and all(isinstance(v.node, Constant) for v in _inputs(node)):
            return _replace_by_constant(node)
        if node.op_type == "QuantizeLinear":
            made = _quantized(node, spec)
            return made is not None and replace_by(node, [node], made)
        if spec.output_dtype not in (None, f32):
            return False
        quantize = operation(node.input_value(0), "QuantizeLinear")
        if quantize is not None and have_equal_parameters(node, quantize):
            made = _rounded(quantize, QuantizeSpec.of(quantize), node)
            if made is not None:
                return replace_by(node, [quantize, node], made)
        made = _dequantized(node, spec)
        return made is not None and replace_by(node, [node], made)

    def run_on_model(self, model: Model) -> bool:
        """Apply the pass to every node of `model`, bodies included; a pair is met before its QuantizeLinear."""
        rewrite = BackwardGraphRewrite([self])
        if self.config is not None:
            rewrite.set_pass_config(self.config)
        return rewrite.run_on_model(model)


def _inputs(node: Node) -> list[Output]:
    return [value for value in node.input_values if value is not None]


def _replace_by_constant(node: Node) -> bool:
    attributes, value_type = node.attributes, node.output(0).type
    assert isinstance(value_type, TensorType)
    if not value_type.shape.is_static:
        return False

    def dequantized(*arrays: Array) -> Array:
        alone = ops.create("DequantizeLinear", [Constant(array) for array in arrays], attributes)
        return np.ascontiguousarray(evaluate(alone, list(arrays))[0])

    sources = [value.node for value in _inputs(node) if isinstance(value.node, Constant)]
    made = Constant.derived(sources, value_type, dequantized)
    made.friendly_name = node.friendly_name
    replace_node(node, made)
    return True


def _quantized(node: Node, spec: QuantizeSpec) -> list[Node] | None:
    """Codes of the values, as integers."""
    target = node.output(0).element_type
    made = _codes(node, spec, target)
    if made is None:
        return None
    codes = made[-1]
    if node.has_input(2):
        zero_point = _parameter(node, 2, spec, made)
        assert zero_point is not None
        codes = ops.Add(codes, zero_point)
        made.append(codes)
    return [*made, ops.Cast(codes, to=target.onnx)]


def _rounded(quantize: Node, spec: QuantizeSpec, dequantize: Node) -> list[Node] | None:
    """The values that the codes stand for."""
    made = _codes(quantize, spec, quantize.output(0).element_type)
    if made is None:
        return None
    codes, scale = made[-1], _parameter(dequantize, 1, QuantizeSpec.of(dequantize), made)
    return None if scale is None else [*made, ops.Mul(codes, scale)]


def _codes(node: Node, spec: QuantizeSpec, target: ElementType) -> list[Node] | None:
    """x / scale, rounded and clipped, less the zero point; 0 where it is NaN. The codes are the last node."""
    made: list[Node] = []
    x, scale = node.input_value(0), _parameter(node, 1, spec, made)
    if scale is None or x.element_type is not f32 or spec.precision not in (None, f32):
        return None
    if not target.is_integral or target.bits > _MAX_BITS:
        return None
    bounds: list[Node | Output] = [Constant(bound, f32) for bound in _limits(target)]
    if node.has_input(2):
        zero_point = _parameter(node, 2, spec, made)
        if zero_point is None:
            return None
        bounds = [_difference(bound, zero_point, made) for bound in _limits(target)]
    quotient = ops.Div(x, scale)
    rounded = ops.Round(quotient)
    above = ops.Max(rounded, bounds[0])
    below = ops.Min(above, bounds[1])
    is_nan = ops.IsNaN(below)
    return [*made, quotient, rounded, above, below, is_nan, ops.Where(is_nan, Constant(0.0, f32), below)]


def _limits(element_type: ElementType) -> tuple[float, float]:
    if element_type.is_signed:
        return -float(1 << (element_type.bits - 1)), float((1 << (element_type.bits - 1)) - 1)
    return 0.0, float((1 << element_type.bits) - 1)


def _dequantized(node: Node, spec: QuantizeSpec) -> list[Node] | None:
    made: list[Node] = []
    x, scale = node.input_value(0), _parameter(node, 1, spec, made)
    if scale is None or not x.element_type.is_integral:
        return None
    value: Node = ops.Cast(x, to=f32.onnx)
    made.append(value)
    if node.has_input(2):
        zero_point = _parameter(node, 2, spec, made)
        if zero_point is None:
            return None
        value = ops.Sub(value, zero_point)
        made.append(value)
    return [*made, ops.Mul(value, scale)]


def _difference(bound: float, zero_point: Node | Output, made: list[Node]) -> Node:
    if isinstance(zero_point, Constant):
        return Constant(np.float32(bound) - zero_point.data)
    made.append(ops.Sub(Constant(bound, f32), zero_point))
    return made[-1]


def _parameter(node: Node, index: int, spec: QuantizeSpec, made: list[Node]) -> Node | Output | None:
    """A scale or zero point in f32 that broadcasts to the values; None if there is none that is known to.

    A node that computes it is appended to `made`.
    """
    value, dims = node.input_value(index), dims_of(node.input_value(0))
    if dims is None or spec.block_size:
        return None
    if isinstance(value.node, Constant):
        data = value.node.data.astype(np.float32)
        shape = () if data.size == 1 else tuple(-1 if i == spec.axis else 1 for i in range(len(dims)))
        return Constant(np.ascontiguousarray(data.reshape(shape)))
    if not value.shape.is_static or value.shape.size() != 1 or len(value.shape.dims) > len(dims):
        return None
    if value.element_type is f32:
        return value
    made.append(ops.Cast(value, to=f32.onnx))
    return made[-1]
