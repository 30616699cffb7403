"""Matrix products: specs of MatMul, Gemm and FusedMatMul; type rule of MatMul; evaluation of integer products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Node, PartialShape, TensorType, ValueType, undefined
from engine.ops.axes import Axes, AxisMapping, Labels, axis_names, maps_axes, rank_of_value
from engine.ops.cost import lengths_of, more_time, operations, size_of
from engine.ops.fused_activation import Activation, fused_activation
from engine.ops.precision import widened
from engine.ops.quantize import are_usual, quantize, requantize, scaled
from engine.ops.reference import compile_onnx
from engine.ops.registry import INTERNAL_DOMAIN, Evaluator, compiles, evaluates, get_op, infers
from engine.ops.result_size import SMALL, Measure, item_size, measures, size_of_broadcast
from engine.ops.rules import broadcast_shapes, check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

declare("MatMul", "MatMulInteger", product=(0, 1), vectorized=True)
declare("Gemm", product=(0, 1), inflates=True, vectorized=True)
declare("QLinearMatMul", product=(0, 3), quantizes=True, inflates=True, vectorized=True)


@specifies("MatMul")
@specifies("FusedMatMul", "QuantizedMatMul", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class MatMulSpec(OperatorSpec):
    """numpy's matmul, with the fused parts of a FusedMatMul or QuantizedMatMul, which a MatMul does not have.

    Attributes:
        trans_b: the matrices of B are stored [N, K].
        activation: the activation of a fused operator.
    """

    trans_b: bool
    activation: Activation | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["activation"] = fused_activation(node) if "activation" in given else None
        given["trans_b"] = bool(given.get("trans_b", 0))


@specifies("Gemm")
@dataclass(frozen=True, slots=True, kw_only=True)
class GemmSpec(OperatorSpec):
    """alpha * A * B + beta * C.

    Attributes:
        transA: A is stored [K, M].
        transB: B is stored [N, K].
    """

    alpha: float
    beta: float
    transA: bool  # noqa: N815 - as ONNX names it
    transB: bool  # noqa: N815

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        for name, kind in (("alpha", float), ("beta", float), ("transA", bool), ("transB", bool)):
            given[name] = kind(given[name])


@infers("MatMul")
def _infer_matmul(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("MatMul"))
    return (product_type(node, tensor_type(node, 0), tensor_type(node, 1)),)


def product_type(node: Node, a: TensorType, b: TensorType) -> TensorType:
    """The type of the product of two of the node's values. Raises `TypeInferenceError`."""
    element_type = a.element_type if a.element_type is not undefined else b.element_type
    if a.shape.rank.is_dynamic or b.shape.rank.is_dynamic:
        return TensorType(element_type, PartialShape.dynamic())
    if not len(a.shape) or not len(b.shape):
        fail(node, "a scalar cannot be multiplied; expected rank 1 or more, or use Mul")
    rows, inner = (a.shape.dims[-2:-1], a.shape[-1])
    columns = b.shape.dims[-1:] if len(b.shape) > 1 else ()
    other = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if not inner.compatible(other):
        fail(node, f"the last dimension of A ({inner}) and the {'last but one' if columns else 'only'} of B ({other}) "
             "must be equal")  # fmt: skip
    batch = broadcast_shapes(node, (PartialShape(a.shape.dims[:-2]), PartialShape(b.shape.dims[:-2])))
    return TensorType(element_type, PartialShape([*batch.dims, *rows, *columns]))


@evaluates("Det")
def determinant(x: Array) -> Array:
    """The determinants of square matrices (ONNX Det-22), including f16, which numpy's lacks."""
    return np.asarray(np.linalg.det(widened(x))).astype(x.dtype)


@evaluates("MatMulInteger")
def matmul_integer(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    """The product of 8-bit matrices as i32 (ONNX MatMulInteger-10); zero points are per row of a, per column of b.

    Sums are exact modulo 2^32, as in kernels that accumulate in 32 bits.
    """
    return (_centered(a, a_zero_point, -1) @ _centered(b, b_zero_point, -2)).astype(np.int64).astype(np.int32)


@evaluates("QLinearMatMul")
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """The product of quantized matrices, quantized (ONNX QLinearMatMul-21)."""
    left, right = _centered(a, a_zero_point, -1), _centered(b, b_zero_point, -2)
    factors, zero_point = (_along(a_scale, a.ndim, -1), _along(b_scale, b.ndim, -2)), _along(y_zero_point, a.ndim, -1)
    scale = _along(y_scale, a.ndim, -1)
    factor = factors[0] * factors[1] / scale
    if are_usual(*factors, scale) and np.isfinite(factor).all():
        product = left @ right
        result = requantize(product, factor, zero_point)
    else:
        product = scaled(left, factors[0]) @ scaled(right, factors[1])
        result = quantize(product, scale, zero_point)
    return result.reshape(product.shape)  # a vector's product with a matrix has no axis of rows


def _centered(x: Array, zero_point: Array | None, summed: int) -> Array:
    """Quantized values minus their zero point, in f64: sums of products are exact below 2^53, and BLAS is fast."""
    wide = x.astype(np.float64)
    return wide if zero_point is None else wide - _along(zero_point, x.ndim, summed).astype(np.float64)


def _along(parameter: Array, rank: int, summed: int) -> Array:
    """A scale or zero point in the shape of a matrix: constant along the axis that is summed over."""
    if parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == 1 and rank > 1:
        return np.expand_dims(parameter, summed)
    return parameter


@compiles("Gemm")
def _compile_gemm(node: Node) -> Evaluator:
    """ONNX's reference does not read C if beta is 0; by the formula, 0 times NaN or infinity is NaN.

    Of f16 and bf16 in f32: ONNX's reference rounds the product before it is multiplied by alpha.
    """
    run, spec = compile_onnx(node), GemmSpec.of(node)
    if not node.output(0).element_type.is_real:
        return run
    if spec.beta or not node.has_input(2):
        return lambda inputs: run([None if value is None else widened(value) for value in inputs])

    def gemm(inputs: Sequence[Any]) -> tuple[Any, ...]:
        product, c = run([widened(value) for value in inputs])[0], inputs[2]
        return ((product + c * c.dtype.type(0)).astype(product.dtype),)

    return gemm


# -- cost -------------------------------------------------------------------------------------------------


@operations("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm")
def _operations(node: Node) -> float:
    """Every element of the result is a sum over the last axis of the first factor, or with `transA` the first one."""
    shape = lengths_of(node.input_value(0))
    depth = shape[:1] if node.op_type == "Gemm" and node.attributes.get("transA") else shape[-1:]
    return 2.0 * size_of(node.output(0)) * math.prod(depth)


@more_time("Det")
def _time_of_determinants(node: Node) -> float:
    return 2.0 * size_of(node.input_value(0)) * max(1, *lengths_of(node.input_value(0))[-1:])


# -- axes -------------------------------------------------------------------------------------------------


@maps_axes("MatMul", "MatMulInteger", "QLinearMatMul")
def _product_axes(node: Node) -> Axes:
    """Zero points and scales of rows or columns have axes of the factors, which are not distinguished: without them."""
    first, second = (0, 3) if node.op_type == "QLinearMatMul" else (0, 1)
    others = [value for index, value in enumerate(node.input_values) if index not in (first, second)]
    ranks = [rank_of_value(node.input_value(index)) for index in (first, second)]
    m, n = ranks
    if m is None or n is None or any(value is not None and rank_of_value(value) != 0 for value in others):
        return None
    inputs: list[Labels] = [None] * node.num_inputs
    inputs[first] = ("k",) if m == 1 else (*axis_names(m - 2), "m", "k")
    inputs[second] = ("k",) if n == 1 else (*axis_names(n - 2), "k", "n")
    stacked = max(m, n, 2) - 2
    result = (*axis_names(stacked), *(("m",) if m > 1 else ()), *(("n",) if n > 1 else ()))
    return AxisMapping(tuple(inputs), (result,))


@maps_axes("Gemm")
def _gemm_axes(node: Node) -> Axes:
    spec = GemmSpec.of(node)
    a, b = "k m" if spec.transA else "m k", "n k" if spec.transB else "k n"
    rank = rank_of_value(node.input_value(2)) if node.has_input(2) else 0
    return None if rank is None else f"{a}, {b}, {('', 'n', 'm n')[rank]} -> m n"


@measures("MatMul", "MatMulInteger")
def _size_of_product(node: Node) -> Measure:
    item = item_size(node)

    def measure(inputs: Sequence[Any]) -> int:
        a, b = inputs[:2]
        if a.size * b.size <= SMALL or min(a.ndim, b.ndim) < 2:
            return 0
        return item * size_of_broadcast([a.shape[:-2], b.shape[:-2]]) * int(a.shape[-2]) * int(b.shape[-1])

    return measure
