"""Weights of 8 bits that a model casts and multiplies by scales keep their size, and give the same results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engine_cpu.passes.dequantization_recognition import DequantizationRecognition
from engine_cpu.transform import prepare_model

from engine import Core, ops
from engine.ir import Constant, Model, Node, Parameter, f32, i64
from engine.passes import Manager, check_equivalence

RNG = np.random.default_rng(3)


def codes(*shape: int, dtype: type = np.int8) -> Constant:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return Constant(RNG.integers(low, high + 1, shape).astype(dtype))


def scales(*shape: int) -> Constant:
    return Constant(RNG.uniform(0.01, 0.03, shape).astype(np.float32))


def real(x: Node) -> Node:
    return ops.Cast(x, to=f32.onnx)


def starts(*shape: int) -> Constant:
    return Constant(RNG.integers(100, 150, shape).astype(np.float32))


def product(weights: Node, *, transposed: bool = False) -> Model:
    x = Parameter(f32, ["N", 24], "x")
    return Model([ops.Gemm(x, weights, transB=1) if transposed else ops.MatMul(x, weights)], [x])


def kinds(model: Model) -> list[str]:
    """The operators after the pass, which computes the same and changes nothing the second time."""
    graph = model.clone()
    manager = Manager()
    manager.register_pass(DequantizationRecognition)
    manager.run_passes(graph)
    check_equivalence(model, graph)
    assert not manager.run_passes(graph)
    return [node.op_type for node in graph.ordered_nodes() if node.op_type not in ("Parameter", "Constant", "Result")]


@pytest.mark.parametrize(
    "make",
    [
        lambda: product(ops.Mul(real(codes(24, 40)), scales(1, 40))),
        lambda: product(ops.Mul(scales(40), real(codes(24, 40, dtype=np.uint8)))),
        lambda: product(ops.Mul(real(codes(24, 40)), scales())),
        lambda: product(ops.Mul(real(codes(40, 24)), scales(40, 1)), transposed=True),
        lambda: product(ops.Mul(ops.Sub(real(codes(24, 40, dtype=np.uint8)), starts(1, 40)), scales(1, 40))),
        lambda: product(ops.Mul(ops.Sub(real(codes(24, 40, dtype=np.uint8)), starts()), scales(1, 40))),
        lambda: product(ops.Mul(ops.Sub(real(codes(24, 40)), real(codes(1, 40))), scales(1, 40))),
    ],
)
def test_products_read_the_codes(make: Callable[[], Model]) -> None:
    model = make()
    assert "DequantizeLinear" in kinds(model)
    graph = prepare_model(model, keeps_codes=True).graph
    assert "CompressedMatMul" in [node.op_type for node in graph.ordered_nodes()]
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    for rows in (1, 3, 40, 0):
        x = RNG.standard_normal((rows, 24)).astype(np.float32)
        (actual,), (expected,) = network([x]).values(), Core().compile_model(model, "TEMPLATE")([x]).values()
        np.testing.assert_allclose(np.array(actual), np.array(expected), rtol=0, atol=1e-4)


def test_look_ups_read_the_rows_that_are_asked_for() -> None:
    ids = Parameter(i64, ["N"], "ids")
    table = codes(30, 16)
    model = Model([ops.Gather(ops.Mul(real(table), scales(30, 1)), ids, axis=0)], [ids])
    assert kinds(model) == ["DequantizeLinear", "Gather"]
    given = np.array([3, 0, 29])
    (actual,) = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})([given]).values()
    np.testing.assert_array_equal(np.array(actual), np.array(Core().compile_model(model, "TEMPLATE")([given])[0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: product(ops.Mul(real(codes(24, 40)), scales(24, 40))),
        lambda: product(ops.Mul(ops.Sub(real(codes(24, 40)), Constant(np.float32(0.5))), scales(1, 40))),
        lambda: product(ops.Mul(ops.Sub(real(codes(24, 40)), Constant(np.float32(300))), scales(1, 40))),
        lambda: product(ops.Mul(ops.Sub(real(codes(24, 40)), starts(24, 1)), scales(1, 40))),
        lambda: product(ops.Mul(ops.Sub(starts(24, 1), real(codes(24, 40))), scales(1, 40))),
        lambda: product(ops.Abs(ops.Mul(real(codes(24, 40)), scales(1, 40)))),
        lambda: product(ops.Mul(real(Constant(np.ones((24, 40), np.int32))), scales(1, 40))),
    ],
)
def test_what_is_no_dequantization_of_weights_stays(make: Callable[[], Model]) -> None:
    assert "DequantizeLinear" not in kinds(make())
