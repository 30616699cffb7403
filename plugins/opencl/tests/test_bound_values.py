"""Axes, sizes and counts that are inputs of a model: plans are made for their values."""

from __future__ import annotations

import io

import numpy as np
import pytest

from engine import Core, Model, ops
from engine.errors import InputError
from engine.ir import Constant, Parameter, f32, i64


def reduced(*, keepdims: int = 0) -> Model:
    """The sum of x [2, 3, 4] over axes that are an input."""
    x, axes = Parameter(f32, [2, 3, 4], "x"), Parameter(i64, [1], "axes")
    return Model([ops.ReduceSum(x, axes, keepdims=keepdims)], [x, axes])


def test_results_follow_the_values_and_plans_are_kept() -> None:
    network = Core().compile_model(reduced(), "OPENCL")
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for axis in (0, 1, 2, -1, 0, 1):
        (result,) = network({"x": data, "axes": np.array([axis])}).values()
        np.testing.assert_array_equal(result, data.sum(axis), strict=True)


def test_a_value_that_the_operator_cannot_take_is_the_callers_error() -> None:
    network = Core().compile_model(reduced(), "OPENCL")
    with pytest.raises(InputError, match="axes"):
        network({"x": np.zeros((2, 3, 4), np.float32), "axes": np.array([3])})
    network({"x": np.zeros((2, 3, 4), np.float32), "axes": np.array([2])})


def test_values_computed_from_inputs_are_bound_through_the_blob() -> None:
    x, half = Parameter(f32, [1, 1, "h", "w"], "x"), Parameter(i64, [2], "half")
    sizes = ops.Concat(Constant([1, 1]), ops.Mul(half, Constant([2, 2])), axis=0)
    resized = ops.Resize(x, None, None, sizes, mode="nearest")
    core = Core()
    blob = io.BytesIO()
    core.compile_model(Model([resized], [x, half]), "OPENCL").export_model(blob)
    network = core.import_model(blob.getvalue(), "OPENCL")
    data = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    for half_sizes in ([2, 3], [1, 3], [3, 6]):
        (result,) = network({"x": data, "half": np.array(half_sizes)}).values()
        assert result.shape == (1, 1, 2 * half_sizes[0], 2 * half_sizes[1])
    np.testing.assert_array_equal(result[0, 0, ::3, ::4], data[0, 0], strict=True)


def test_values_that_are_computed_from_data_are_refused() -> None:
    x = Parameter(f32, [5], "x")
    count = ops.ReduceSum(ops.Cast(ops.Greater(x, Constant(np.float32(0))), to=i64), Constant([0]), keepdims=1)
    big = Parameter(f32, [300, 300], "big")
    top = ops.TopK(big, ops.Cast(ops.ReduceMax(big, keepdims=0), to=i64), axis=0)
    top.friendly_name = "top"
    answer = Core().query_model(Model([top.output(0), count], [x, big]), "OPENCL")
    assert answer["top"].cause == "constant"


def test_an_input_of_many_elements_is_not_bound() -> None:
    x, repeats = Parameter(f32, [1] * 3, "x"), Parameter(i64, ["a", "b"], "repeats")
    flat = ops.Tile(x, ops.Reshape(repeats, Constant([3])))
    flat.friendly_name = "tile"
    assert Core().query_model(Model([flat], [x, repeats]), "OPENCL")["tile"].cause == "constant"


def test_what_is_bound_may_be_an_output_too() -> None:
    x, k = Parameter(f32, [6], "x"), Parameter(i64, [1], "k")
    values = ops.TopK(x, k).output(0)
    network = Core().compile_model(Model([values, k], [x, k]), "OPENCL")
    for count in (2, 4):
        best, same = network({"x": np.arange(6, dtype=np.float32), "k": np.array([count])}).values()
        np.testing.assert_array_equal(best, np.arange(5, 5 - count, -1, dtype=np.float32), strict=True)
        np.testing.assert_array_equal(same, [count])
