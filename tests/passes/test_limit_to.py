"""`PassConfig.limit_to`: the common passes make what a device has kernels for, and replace what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32
from engine.passes import Manager
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.gelu_fusion import GeluFusion
from engine.testing.networks import NETWORKS, seeded_network

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures").rglob("*.onnx"))
SOURCES = {("", "Parameter"), ("", "Constant"), ("", "Result")}


def operators_of(model: Model) -> set[tuple[str, str]]:
    return {(node.domain, node.op_type) for node in model.ordered_nodes()} - SOURCES


def optimized(model: Model, operators: set[tuple[str, str]]) -> Model:
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.limit_to(operators)
    manager.run_passes(model)
    return model


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_exports_get_no_operator_that_they_did_not_have(path: Path) -> None:
    model = Core().read_model(path)
    operators = operators_of(model)
    assert operators_of(optimized(model, operators)) - operators == set()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_get_no_operator_that_they_did_not_have(name: str) -> None:
    model = Core().read_model(seeded_network(name, small=True).model)
    operators = operators_of(model)
    assert operators_of(optimized(model, operators)) - operators == set()


def gelu() -> Model:
    x = Parameter(f32, [2, 8], "x")
    gate = ops.Add(ops.Erf(ops.Div(x, Constant(float(np.sqrt(2))))), Constant(1.0))
    return Model([ops.Mul(ops.Mul(x, Constant(0.5)), gate)], [x])


def test_what_a_device_claims_is_still_recognised() -> None:
    model = optimized(gelu(), {("", "Gelu")})
    assert operators_of(model) == {("", "Gelu")}


def test_a_pass_that_is_enabled_by_name_runs() -> None:
    manager, model = Manager(), gelu()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.limit_to({("", "Add")})
    manager.pass_config.enable(GeluFusion)
    manager.run_passes(model)
    assert operators_of(model) == {("", "Gelu")}


def fused(operators: set[tuple[str, str]]) -> set[tuple[str, str]]:
    x = Parameter(f32, [2, 8], "x")
    product = ops.MatMul(x, Constant(np.ones((8, 4), np.float32)))
    model = Model([ops.Relu(ops.Add(product, Constant(np.ones(4, np.float32))))], [x])
    return operators_of(optimized(model, operators))


def test_internal_operators_are_made_for_a_device_that_lowers_them() -> None:
    own = {("", "MatMul"), ("", "Add"), ("", "Relu")}
    assert fused(own) == own
    assert fused({*own, ("engine", "FusedMatMul")}) == {("engine", "FusedMatMul"), ("", "Relu")}
    assert fused({*own, ("engine", "FusedMatMul"), ("engine", "FusedConv")}) == {("engine", "FusedMatMul")}


DECOMPOSED = {
    "MeanVarianceNormalization": lambda x: ops.MeanVarianceNormalization(x, axes=[1]),
    "Einsum": lambda x: ops.Einsum(x, x, equation="ij,kj->ik"),
    "CenterCropPad": lambda x: ops.CenterCropPad(x, Constant(np.array([1, 9]))),
    "Swish": ops.Swish,
}


@pytest.mark.parametrize("operator", DECOMPOSED)
def test_a_decomposition_runs_on_the_nodes_that_a_device_refuses(operator: str) -> None:
    def run(operators: set[tuple[str, str]], refused: set[str]) -> set[str]:
        x = Parameter(f32, [2, 8], "x")
        model = Model([DECOMPOSED[operator](x)], [x])
        manager = Manager()
        manager.register_pass(CommonOptimizations)
        manager.pass_config.limit_to(operators, lambda node: node.op_type not in refused)
        manager.run_passes(model)
        return {op_type for _, op_type in operators_of(model)}

    everything = {(op.domain, op.name) for op in ops.all_ops()}
    assert run(everything, set()) == {operator}
    assert operator not in run(everything - {("", operator)}, {operator})
    assert run({("", "Relu")}, {operator}) == {operator}  # it lacks what the operator would become
