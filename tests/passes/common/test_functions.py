"""Operators in terms of others. If it fails, devices without kernels for them refuse models, or answer wrongly."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.ir import ElementType, Model, Parameter, bf16, f16, f32, f64, i64
from engine.onnx import read_model
from engine.ops import evaluate_model
from engine.passes import Manager
from engine.passes.common.decompositions import MeanVarianceNormalizationDecomposition
from engine.passes.common.function_decomposition import FUNCTIONS, FunctionDecomposition
from engine.testing.onnx_suite import CASES, assert_same
from engine.testing.passes import check_pass

# Their definitions' results have ranks that only the file states, in numbers, which prove nothing.
UNPROVEN = {name for name in CASES if name.startswith("test_center_crop_pad")}
NAMES = sorted(
    name
    for name, case in CASES.items()
    if case.kind == "node" and case.model is not None and {n.op_type for n in case.model.graph.node} & set(FUNCTIONS)
)


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_computes_what_its_operator_does(name: str) -> None:
    """All inputs that may be left out, all reductions, and definitions that call others."""
    case = CASES[name]
    assert case.model is not None
    assert case.data_sets is not None
    model = read_model(case.model)
    if name in UNPROVEN:
        manager = Manager(checked=True)
        manager.register_pass(FunctionDecomposition)
        assert not manager.run_passes(model)
    else:
        check_pass(FunctionDecomposition, model, equivalent=False)
        assert not {node.op_type for node in model.ordered_nodes()} & set(FUNCTIONS)
    for inputs, outputs in case.data_sets:
        names = [parameter.friendly_name for parameter in model.parameters]
        found = evaluate_model(model, dict(zip(names, inputs, strict=True)))
        for value, expected in zip(found, outputs, strict=True):
            assert_same(np.asarray(value), np.asarray(expected), case)


def test_a_device_keeps_what_it_runs_whole() -> None:
    model = read_model(CASES["test_swiglu"].model)  # type: ignore[arg-type]
    manager = Manager(checked=True)
    manager.register_pass(FunctionDecomposition)
    manager.pass_config.set_callback(FunctionDecomposition, callback=lambda node: node.op_type == "SwiGLU")
    assert not manager.run_passes(model)


def test_several_outputs_keep_their_names() -> None:
    """By which users ask for them, and profiles tell of them."""
    x, state = Parameter(f32, ["B", 3, "L"], "x"), Parameter(f32, ["B", 3, 2], "state")
    weight = Parameter(f32, [3, 1, 3], "weight")
    node = ops.CausalConvWithState(x, weight, None, state, friendly_name="conv", num_outputs=2)
    model = Model(node.outputs, [x, weight, state])
    check_pass(FunctionDecomposition, model, dims={"B": 2, "L": 5})
    assert [result.input_value(0).node.friendly_name for result in model.results] == ["conv.0", "conv.1"]


def test_an_operator_without_a_definition_for_its_types_is_left_alone() -> None:
    """ONNX has no definition for an unknown number of channels."""
    x, weight = Parameter(f32, ["B", "C", "L"], "x"), Parameter(f32, ["C", 1, 3], "weight")
    model = Model(ops.CausalConvWithState(x, weight, num_outputs=2).outputs, [x, weight])
    assert not FunctionDecomposition().run_on_model(model)


def test_an_operator_whose_definition_does_not_fit_its_types_is_left_alone() -> None:
    """Attention may have values of another type than its scores; ONNX's definition multiplies the two."""
    queries, values = Parameter(f64, [1, 2, 3, 4], "q"), Parameter(f32, [1, 2, 3, 4], "v")
    model = Model([ops.Attention(queries, queries, values)], [queries, values])
    assert not FunctionDecomposition().run_on_model(model)


@pytest.mark.parametrize("element_type", [f16, bf16])
@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_a_mean_of_losses_whose_sums_do_not_fit_the_type(op_type: str, element_type: ElementType) -> None:
    """The sum of 40,000 weights of 2 is beyond f16; in bf16, each of the sums would round."""
    count = 40_000
    scores, labels = Parameter(element_type, [count, 2], "scores"), Parameter(i64, [count], "labels")
    weights = Parameter(element_type, [2], "weights")
    model = Model([getattr(ops, op_type)(scores, labels, weights)], [scores, labels, weights])
    random = np.random.default_rng(5)
    given = {
        "scores": random.uniform(-3, -1, (count, 2)).astype(element_type.numpy),
        "labels": random.integers(0, 2, count),
        "weights": np.array([2, 3], element_type.numpy),
    }
    (wanted,) = evaluate_model(model, given)
    check_pass(FunctionDecomposition, model, equivalent=False)
    (found,) = evaluate_model(model, given)
    assert np.isfinite(wanted.astype(np.float32))
    assert (found.dtype, float(found)) == (wanted.dtype, float(wanted))


def test_scores_of_attention_beyond_f16() -> None:
    q, k, v = (Parameter(f16, [1, 1, 2, 64], name) for name in "qkv")
    model = Model([ops.Attention(q, k, v)], [q, k, v])
    check_pass(FunctionDecomposition, model, equivalent=False)
    given = [np.full((1, 1, 2, 64), 200, np.float16), np.full((1, 1, 2, 64), 200, np.float16)]
    (found,) = evaluate_model(model, [*given, np.ones((1, 1, 2, 64), np.float16)])
    np.testing.assert_array_equal(found, np.ones((1, 1, 2, 64), np.float16))


@pytest.mark.parametrize("element_type", [f32, f16])
def test_a_large_mean_does_not_cancel_the_variance(element_type: object) -> None:
    """As it would in ONNX's own definition, where f32 has no digits left."""
    x = Parameter(element_type, ["N", 3, 8], "x")  # type: ignore[arg-type]
    model = Model([ops.MeanVarianceNormalization(x, axes=[0, 2], friendly_name="norm")], [x])
    mean = 30000 if element_type is f32 else 300
    values = np.random.default_rng(1).normal(mean, 1, (2, 3, 8)).astype(x.type.element_type.numpy)
    check_pass(MeanVarianceNormalizationDecomposition, model, inputs={"x": values})
    found = evaluate_model(model, {"x": values})[0].astype(np.float64)
    wide = values.astype(np.float64)
    expected = (wide - wide.mean((0, 2), keepdims=True)) / wide.std((0, 2), keepdims=True)
    # The mean of 30000 in f32 is off by up to ten units of 2**-9; results in f16 by two of 2**-10.
    np.testing.assert_allclose(found, expected, atol=2e-2 if element_type is f32 else 2e-3)
