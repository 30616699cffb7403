"""The findings of random graphs, as small models: each device, an import and onnxruntime agree about them.

A seed makes another case once a generator changes; these stay. Where a finding was a defect, its component has a
test, too; where results were right, this shows that the tool takes them so.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Parameter, Result, boolean, f16, f32, f64, i8, i32

from .graphs import compare, prepare
from .rounding import Array

Finding = tuple[Model, dict[str, Array]]


def _draw(*shape: int, low: float = -2.0, high: float = 2.0) -> Array:
    return np.random.default_rng([7, *shape]).uniform(low, high, shape).astype(np.float32)


def _model(parameters: list[Parameter], *values: Any) -> Model:
    return Model([Result(value, f"y{index}") for index, value in enumerate(values)], parameters, name="finding")


def _quantized(value: Any, scale: float, zero: int) -> Any:
    constants = Constant(np.float32(scale)), Constant(np.int8(zero))
    return ops.DequantizeLinear(ops.QuantizeLinear(value, *constants), *constants)


def sums_between_two_steps() -> Finding:
    """0.11 m + 0.05 n lies between two steps of 0.02 for many m and n; a product adds up several of them."""
    x = Parameter(f32, [8, 3], "x")
    total = _quantized(ops.Add(_quantized(x, 0.11, 0), _quantized(x, 0.05, 0)), 0.02, 3)
    return _model([x], ops.LeakyRelu(ops.MatMul(total, Constant(_draw(3, 17))))), {"x": _draw(8, 3)}


def a_product_below_the_smallest_f16() -> Finding:
    x = Parameter(f16, [4], "x")
    data = np.array([-4.36e-5, 1.0, 0.0, -2.0], np.float16)
    return _model([x], ops.Cast(ops.PRelu(x, ops.Tanh(x)), to=boolean.onnx)), {"x": data}


def a_nearly_closed_gate_as_f64() -> Finding:
    x, zero = Parameter(f32, [1, 3, 1], "x"), Constant(np.zeros((1, 4, 1), np.float32))
    weights = Constant(np.array([[[0.0], [1.0], [0.0], [0.0]]], np.float32))
    bias = Constant(np.array([[9, 0, 9, 4, 0, 0, 0, 0]], np.float32))
    hidden = ops.create("LSTM", [x, weights, zero, bias], {"hidden_size": 1}, num_outputs=3).output(1)
    return _model([x], ops.Cast(hidden, to=f64.onnx)), {"x": np.array([[[-9.6], [-14.0], [1.0]]], np.float32)}


def gelu_of_large_negative_numbers() -> Finding:
    x = Parameter(f32, [900], "x")
    logs = ops.LogSoftmax(x, axis=-1)
    return _model([x], ops.Mul(logs, ops.Gelu(logs))), {"x": _draw(900)}


def gelu_in_a_branch() -> Finding:
    x, condition = Parameter(f32, [900], "x"), Parameter(boolean, [], "condition")
    inside, other = Parameter(f32, [900], "inside"), Parameter(f32, [900], "other")
    then = Model([ops.Gelu(inside)], captures=[inside], name="then")
    otherwise = Model([ops.Neg(other)], captures=[other], name="otherwise")
    bodies = {"then_branch": then, "else_branch": otherwise}
    value = ops.create("If", [condition, x, x], bodies).output(0)
    return _model([x, condition], value), {"x": _draw(900, low=-5, high=-3), "condition": np.array(True)}


def a_scan_of_no_trips() -> Finding:
    state, rows = Parameter(f32, [None, None], "state"), Parameter(f32, [None, None, None], "rows")
    s, row = Parameter(f32, [None, None], "s"), Parameter(f32, [None, None], "row")
    kept = ops.Tanh(ops.Add(s, row))
    body = Model([kept, ops.Mul(kept, row)], [s, row], name="body")
    node = ops.create("Scan", [state, rows], {"body": body, "num_scan_inputs": 1}, num_outputs=2)
    return _model([state, rows], *node.outputs), {"state": _draw(2, 1), "rows": _draw(0, 2, 1)}


def a_folded_transpose_that_is_multiplied() -> Finding:
    x = Parameter(f64, [3, 37], "x")
    turned = ops.Transpose(Constant(_draw(41, 37).astype(np.float64)), perm=[1, 0])
    return _model([x], ops.MatMul(x, turned)), {"x": _draw(3, 37).astype(np.float64)}


def a_group_of_nearly_equal_elements() -> Finding:
    x, one = Parameter(f32, [2, 4, 30], "x"), Constant(np.ones(4, np.float32))
    return _model([x], ops.GroupNormalization(x, one, one, num_groups=2)), {"x": _draw(2, 4, 30, low=9.99, high=10.01)}


def the_largest_of_nearly_equal_elements() -> Finding:
    x = Parameter(f32, [5, 60], "x")
    largest = ops.TopK(ops.Tanh(ops.ReduceLogSum(x, Constant([0]), keepdims=0)), Constant([4]))
    equal = np.repeat(_draw(5, 1, low=0.5, high=0.7), 60, axis=1)
    return _model([x], *largest.outputs), {"x": np.random.default_rng(0).permuted(equal, axis=0)}


def a_product_of_integers_that_wraps() -> Finding:
    x = Parameter(i32, [3, 15], "x")
    return _model([x], ops.ReduceProd(x, Constant([1]))), {"x": np.full((3, 15), 8, np.int32)}


def a_sum_of_quantized_rows() -> Finding:
    x = Parameter(i8, [2, 8], "x")
    real = ops.DequantizeLinear(x, Constant(np.float32(0.05)), Constant(np.int8(100)))
    codes = ops.QuantizeLinear(ops.Add(real, real), Constant(np.float32(0.02)), Constant(np.int8(0)))
    return _model([x], codes), {"x": np.arange(90, 106, dtype=np.int8).reshape(2, 8)}


def elu_near_zero() -> Finding:
    x = Parameter(f32, [40], "x")
    return _model([x], ops.Elu(x), ops.Celu(x), ops.Selu(x)), {"x": _draw(40, low=-1e-4, high=1e-4)}


def saturated_values_that_are_compared() -> Finding:
    x = Parameter(f32, [600], "x")
    return _model([x], ops.Equal(ops.Tanh(x), ops.Erf(x))), {"x": _draw(600, low=3.0, high=9.1)}


@pytest.mark.parametrize(
    "make",
    [
        sums_between_two_steps, a_product_below_the_smallest_f16, a_nearly_closed_gate_as_f64,
        gelu_of_large_negative_numbers, gelu_in_a_branch, a_scan_of_no_trips, a_folded_transpose_that_is_multiplied,
        a_group_of_nearly_equal_elements, the_largest_of_nearly_equal_elements, a_product_of_integers_that_wraps,
        a_sum_of_quantized_rows, elu_near_zero, saturated_values_that_are_compared,
    ],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_what_was_found_once(make: Callable[[], Finding]) -> None:
    model, feeds = make()
    prepare(("TEMPLATE", "CPU", "HETERO"))
    for seed in range(3):  # other placements of HETERO
        assert "confirmed" in compare(model, feeds, random.Random(seed))
