"""How long the reference evaluation of a node takes, estimated from its operator and the types of its values.

The estimate depends on nothing else, so that what a compiler decides by it is the same on every machine.
"""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Node, Output, TensorType, f32, f64
from engine.ops.einsum import EinsumSpec

_FAST: Final = 8
"""Units per element of an operator that numpy computes in a few passes over its arrays."""
_SLOW: Final = 1000
"""Units per element of an operator that may loop in Python."""
_PRODUCTS_PER_UNIT: Final = 16
"""Multiply-adds per unit of a product in f32 or f64, which numpy passes to BLAS; other types have none."""
_UNITS_PER_OTHER_PRODUCT: Final = 4

_FAST_OPERATORS: Final = frozenset(
    ["Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitCast",
     "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu",
     "Clip", "Compress", "Concat", "ConstantOfShape", "Cos", "Cosh", "CumSum", "DepthToSpace", "DequantizeLinear",
     "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather",
     "GatherElements", "GatherND", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
     "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "Max",
     "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot", "Or", "PRelu", "Pad", "Pow",
     "QuantizeLinear", "RMSNormalization", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum",
     "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
     "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Selu", "Shape", "Sigmoid", "Sign", "Sin",
     "Sinh", "Size", "Slice", "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze",
     "Sub", "Sum", "Tan", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"]
)  # fmt: skip
_CONVOLUTIONS: Final = frozenset(["Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "DeformConv"])


def work_of(node: Node) -> int:
    """Units of about one nanosecond; unknown lengths count as 1.

    Products, convolutions and Einsum count their multiply-adds; others the elements of inputs and results.
    """
    values = [*(value for value in node.input_values if value is not None), *node.outputs]
    elements = sum(_size(value) for value in values)
    if node.domain:
        return _SLOW * elements
    if node.op_type in ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"):
        depth = _lengths(node.input_value(0))[-1:]
        if node.op_type == "Gemm" and node.attributes.get("transA"):
            depth = _lengths(node.input_value(0))[:1]
        return _FAST * elements + _products(node, _size(node.output(0)) * math.prod(depth))
    if node.op_type == "Einsum":
        return _FAST * elements + _products(node, _einsum_products(node))
    if node.op_type in _CONVOLUTIONS:
        weights = max(_size(value) for value in node.input_values[1:] if value is not None)
        longest = max(_size(node.output(0)), _size(node.input_value(0)))
        channels = max(1, *_lengths(node.input_value(0))[1:2])
        return _FAST * elements + _UNITS_PER_OTHER_PRODUCT * longest * max(1, weights // channels)
    return (_FAST if node.op_type in _FAST_OPERATORS else _SLOW) * elements


def _products(node: Node, count: int) -> int:
    is_fast = node.output(0).element_type in (f32, f64)
    return count // _PRODUCTS_PER_UNIT if is_fast else count * _UNITS_PER_OTHER_PRODUCT


def _einsum_products(node: Node) -> int:
    """One for each combination of values of the labels."""
    labels = EinsumSpec.of(node).labels
    if labels is None:
        return math.prod(_size(value) for value in node.input_values if value is not None)
    lengths: dict[str, int] = {}
    for term, value in zip(labels.terms, node.input_values, strict=True):
        for label, length in zip(term, _lengths(value), strict=False):
            lengths[label] = max(length, lengths.get(label, 1))
    return math.prod(lengths.values())


def _size(value: Output) -> int:
    return math.prod(_lengths(value))


def _lengths(value: Output | None) -> tuple[int, ...]:
    """The lengths of a tensor, 1 for unknown ones; empty for other types and for unknown rank."""
    if value is None or not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        return ()
    return tuple(dim.get_length() if dim.is_static else 1 for dim in value.shape)
