"""`QOperatorDecomposition`: QLinearConv, QLinearMatMul and interpolations of codes as operators of f32."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, ElementType, Node, Output, f32, i8, u8
from engine.ops.resize import ResizeSpec
from engine.ops.tensors import Array
from engine.passes.fusion import FusionPass, constant_data, dims_of
from engine.passes.pattern import wrap_type

_CODES: Final[frozenset[ElementType]] = frozenset({i8, u8})


class QOperatorDecomposition(FusionPass):
    """Decomposes QLinearConv and QLinearMatMul into DequantizeLinear, Conv or MatMul, and QuantizeLinear.

    Models quantized in either format (QDQ, QOperator) then have the same form. The result is within one quantum of the
    operator's: the sums are the same except for rounding in f32, and one near the middle of two codes may become
    either.

    A node stays if its scales are not of f32, if the scales or zero points of an input are neither one number nor one
    for each output channel, row of a or column of b.

    A linear or cubic Resize of 8-bit integers, as the format has it, also rounds its results half to even.
    """

    by_default = False

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(["QLinearConv", "QLinearMatMul", "Resize"])
        self.register_fusion(root, lambda m: _FORMS[m.match_root.op_type](m.match_root))


def _conv(node: Node) -> list[Node] | None:
    x, weights = _dequantized(node, 0, None), _dequantized(node, 3, 0)
    if x is None or weights is None or dims_of(node.output(0)) is None:
        return None
    operands: list[Node] = [x, weights]
    made: list[Node] = []
    if node.has_input(8):
        made = _bias(node)
        operands.append(made[-1])
    return _quantized(node, [x, weights, *made, ops.create("Conv", operands, node.attributes)], None)


def _product(node: Node) -> list[Node] | None:
    a, b = _dequantized(node, 0, -2), _dequantized(node, 3, -1)
    if a is None or b is None or dims_of(node.output(0)) is None:
        return None
    return _quantized(node, [a, b, ops.MatMul(a, b)], -2)


def _resize(node: Node) -> list[Node] | None:
    """The quantum is 1: interpolation does not depend on it."""
    codes = node.input_value(0)
    if codes.element_type not in _CODES or ResizeSpec.of(node).mode == "nearest":
        return None
    quantum, zero = Constant(np.float32(1)), Constant(np.zeros((), codes.element_type.numpy))
    real = ops.DequantizeLinear(codes, quantum, zero)
    resized = ops.create("Resize", [real, *node.input_values[1:]], node.attributes)
    return [real, resized, ops.QuantizeLinear(resized, quantum, zero)]


_FORMS: Final = {"QLinearConv": _conv, "QLinearMatMul": _product, "Resize": _resize}


def _dequantized(node: Node, index: int, axis: int | None) -> Node | None:
    """The values of input `index`, whose scale and zero point are the next two inputs."""
    value = node.input_value(index)
    parameters = _parameters(node, index + 1, value, axis)
    if parameters is None or value.element_type not in _CODES:
        return None
    return ops.DequantizeLinear(value, *parameters, axis=1 if axis is None else axis)


def _quantized(node: Node, made: list[Node], axis: int | None) -> list[Node] | None:
    """`made`, and the codes of its last value."""
    parameters = _parameters(node, 6, made[-1].output(0), axis)
    if parameters is None or node.output(0).element_type not in _CODES:
        return None
    return [*made, ops.QuantizeLinear(made[-1], *parameters, axis=1 if axis is None else axis)]


def _parameters(node: Node, index: int, value: Output, axis: int | None) -> tuple[Output, Output] | None:
    """Scale and zero point, inputs `index` and the next one, of equal shapes as ONNX's quantization requires."""
    scale, zero_point, dims = node.input_value(index), node.input_value(index + 1), dims_of(value)
    if scale.element_type is not f32 or not scale.shape.is_static or not zero_point.shape.is_static:
        return None
    sizes = scale.shape.size(), zero_point.shape.size()
    if max(len(scale.shape), len(zero_point.shape)) > 1 or 0 in sizes:
        return None
    if sizes == (1, 1):
        return scale, zero_point
    if axis is None or dims is None or not -len(dims) <= axis < len(dims) or len(dims) < 2:
        return None
    if sizes[0] == sizes[1]:
        return scale, zero_point
    scales, zero_points = constant_data(scale), constant_data(zero_point)
    if 1 not in sizes or scales is None or zero_points is None:
        return None
    return _repeated(scales, max(sizes)), _repeated(zero_points, max(sizes))


def _repeated(numbers: Array, count: int) -> Output:
    return Constant(np.broadcast_to(numbers.reshape(-1), count).copy()).output(0)


def _bias(node: Node) -> list[Node]:
    """The bias of a QLinearConv, whose scale is x_scale * w_scale: of constants computed in f64, and rounded once."""
    x_scale, w_scale, bias = (node.input_value(index) for index in (1, 4, 8))
    numbers, x_data, w_data = (constant_data(value) for value in (bias, x_scale, w_scale))
    real = ops.Cast(bias, to=f32.onnx) if numbers is None else Constant(numbers.astype(np.float32))
    if x_data is None or w_data is None:
        factor = ops.Mul(x_scale, w_scale)
        return [real, factor, ops.Mul(real, factor)]
    scale = x_data.astype(np.float64).reshape(()) * w_data.astype(np.float64).reshape(-1)
    if numbers is not None:
        return [Constant((numbers * scale).astype(np.float32))]
    return [real, ops.Mul(real, Constant(scale.astype(np.float32)))]
