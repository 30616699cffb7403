"""Products of f64 with constant matrices on the device. If these fail, models of scikit-learn in f64 are wrong."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, f64
from engine.ops import evaluate_model

Array = np.ndarray[Any, np.dtype[Any]]
NATIVE = {"ALLOW_REFERENCE": False}
RNG = np.random.default_rng(1)


def compare(x: Parameter, result: Node, shapes: Sequence[tuple[int, ...]], terms: int) -> None:
    """With the reference evaluation: sums of `terms` products of magnitude one, in another order."""
    model = Model([result], [x], name="product")
    network = Core().compile_model(model.clone(), "CPU", NATIVE)
    for shape in shapes:
        value = RNG.standard_normal(shape)
        (expected,) = evaluate_model(model, {"x": value})
        (found,) = network({"x": value}).values()
        assert (found.shape, found.dtype) == (np.shape(expected), np.float64)
        bound = 16 * terms * float(np.finfo(np.float64).eps)
        np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 70])
def test_products_of_rows(k: int, n: int) -> None:
    x = Parameter(f64, [-1, k], "x")
    compare(x, ops.MatMul(x, Constant(RNG.standard_normal((k, n)))), [(1, k), (9, k), (100, k), (0, k)], k)


def test_vectors_and_batches() -> None:
    for shape in ((7,), (2, 3, 7), (2, 0, 7)):
        x = Parameter(f64, shape, "x")
        compare(x, ops.MatMul(x, Constant(RNG.standard_normal((7, 5)))), [shape], 7)


@pytest.mark.parametrize("function", ["Relu", "Tanh", "Sigmoid", None])
def test_what_follows_a_product(function: str | None) -> None:
    """A bias is part of the product; an activation and a residual are steps of their own."""
    x = Parameter(f64, [-1, 6], "x")
    node = ops.Add(ops.MatMul(x, Constant(RNG.standard_normal((6, 6)))), Constant(RNG.standard_normal(6)))
    node = ops.create(function, [node], {}) if function else ops.Add(node, x)
    compare(x, node, [(1, 6), (20, 6)], 6)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("added", [None, (), (1,), (5,), (1, 5)], ids=str)
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_gemm(transposed: int, added: tuple[int, ...] | None, beta: float) -> None:
    x = Parameter(f64, [-1, 6], "x")
    inputs = [x, Constant(RNG.standard_normal((5, 6) if transposed else (6, 5)))]
    if added is not None:
        inputs.append(Constant(np.asarray(RNG.standard_normal(added))))
    compare(x, ops.create("Gemm", inputs, {"transB": transposed, "beta": beta}), [(1, 6), (20, 6)], 6)


def test_special_values() -> None:
    """Infinities and NaN stay in their rows; 0 times one of them is NaN."""
    x = Parameter(f64, [3, 2], "x")
    network = Core().compile_model(Model([ops.MatMul(x, Constant(np.eye(2)))], [x], name="product"), "CPU", NATIVE)
    value = np.array([[np.inf, 1.0], [np.nan, 1.0], [1e308, -1e308]])
    (found,) = network({"x": value}).values()
    np.testing.assert_array_equal(found, [[np.inf, np.nan], [np.nan, np.nan], [1e308, -1e308]])


def test_a_blob_has_the_packed_matrix() -> None:
    x = Parameter(f64, [3, 64], "x")
    core = Core()
    network = core.compile_model(
        Model([ops.MatMul(x, Constant(RNG.standard_normal((64, 64))))], [x], name="product"), "CPU", NATIVE
    )
    value = RNG.standard_normal((3, 64))
    blob = io.BytesIO()
    network.export_model(blob)
    (expected,) = network({"x": value}).values()
    (found,) = core.import_model(blob.getvalue(), "CPU")({"x": value}).values()
    np.testing.assert_array_equal(found, expected)


def test_computed_matrices_have_no_kernel() -> None:
    x = Parameter(f64, [3, 3], "x")
    with pytest.raises(UnsupportedError, match="expected a constant matrix for a product of f64"):
        Core().compile_model(Model([ops.MatMul(x, x)], [x], name="product"), "CPU", NATIVE)
