"""Evaluation of common operators by one call of numpy each, without `onnx.reference`.

Importing `onnx.reference` takes longer than compiling a small model. These operators are what exporters compute shapes
with, and what quantized models store weights with; results are those of `onnx.reference`, bit for bit, since it makes
the same calls of numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from engine.ir import Node, TensorType, string, undefined
from engine.ops.quantize import QuantizeSpec, spread
from engine.ops.reference import compile_onnx
from engine.ops.registry import Evaluator, attribute, compiles
from engine.ops.transpose import TransposeSpec

_POINTWISE: Final[Mapping[str, Callable[..., Any]]] = {
    "Abs": np.absolute,
    "Add": np.add,
    "And": np.logical_and,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Equal": np.equal,
    "Exp": np.exp,
    "Floor": np.floor,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "IsNaN": np.isnan,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Log": np.log,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "Where": np.where,
    "Xor": np.logical_xor,
}


@compiles(*_POINTWISE)
def _compile_pointwise(node: Node) -> Evaluator:
    if not has_numbers_of_numpy(node):
        return compile_onnx(node)
    function = _POINTWISE[node.op_type]
    return lambda inputs: (function(*inputs),)


@compiles("Div")
def _compile_div(node: Node) -> Evaluator:
    if not has_numbers_of_numpy(node) or node.input_value(0).element_type.is_integral:
        return compile_onnx(node)
    return lambda inputs: (np.divide(*inputs),)


@compiles("Max", "Min")
def _compile_extremum(node: Node) -> Evaluator:
    if not has_numbers_of_numpy(node):
        return compile_onnx(node)
    function = np.maximum if node.op_type == "Max" else np.minimum

    def run(inputs: Any) -> tuple[Any, ...]:
        found = inputs[0]
        for other in inputs[1:]:
            found = function(found, other)
        return (found,)

    return run


@compiles("Concat")
def _compile_concat(node: Node) -> Evaluator:
    axis = attribute(node, "axis")
    return lambda inputs: (np.concatenate(inputs, axis),)


@compiles("ConstantOfShape")
def _compile_constant_of_shape(node: Node) -> Evaluator:
    value = attribute(node, "value")
    if not isinstance(value, np.ndarray | None) or (value is not None and value.size != 1):
        return compile_onnx(node)
    item = np.float32(0) if value is None else value.flat[0]
    return lambda inputs: (np.full(tuple(inputs[0].tolist()), item),)


@compiles("Identity")
def _compile_identity(node: Node) -> Evaluator:
    return lambda inputs: (inputs[0],)


@compiles("Squeeze")
def _compile_squeeze(node: Node) -> Evaluator:
    def run(inputs: Any) -> tuple[Any, ...]:
        axes = inputs[1] if len(inputs) > 1 else None
        return (np.squeeze(inputs[0], None if axes is None else tuple(axes.reshape(-1).tolist())),)

    return run


@compiles("Transpose")
def _compile_transpose(node: Node) -> Evaluator:
    perm = TransposeSpec.of(node).perm
    return lambda inputs: (np.transpose(inputs[0], perm),)


@compiles("Unsqueeze")
def _compile_unsqueeze(node: Node) -> Evaluator:
    return lambda inputs: (np.expand_dims(inputs[0], tuple(inputs[1].reshape(-1).tolist())),)


@compiles("DequantizeLinear")
def _compile_dequantize(node: Node) -> Evaluator:
    if not has_numbers_of_numpy(node):
        return compile_onnx(node)
    spec = QuantizeSpec.of(node)
    axis, block_size, target = spec.axis, spec.block_size, spec.output_dtype

    def run(inputs: Any) -> tuple[Any, ...]:
        x, scale, *zero_points = inputs
        y = x.astype(np.float32)
        if zero_points and zero_points[0] is not None:
            y = y - spread(zero_points[0], x.shape, axis, block_size)
        y = y * spread(scale, x.shape, axis, block_size)
        return (y.astype(scale.dtype if target is None else target.numpy, copy=False),)

    return run


def has_numbers_of_numpy(node: Node) -> bool:
    """Whether all inputs and outputs are tensors of a type that numpy itself has, not of `ml_dtypes` or strings."""
    values = [value for value in (*node.input_values, *node.outputs) if value is not None]
    for value in values:
        value_type = value.type
        if not isinstance(value_type, TensorType) or value_type.element_type in (undefined, string):
            return False
        if np.dtype(value_type.element_type.numpy).isbuiltin != 1:
            return False
    return True
