"""Internal operators mean what they decompose to, everywhere. If it fails, devices with fused kernels differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine import ops
from engine.errors import ModelError, TypeInferenceError, UnknownOperatorError
from engine.ir import Constant, Model, Node, Output, Parameter, boolean, f16, f32
from engine.onnx import join_model, model_to_proto, split_model
from engine.ops.evaluator import evaluate_model
from engine.ops.fused_activation import apply_activation
from engine.ops.internal import (
    ACTIVATIONS,
    Activation,
    ChannelNormalization,
    FusedAttention,
    FusedConv,
    FusedMatMul,
    ScaleShift,
    activation_of,
    as_onnx,
    decompose,
    has_internal_nodes,
)
from engine.passes import check_equivalence
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.flattened_product_fusion import FlattenedProductFusion
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.residual_fusion import ResidualFusion

Apply = Callable[..., Counter[str]]
RNG = np.random.default_rng(11)


def array(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype(np.float32))


def fused(name: str = "Relu") -> Model:
    x, r = Parameter(f32, ["N", 4, 6, 6], "x"), Parameter(f32, ["N", 8, 6, 6], "r")
    activation = Activation(name, (-0.5, 0.75)[: len(ACTIVATIONS[name])])
    node = FusedConv(x, array(8, 2, 3, 3), array(8), r, activation=activation, group=2, pads=[1] * 4)
    node.friendly_name = "fused"
    return Model([node], [x, r])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_goes_there_and_back(name: str) -> None:
    activation = Activation(name, (-0.5, 0.75)[: len(ACTIVATIONS[name])])
    x = Parameter(f32, [3], "x")
    value = apply_activation(x.output(0), activation)
    found = activation_of(value.node)
    assert found is not None
    assert found.name == name
    assert found.parameters == pytest.approx(activation.parameters)
    model = fused(name)
    check_equivalence(model, as_onnx(model))


def test_what_is_no_activation_of_one_input_is_none() -> None:
    x, low = Parameter(f32, [3], "x"), Parameter(f32, [], "low")
    assert activation_of(ops.Clip(x, low)) is None
    assert activation_of(ops.Clip(x, Constant(0.0))) == Activation("Clip", (0.0, np.inf))
    assert activation_of(ops.Abs(x)) is None
    with pytest.raises(ModelError, match="activation 'Rely' is unknown; expected one of Clip, Elu"):
        apply_activation(x.output(0), Activation("Rely"))
    with pytest.raises(ModelError, match=r"Clip takes 2 parameters \(min, max\), got 1"):
        apply_activation(x.output(0), Activation("Clip", (1.0,)))


def test_it_is_written_as_onnx_and_runs_elsewhere() -> None:
    model = fused("Clip")
    proto = model_to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node] == ["Conv", "Add", "Clip"]
    assert proto.graph.node[-1].name == "fused"
    assert has_internal_nodes(model)  # the model itself is as it was
    inputs = {"x": RNG.standard_normal([2, 4, 6, 6]).astype("f"), "r": RNG.standard_normal([2, 8, 6, 6]).astype("f")}
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    np.testing.assert_allclose(evaluate_model(model, inputs)[0], expected, atol=1e-5)


def test_in_a_blob_it_stays_internal() -> None:
    model = fused()
    skeleton, sections = split_model(model)
    joined = join_model(skeleton, {section.name: section.data for section in sections}.__getitem__)
    assert joined.node("fused").op_type == "FusedConv"
    assert joined.node("fused").output(0).type == model.node("fused").output(0).type
    check_equivalence(model, joined)


def test_in_bodies_it_is_decomposed_too() -> None:
    chosen, x = Parameter(boolean, [], "chosen"), Parameter(f32, [2, 3], "x")

    def body(name: str) -> Model:
        inner = Parameter(f32, [2, 3], "inner")
        node = FusedMatMul(inner, array(3, 4), array(4), activation=Activation(name))
        return Model([node], captures=[inner], name=name)

    bodies = {"then_branch": body("Relu"), "else_branch": body("Tanh")}
    model = Model([ops.create("If", [chosen, x, x], bodies, num_outputs=1)], [chosen, x])
    onnx.checker.check_model(model_to_proto(model), full_check=True)
    check_equivalence(model, as_onnx(model), inputs={"chosen": np.array(True)})


def test_annotations_go_to_all_parts() -> None:
    node = fused().node("fused")
    node.rt_info["affinity"] = "CPU"
    (output,) = decompose(node)
    assert output.node.friendly_name == "fused"
    conv = output.node.input_value(0).node.input_value(0).node
    assert (conv.op_type, conv.rt_info["affinity"]) == ("Conv", "CPU")
    with pytest.raises(UnknownOperatorError, match="not an internal operator"):
        decompose(output.node)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: FusedConv(x, array(8, 4, 3, 3), None, array(1, 8, 1, 4)), "the residual is"),
        (lambda x: FusedConv(x, array(8, 3, 3, 3)), "FusedConv .*X has 4 channels; W takes 3"),
        (lambda x: FusedConv(x, array(8, 3, 3, 3), transposed=True), "FusedConv .*decomposition failed"),
        (lambda x: FusedConv(x, Constant(np.ones([8, 4, 3, 3]), f16)), "element type"),
        (lambda x: FusedMatMul(x, array(6, 3), array(1, 3)), r"input 2 \(bias\) must have one dimension"),
        (lambda x: FusedMatMul(x, array(6), trans_b=True), "must have at least two dimensions"),
        (lambda x: ChannelNormalization(x, array(5)), "scale must have one value per channel"),
        (lambda x: ChannelNormalization(Parameter(f32), array(4)), "known rank of 2 or more"),
    ],
)
def test_wrong_inputs_are_refused_with_the_nodes_name(make: Callable[[Node], Node], message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        make(Parameter(f32, [2, 4, 6, 6], "x"))


@pytest.mark.parametrize("shape", [[2, 4, 6, 6], [None, 4, "H", 6], [2, None, None, None], None])
def test_types_are_those_of_the_decomposition(shape: list[int | str | None] | None) -> None:
    """Shapes that differ from the decomposition's would be wrong wherever a device computes that instead."""
    x, residual = Parameter(f32, shape, "x"), Parameter(f32, [2, 8, 3, "W"], "residual")
    relu = Activation("Relu")
    for node in (
        FusedConv(x, array(8, 4, 3, 3), array(8), activation=relu, pads=(1, 1, 1, 1), strides=(2, 2)),
        FusedConv(x, array(8, 4, 3, 3), None, residual, pads=(1, 1, 1, 1), strides=(2, 2)),
        FusedConv(x, array(4, 8, 3, 3), None, transposed=True),
        FusedMatMul(x, array(6, 5), array(5), activation=relu),
        FusedMatMul(x, array(5, 6), None, Parameter(f32, [2, 4, "H", 5], "other"), trans_b=True),
        FusedMatMul(Parameter(f32, [4, 7, 6], "y"), Parameter(f32, ["B", 4, 5, 6], "z"), array(5), trans_b=True),
    ):
        assert node.output(0).type == decompose(node)[0].type


@pytest.mark.parametrize("shape", [[2, 4, 6], [None, 4, "H", 6], [2, None, None, "W"], [0, None], [1, "C"]])
@pytest.mark.parametrize("channels", [4, None, "C"])
def test_scale_shift_has_the_type_of_its_decomposition(
    shape: list[int | str | None], channels: int | str | None
) -> None:
    x, scale = Parameter(f32, shape, "x"), Parameter(f32, [channels], "scale")
    node = ScaleShift(x, scale, array(4), activation=Activation("Relu"))
    assert node.output(0).type == decompose(node)[0].type


def test_attributes_are_checked() -> None:
    x = Parameter(f32, [2, 4, 6, 6], "x")
    with pytest.raises(ModelError, match="has no attribute 'stride'"):
        FusedConv(x, array(8, 4, 3, 3), stride=[1, 1])
    with pytest.raises(UnknownOperatorError, match="FusedConw"):
        ops.create("FusedConw", [x, x], domain="engine")


def test_products_take_matrices_of_any_kind() -> None:
    x, wide = Parameter(f32, ["N", 3, 4], "x"), Parameter(f32, ["N", 4, 5], "wide")
    model = Model([FusedMatMul(x, wide), FusedMatMul(x, array(5, 4), array(5), trans_b=True)], [x, wide])
    assert [str(value.type) for value in model.outputs] == ["f32[N,3,5]", "f32[N,3,5]"]
    check_equivalence(model, as_onnx(model))


def test_transposed_convolutions_are_fused_too() -> None:
    x = Parameter(f32, ["N", 4, 6, 6], "x")
    node = FusedConv(
        x, array(4, 3, 3, 3), array(6), transposed=True, group=2, strides=[2, 2], output_padding=[1, 1],
        activation=Activation("Relu"),
    )  # fmt: skip
    model = Model([node], [x])
    assert str(model.outputs[0].type) == "f32[N,6,14,14]"
    check_equivalence(model, as_onnx(model))


# -- the passes that make them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "activation",
    [lambda x: ops.Relu(x), lambda x: ops.Clip(x, Constant(0.0), Constant(6.0)), lambda x: ops.LeakyRelu(x, alpha=0.2)],
)
@pytest.mark.parametrize("total", [ops.Add, ops.Sum])
def test_convolutions_end_with_residual_and_activation(
    total: Callable[..., Node], activation: Callable[[Node], Node], apply: Apply
) -> None:
    x = Parameter(f32, ["N", 4, 6, 6], "x")
    conv = ops.Conv(ops.Exp(x), array(4, 4, 3, 3), array(4), pads=[1] * 4)
    model = Model([activation(total(x, conv))], [x])
    assert apply(model, ResidualFusion, ActivationFusion) == {"Exp": 1, "FusedConv": 1}


def test_products_end_with_bias_residual_and_activation(apply: Apply) -> None:
    x, r = Parameter(f32, ["N", 3, 4], "x"), Parameter(f32, ["N", 3, 5], "r")
    product = ops.Add(array(1, 1, 5), ops.MatMul(x, array(4, 5)))
    model = Model([ops.Gelu(ops.Add(product, r))], [x, r])
    assert apply(model, MatMulBiasFusion, ResidualFusion, ActivationFusion) == {"FusedMatMul": 1}
    gemm = ops.Gemm(Parameter(f32, [3, 4], "a"), array(5, 4), array(5), transB=1)
    plain = Model([ops.Tanh(gemm)], [gemm.input_value(0).node])  # type: ignore[list-item]
    assert apply(plain, ActivationFusion) == {"FusedMatMul": 1}


@pytest.mark.parametrize("batch", [(), ("N",)])
def test_what_is_added_to_the_rows_of_a_product_is_no_bias(batch: tuple[str, ...], apply: Apply) -> None:
    """A product with a vector has no columns, to which kernels would add a bias: its last dimension is the rows."""
    x = Parameter(f32, [*batch, 3, 4], "x")
    model = Model([ops.Add(ops.MatMul(x, array(4)), array(3))], [x])
    assert apply(model, MatMulBiasFusion, modified=False) == {"MatMul": 1, "Add": 1}
    with pytest.raises(TypeInferenceError, match="must have columns"):
        FusedMatMul(x, array(4), array(3))


def reshaped(x: Node | Output, *shape: int) -> Node:
    return ops.Reshape(x, Constant(np.array(shape)))


@pytest.mark.parametrize("batch", [2, "N"])
def test_products_of_flattened_rows_end_with_residual_and_activation(batch: int | str, apply: Apply) -> None:
    x, r = Parameter(f32, [batch, 3, 4], "x"), Parameter(f32, [batch, 3, 5], "r")
    flat = ops.Gemm(reshaped(x, -1, 4), array(5, 4), array(5), transB=1)
    model = Model([ops.Gelu(ops.Add(reshaped(flat, -1, 3, 5), r))], [x, r])
    asked = (FlattenedProductFusion, ResidualFusion, ActivationFusion)
    assert apply(model, *asked) == {"FusedMatMul": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda x: reshaped(ops.Gemm(reshaped(x, 4, 6), array(6, 4), array(4)), 2, 2, 4),
        lambda x: reshaped(ops.Gemm(reshaped(x, 6, 4), array(4, 4), array(4)), 3, 2, 4),
        lambda x: reshaped(ops.Gemm(reshaped(x, 6, 4), array(4, 4), array(6, 4)), 2, 3, 4),
        lambda x: reshaped(ops.Gemm(ops.Relu(reshaped(x, 6, 4)), array(4, 4), array(4)), 2, 3, 4),
        lambda x: reshaped(ops.MatMul(reshaped(x, 6, 4), array(1, 4, 4)), 2, 3, 4),
    ],
)
def test_reshapes_that_do_more_stay(make: Callable[[Node], Node], apply: Apply) -> None:
    x = Parameter(f32, [2, 3, 4], "x")
    assert "FusedMatMul" not in apply(Model([make(x)], [x]), FlattenedProductFusion, modified=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.Relu(ops.Gemm(x, array(4, 4), array(4), alpha=2.0)),
        lambda x: ops.Relu(ops.Gemm(x, array(4, 4), array(2, 4))),
        lambda x: ops.Relu(ops.Gemm(x, array(2, 4), transA=1)),
        lambda x: ops.Add(ops.MatMul(x, array(4, 4)), array(4)),
        lambda x: ops.Relu(ops.Relu(x)),
    ],
)
def test_what_the_operators_cannot_say_stays(make: Callable[[Node], Node], apply: Apply) -> None:
    x = Parameter(f32, [2, 4], "x")
    assert "FusedMatMul" not in apply(Model([make(x)], [x]), ResidualFusion, ActivationFusion, modified=False)


def test_nothing_follows_an_activation(apply: Apply) -> None:
    x = Parameter(f32, [1, 4, 6, 6], "x")
    conv = ops.Relu(ops.Conv(x, array(4, 4, 1, 1)))
    model = Model([ops.Tanh(ops.Add(conv, x))], [x])
    operators = apply(model, ResidualFusion, ActivationFusion)
    assert operators == {"FusedConv": 1, "Add": 1, "Tanh": 1}


def test_unless_asked_for_no_internal_operator_is_made(apply: Apply) -> None:
    x = Parameter(f32, [1, 4, 6, 6], "x")
    model = Model([ops.Relu(ops.Add(ops.Conv(x, array(4, 4, 1, 1)), x))], [x])
    assert apply(model, CommonOptimizations, modified=False) == {"Conv": 1, "Add": 1, "Relu": 1}
    asked: tuple[Any, ...] = (ResidualFusion, ActivationFusion)
    assert apply(model, CommonOptimizations(), enable=asked) == {"FusedConv": 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: FusedAttention(x, rows="none", q_num_heads=2, kv_num_heads=2), "rows is 'none'"),
        (lambda x: FusedAttention(x, rows="guarded"), "q_num_heads is 0"),
        (lambda x: FusedAttention(x, rows="guarded", q_num_heads=5, kv_num_heads=1), "packed"),
        (lambda x: FusedAttention(x, x, q_num_heads=2, kv_num_heads=2), "only one of K and V is given"),
        (lambda x: FusedAttention(x, x, x, rows="softmax", q_num_heads=5, kv_num_heads=5), "do not divide"),
    ],
)
def test_a_malformed_fused_attention_is_refused(make: Callable[[Parameter], Node], message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        make(Parameter(f32, [1, 3, 24], "x"))
