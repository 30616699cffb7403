"""Constants are multiplied in advance only if their product is one of the type: a model must not become infinite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.core import Core
from engine.ir import Constant, Model, Node, Parameter, f32
from engine.passes import Manager
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[Any]]
ROUNDING = 64 * float(np.finfo(np.float32).eps)
FORMS = ["batch norm", "transposed batch norm", "factor", "matrices", "biased matrices"]


def built(form: str, first: float, second: float, size: float = 1.0) -> tuple[Model, Any]:
    """A model y = second * (first * x), by convolutions or matrices, and the same in f64."""
    is_product = form.endswith("matrices")
    x = Parameter(f32, [4, 64] if is_product else [1, 16, 5, 5], "x")
    w = (values(64, 64, seed="w") if is_product else values(16, 16, 1, 1, seed="w")).astype(np.float64) * first
    constant = Constant(w.astype(np.float32))
    node: Node
    if is_product:
        v = (values(64, 2, seed="v") * second).astype(np.float32)
        bias = np.full(64, first * size if form == "biased matrices" else 0, np.float32)
        node = ops.MatMul(x, constant)
        node = ops.MatMul(ops.Add(node, Constant(bias)) if bias.any() else node, Constant(v))
        return Model([node], [x]), lambda a: (a @ constant.data.astype(np.float64) + bias) @ v.astype(np.float64)
    inner = ops.create("ConvTranspose" if form.startswith("transposed") else "Conv", [x, constant])
    factor = np.full(16, second, np.float32)
    if form == "factor":
        node = ops.Mul(inner, Constant(factor.reshape(16, 1, 1)))
    else:
        zero, one = Constant(np.zeros(16, np.float32)), Constant(np.ones(16, np.float32))
        node = ops.create("BatchNormalization", [inner, Constant(factor), zero, zero, one], {"epsilon": 1e-30})
    subscripts = "nchw,co->nohw" if form.startswith("transposed") else "nchw,oc->nohw"
    matrix = constant.data.astype(np.float64)[:, :, 0, 0]
    return Model([node], [x]), lambda a: np.einsum(subscripts, a, matrix) * float(np.float32(second))


def shape_of(model: Model) -> tuple[int, ...]:
    return model.inputs[0].shape.get_shape()


@pytest.mark.parametrize(("first", "second", "size"), [(1e25, 1e20, 1e-20), (1e-25, 1e-20, 1e15)])
@pytest.mark.parametrize("form", FORMS)
def test_products_beyond_the_range_stay_apart(form: str, first: float, second: float, size: float) -> None:
    """1e45 is infinite in f32, and 1e-45 has one digit, though what the model computes step by step is neither."""
    model, exact = built(form, first, second, size)
    x = values(*shape_of(model), seed="x") * np.float32(size)
    for device in ("CPU", "TEMPLATE"):
        y = np.asarray(Core().compile_model(model, device)({"x": x})[0])
        expected = exact(x.astype(np.float64))
        assert np.abs(y - expected).max() <= ROUNDING * np.abs(expected).max(), device


@pytest.mark.parametrize("form", FORMS)
def test_products_within_the_range_are_one(form: str) -> None:
    """Also for weights that are far from 1, or some of which training has switched off."""
    model, exact = built(form, 1e-12, 1e-12)
    x = values(*shape_of(model), seed="x")
    before = len(list(model.ordered_nodes()))
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.run_passes(model)
    assert len(list(model.ordered_nodes())) < before
    y = np.asarray(Core().compile_model(model, "TEMPLATE")({"x": x})[0])
    expected = exact(x.astype(np.float64))
    assert np.abs(y - expected).max() <= ROUNDING * np.abs(expected).max()
