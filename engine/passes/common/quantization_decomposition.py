"""`QuantizationDecomposition`: quantization and dequantization as arithmetic in f32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Dimension, ElementType, Model, Node, Output, TensorType, f32, u8
from engine.ir.element_type import f8e8m0
from engine.limits import OverBudgetError
from engine.ops.quantize import QuantizeSpec
from engine.ops.reference import evaluate
from engine.ops.tensors import Array
from engine.passes.common.qdq_propagation import have_equal_parameters
from engine.passes.fusion import charge, dims_of, fits, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import BackwardGraphRewrite, MatcherPass
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node

_MAX_BITS: Final = 16
_BYTE: Final = 8
_PRODUCTS: Final = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


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
    """Turns DynamicQuantizeLinear into the computation of its scale, zero point and codes in f32.

    The same numbers as ONNX's definition.
    """

    makes = frozenset({
        "Add", "Cast", "Div", "Equal", "IsNaN", "LessOrEqual", "Max", "Min", "ReduceMax", "ReduceMin", "Round", "Sub",
        "Where",
    })  # fmt: skip

    removes = frozenset({"DynamicQuantizeLinear"})

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
        largest = Constant(255.0, f32)
        is_number = ops.LessOrEqual(start, largest)  # NaN if the scale is infinite, NaN or 0
        rounded = ops.Round(ops.Where(is_number, start, largest))
        zero_point = ops.Cast(rounded, to=u8.onnx)
        quotient = ops.Div(x, scale)
        nearest = ops.Round(quotient)
        sums = ops.Add(nearest, rounded)
        clipped = ops.Min(ops.Max(sums, zero), largest)
        is_nan = ops.IsNaN(sums)
        numbers = ops.Where(is_nan, zero, clipped)
        codes = ops.Cast(numbers, to=u8.onnx)
        results = [made.output(0) for made in (codes, scale, zero_point)]
        if not all(map(fits, node.outputs, results)):
            return False
        codes.friendly_name = node.friendly_name
        inner = [least, most, low, high, is_zero, span, range_, scale, steps, start, is_number, rounded, zero_point]
        inner += [rounded.input_value(0).node, quotient, nearest, sums, clipped, clipped.input_value(0).node, is_nan]
        copy_runtime_info([node], [*inner, numbers, codes])
        for old, new in zip(node.outputs, results, strict=True):
            old.replace(new)
        return True


class QuantizationDecomposition(MatcherPass):
    """Decomposes QuantizeLinear and DequantizeLinear of f32, for devices that compute quantized models in f32.

    - DequantizeLinear of a constant becomes a constant, computed when it is read.
    - DequantizeLinear of a QuantizeLinear with equal parameters rounds and clips in f32, without integers.
    - Others become a division, rounding, clipping and a Cast, or a Cast and a product. Numbers of 4 to 8 bits with
      exponents are rounded by the Cast.

    Each result is the operator's, bit for bit: codes of up to 16 bits, and their sums with a zero point, are exact in
    f32. Scales may be computed; their number, and for blocks all lengths, must be known.
    """

    makes = frozenset({"Add", "Cast", "Div", "IsNaN", "Max", "Min", "Mul", "Round", "Sub", "Where"})

    removes = frozenset({"DequantizeLinear", "QuantizeLinear"})

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(["QuantizeLinear", "DequantizeLinear"])
        self.register_matcher(Matcher(root, "QuantizationDecomposition"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        spec = QuantizeSpec.of(node)
        are_constants = all(isinstance(value.node, Constant) for value in _inputs(node))
        if node.op_type == "DequantizeLinear" and are_constants and _replace_by_constant(node):
            return True
        if node.input_value(1).element_type not in (f32, f8e8m0):
            return False
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
    """False if the shape is unknown, or the budget has no room for the result."""
    attributes, value_type = node.attributes, node.output(0).type
    assert isinstance(value_type, TensorType)
    if not value_type.shape.is_static:
        return False

    def dequantized(*arrays: Array) -> Array:
        # Its type is known, and inferring it would take longer than the small constants.
        alone = Node("DequantizeLinear", [Constant(array) for array in arrays], attributes, types=[value_type])
        return np.asarray(evaluate(alone, list(arrays))[0], order="C")

    sources = [value.node for value in _inputs(node) if isinstance(value.node, Constant)]
    try:
        charge(sources, value_type.element_type.byte_size(value_type.shape.size()))
    except OverBudgetError:
        return False
    made = Constant.derived(sources, value_type, dequantized)
    made.friendly_name = node.friendly_name
    replace_node(node, made)
    return True


def _quantized(node: Node, spec: QuantizeSpec) -> list[Node] | None:
    """Codes of the values, as integers."""
    target = node.output(0).element_type
    if target.is_real:
        return _small(node, spec, target)
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


def _small(node: Node, spec: QuantizeSpec, target: ElementType) -> list[Node] | None:
    """The values in a type of few bits with exponents, for which zero points are 0."""
    made: list[Node] = []
    quotient = _quotient(node, spec, made)
    return None if quotient is None else [*made, ops.Cast(quotient, to=target.onnx, saturate=int(spec.saturate))]


def _quotient(node: Node, spec: QuantizeSpec, made: list[Node]) -> Node | None:
    """x / scale in f32, which is also appended to `made`."""
    x, scale = node.input_value(0), _parameter(node, 1, spec, made)
    if scale is None or x.element_type is not f32 or spec.precision not in (None, f32):
        return None
    made.append(ops.Div(x, scale))
    return made[-1]


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
    quotient = _quotient(node, spec, made)
    if quotient is None or not target.is_integral or target.bits > _MAX_BITS:
        return None
    bounds: list[Node | Output] = [Constant(bound, f32) for bound in _limits(target)]
    if node.has_input(2):
        zero_point = _parameter(node, 2, spec, made)
        if zero_point is None:
            return None
        bounds = [_difference(bound, zero_point, made) for bound in _limits(target)]
    rounded = ops.Round(quotient)
    above = ops.Max(rounded, bounds[0])
    below = ops.Min(above, bounds[1])
    is_nan = ops.IsNaN(below)
    return [*made, rounded, above, below, is_nan, ops.Where(is_nan, Constant(0.0, f32), below)]


def _limits(element_type: ElementType) -> tuple[float, float]:
    if element_type.is_signed:
        return -float(1 << (element_type.bits - 1)), float((1 << (element_type.bits - 1)) - 1)
    return 0.0, float((1 << element_type.bits) - 1)


def _dequantized(node: Node, spec: QuantizeSpec) -> list[Node] | None:
    made: list[Node] = []
    x, scale = node.input_value(0), _parameter(node, 1, spec, made)
    if scale is None or not (x.element_type.is_integral or x.element_type.bits <= _BYTE):
        return None
    value: Node = ops.Cast(x, to=f32.onnx)
    made.append(value)
    if node.has_input(2) and not _is_zero(node.input_value(2)):
        if x.element_type.is_real and isinstance(node.input_value(2).node, Constant):
            return None  # the specification has only 0
        zero_point = _parameter(node, 2, spec, made)
        if zero_point is None:
            return None
        value = ops.Sub(value, zero_point)
        made.append(value)
    return [*made, ops.Mul(value, scale)]


def _is_zero(value: Output) -> bool:
    return isinstance(value.node, Constant) and value.element_type.is_real and not value.node.data.any()


def _difference(bound: float, zero_point: Node | Output, made: list[Node]) -> Node:
    if isinstance(zero_point, Constant):
        return Constant(np.float32(bound) - zero_point.data)
    made.append(ops.Sub(Constant(bound, f32), zero_point))
    return made[-1]


def _parameter(node: Node, index: int, spec: QuantizeSpec, made: list[Node]) -> Node | Output | None:
    """A scale or zero point in f32 that broadcasts to the values; None if there is none that is known to.

    Nodes that compute it are appended to `made`.
    """
    value, dims = node.input_value(index), dims_of(node.input_value(0))
    if dims is None or not value.shape.is_static:
        return None
    count, shape = value.shape.size(), value.shape.get_shape()
    is_single = count == 1 and len(shape) <= len(dims)
    if not is_single and spec.block_size and (len(shape) != len(dims) or not all(dim.is_static for dim in dims)):
        return None
    if not is_single and not spec.block_size and len(shape) != 1:
        return None
    if isinstance(value.node, Constant):
        data = value.node.data.astype(np.float32)
        return Constant(data.reshape(()) if is_single else _spread(data, dims, spec))
    wide: Node | Output = value
    if value.element_type is not f32:
        wide = ops.Cast(value, to=f32.onnx)
        made.append(wide)
    if is_single:
        return wide
    if not spec.block_size:
        made.append(ops.Unsqueeze(wide, _axes([i for i in range(len(dims)) if i != spec.axis])))
        return made[-1]
    return _repeated(wide, shape, dims[spec.axis].get_length(), spec, made)


def _spread(data: Array, dims: Sequence[Dimension], spec: QuantizeSpec) -> Array:
    """A constant with one element for each index of an axis, or for each block of it, for all values."""
    if not spec.block_size:
        return np.ascontiguousarray(data.reshape([-1 if i == spec.axis else 1 for i in range(len(dims))]))
    repeated = np.repeat(data, spec.block_size, axis=spec.axis)
    return np.ascontiguousarray(np.take(repeated, range(dims[spec.axis].get_length()), axis=spec.axis))


def _repeated(value: Node | Output, shape: Sequence[int], length: int, spec: QuantizeSpec, made: list[Node]) -> Node:
    """The same for a computed value with one element for each block."""
    axis, size = spec.axis, spec.block_size
    apart = ops.Unsqueeze(value, _axes([axis + 1]))
    each = ops.Expand(apart, _axes([*shape[: axis + 1], size, *shape[axis + 1 :]]))
    joined = ops.Reshape(each, _axes([*shape[:axis], shape[axis] * size, *shape[axis + 1 :]]))
    made += [apart, each, joined]
    if shape[axis] * size == length:
        return joined
    made.append(ops.Slice(joined, _axes([0]), _axes([length]), _axes([axis])))
    return made[-1]


def _axes(numbers: list[int]) -> Constant:
    return Constant(np.array(numbers, np.int64))
