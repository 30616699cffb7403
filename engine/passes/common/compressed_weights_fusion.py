"""`CompressedWeightsFusion`: products with a constant matrix of 2, 4 or 8-bit integers become one operator."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Constant, Node, Output, f16, f32, i8, u8
from engine.ir.element_type import bf16, i2, i4, u2, u4
from engine.onnx.annotations import ACCURACY_LEVEL
from engine.ops.internal import INTERNAL_DOMAIN, CompressedMatMul, CompressedMatMulSpec
from engine.ops.matmul import MatMulSpec
from engine.ops.quantize import QuantizeSpec
from engine.ops.spec import spec_of
from engine.ops.tensors import Array, transposed_matrix
from engine.passes.common.epilogues import with_epilogue
from engine.passes.common.quantized_operands import note_real
from engine.passes.fusion import as_vector, derived_constant, dims_of, operation, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass
from engine.startup import dataclass

_BYTES: Final = (u8, i8)
_WEIGHTS: Final = (i2, u2, i4, u4, i8, u8)
_PRODUCTS: Final = ("MatMul", "Gemm", f"{INTERNAL_DOMAIN}.FusedMatMul")
_SCALES: Final = (f32, f16, bf16)
_MAX_SCALE: Final = 2.0**40


class CompressedWeightsFusion(MatcherPass):
    """Makes `engine.CompressedMatMul` of a product of f32 with a DequantizeLinear of constants, and the bias after it.

    - MatMul, Gemm or FusedMatMul, whose second operand is a matrix of integers with one scale for all, for each column,
      or for each block of a column. A Gemm with transB stores the matrix transposed; so may a FusedMatMul.
    - Add of a constant with one value for each column.

    Scales must be finite and small enough that no sum overflows that would not in f32. A product of quantized x and
    8-bit weights without blocks is left to `QuantizedFusion`.
    """

    makes = frozenset({"engine.CompressedMatMul"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type([*_PRODUCTS, "Add"]), "CompressedWeightsFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        if self.transformation_callback(node):
            return False
        return _add_bias(node) if node.op_type == "Add" else _multiply(node)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Constants [K, N] and [blocks, N], as `CompressedMatMul` takes them."""

    weights: Constant
    scale: Constant
    zero_point: Constant | None
    block_size: int


def _multiply(node: Node) -> bool:
    if node.output(0).element_type is not f32:
        return False
    plain = with_epilogue(node) if node.op_type == "Gemm" else node
    if plain is None:
        return False
    spec = spec_of(plain)
    assert isinstance(spec, MatMulSpec)
    bias = spec.input(2)
    if spec.activation is not None or spec.input(3) is not None or not (bias is None or _is_constant(bias)):
        return False
    source = operation(plain.input_value(1), "DequantizeLinear")
    matrix = None if source is None else _matrix(source, spec.trans_b)
    if source is None or matrix is None or (_is_quantized(plain.input_value(0)) and _has_integer_kernel(source)):
        return False
    note_real(node, _why_real(plain.input_value(0), source))
    level = node.annotations.get(ACCURACY_LEVEL, 0)
    made = CompressedMatMul(
        plain.input_value(0),
        matrix.weights,
        matrix.scale,
        matrix.zero_point,
        bias,
        block_size=matrix.block_size,
        accuracy_level=level,
    )
    return replace_by(node, [source, node], [made])


def _add_bias(node: Node) -> bool:
    for index in (0, 1):
        source, other = node.input_value(index), node.input_value(1 - index)
        columns = dims_of(source)
        if source.node.op_type != "CompressedMatMul" or source.num_consumers != 1 or not columns:
            continue
        spec = CompressedMatMulSpec.of(source.node)
        bias = as_vector(other, columns[-1:]) if spec.bias is None and _is_constant(other) else None
        made = None if bias is None else with_epilogue(source.node, bias=bias)
        if made is not None and replace_by(node, [source.node, node], [made]):
            return True
    return False


def _matrix(node: Node, transposed: bool) -> _Matrix | None:
    """The operands of a DequantizeLinear of constants, as [K, N] and [blocks, N]; None if there are none."""
    spec, codes, scale = QuantizeSpec.of(node), node.input_value(0).node, node.input_value(1).node
    zero_point = node.input_value(2).node if node.has_input(2) else None
    if not isinstance(codes, Constant) or not isinstance(scale, Constant):
        return None
    if not isinstance(zero_point, Constant | None) or len(codes.shape) != 2 or 0 in codes.shape:
        return None
    if codes.element_type not in _WEIGHTS or node.output(0).element_type is not f32:
        return None
    if scale.element_type not in _SCALES:
        return None
    numbers = scale.data
    if not np.isfinite(numbers).all() or not (np.abs(numbers.astype(np.float32)) <= _MAX_SCALE).all():
        return None
    summed = 1 if transposed else 0
    k, n = codes.shape[summed], codes.shape[1 - summed]
    if spec.block_size and numbers.size > 1:
        if spec.axis != summed:
            return None
        block_size = spec.block_size
    elif numbers.size == 1 or (spec.axis == 1 - summed and numbers.shape == (n,)):
        block_size = k
    else:
        return None
    shape = (-(-k // block_size), n)
    parameters = [None if each is None else _fitted(each, shape, transposed) for each in (scale, zero_point)]
    weights = derived_constant([codes], (k, n), transposed_matrix) if transposed else codes
    assert parameters[0] is not None
    return _Matrix(weights, parameters[0], parameters[1], block_size)


def _fitted(parameter: Constant, shape: tuple[int, int], transposed: bool) -> Constant:
    """A scale or zero point as [blocks, N]: given as one number, one for each column, or a matrix."""
    if parameter.shape == shape and not transposed:
        return parameter

    def fitted(data: Array) -> Array:
        return np.ascontiguousarray(np.broadcast_to(data.T if transposed else data, shape))

    return derived_constant([parameter], shape, fitted)


def _is_constant(value: Output) -> bool:
    return isinstance(value.node, Constant)


def _why_real(x: Output, weights: Node) -> str | None:
    """Why a product of quantized x has no integer kernel; None if x is not quantized."""
    source = operation(x, "DequantizeLinear")
    if source is None:
        return None
    codes, weight_codes = source.input_value(0).element_type, weights.input_value(0).element_type
    if codes not in _BYTES:
        return f"x is quantized to {codes}; integer products take i8 or u8"
    if weight_codes not in _BYTES:
        return f"the weights are of {weight_codes}; integer products take i8 or u8"
    return "weights have a scale for each block; integer products take one for each column or one for all"


def _is_quantized(x: Output) -> bool:
    source = operation(x, "DequantizeLinear")
    return source is not None and source.input_value(0).element_type in _BYTES


def _has_integer_kernel(weights: Node) -> bool:
    """Whether the weights have the form of those that are multiplied with quantized x, in integers."""
    return weights.input_value(0).element_type in _BYTES and not QuantizeSpec.of(weights).block_size
