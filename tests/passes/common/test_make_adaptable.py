"""Linear layers that take adapters. If these fail, an adapter changes other layers or other sequences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core, ops
from engine.errors import PassError
from engine.ir import Constant, Model, Parameter, Result, f32
from engine.onnx import read_model, write_model
from engine.ops import evaluate_model
from engine.passes import MakeAdaptable, compress_weights
from engine.passes.common.compressed_weights_fusion import CompressedWeightsFusion

RANDOM = np.random.default_rng(0)
SCOPES = "pkg.torch.onnx.name_scopes"
# Sums of at most 64 products of values below 1, and of two more for the adapter, in f32.
TOLERANCE = 66 * 2.0**-23


def values(*shape: int) -> Any:
    return RANDOM.uniform(-1, 1, shape).astype(np.float32) / np.float32(shape[0] ** 0.5)


def layer(x: Any, columns: int, name: str, weight: str | None = None) -> Any:
    rows = x.output(0).shape[-1].get_length()
    return ops.MatMul(x, Constant(values(rows, columns), friendly_name=weight), friendly_name=name)


def perceptron(*, scopes: bool = False) -> Model:
    """Two layers and a head, named as torch's older exporter names them, or by the metadata of its newer one."""
    x = Parameter(f32, ["batch", "tokens", 8], "x")
    names = ["layers.0.up_proj", "layers.0.down_proj", "lm_head"]
    products = [f"node_linear_{i}" if scopes else f"/{name.replace('.', '/')}/MatMul" for i, name in enumerate(names)]
    up = layer(x, 64, products[0])
    down = layer(ops.Relu(ops.Add(up, Constant(values(64)))), 8, products[1])
    head = layer(down, 5, products[2])
    if scopes:
        for node, name, product in zip((up, down, head), names, products, strict=True):
            node.rt_info["metadata"] = {SCOPES: str(["", "model", f"model.{name}", product])}
    return Model([Result(head, "logits")], [x])


def inputs_of(model: Model) -> list[str]:
    return [p.friendly_name for p in model.parameters if p.friendly_name.endswith(".lora_A")]


@pytest.mark.parametrize("scopes", [False, True])
def test_all_layers_but_the_head(scopes: bool) -> None:
    model = perceptron(scopes=scopes)
    assert MakeAdaptable(rank=4).run_on_model(model)
    prefix = "model." if scopes else ""
    expected = [f"{prefix}layers.0.{part}_proj.lora_A" for part in ("up", "down")]
    assert inputs_of(model) == expected
    assert [str(p.type) for p in model.parameters[1:4]] == [
        "bool[batch,adapter_rank:0..4]", "f32[8,adapter_rank:0..4]", "f32[adapter_rank:0..4,64]",
    ]  # fmt: skip
    assert str(model.results[0].type) == "f32[batch,tokens,5]"
    assert not MakeAdaptable(rank=4).run_on_model(model)


def test_each_sequence_gets_the_ranks_of_its_mask() -> None:
    """And the bias stays outside of the product: y = x (W + A B) + bias."""
    model = perceptron()
    plain = model.clone()
    MakeAdaptable(["up_proj"]).run_on_model(model)
    x, a, b = values(3, 2, 8), values(8, 3), values(3, 64)
    mask = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], bool)
    found = evaluate_model(model, [x, mask, a, b])[0]
    for row in range(3):
        merged = plain.clone()
        matrix = merged.node("/layers/0/up_proj/MatMul").input(1)
        delta = (a * mask[row]) @ b
        matrix.replace_source_output(Constant(matrix.source_output.node.data + delta).output(0))  # type: ignore[attr-defined]
        np.testing.assert_allclose(found[row], evaluate_model(merged, [x])[0][row], rtol=0, atol=TOLERANCE)


def test_without_ranks_nothing_changes() -> None:
    model, x = perceptron(), values(2, 3, 8)
    expected = evaluate_model(model, [x])[0]
    MakeAdaptable().run_on_model(model)
    empty = [np.zeros(s, np.float32) for s in ((8, 0), (0, 64), (64, 0), (0, 8))]
    np.testing.assert_array_equal(evaluate_model(model, [x, np.zeros((2, 0), bool), *empty])[0], expected)


def test_a_sequence_does_not_see_what_another_one_overflows_with() -> None:
    model, x = perceptron(), np.ones((2, 1, 8), np.float32)
    expected = evaluate_model(model, [x])[0]
    MakeAdaptable(["up_proj"]).run_on_model(model)
    huge = np.full((8, 1), 3e38, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        found = evaluate_model(model, [x, np.array([[False], [True]]), huge, values(1, 64)])[0]
    np.testing.assert_array_equal(found[0], expected[0])
    assert not np.isfinite(found[1]).all()


def test_rows_of_all_sequences_in_one_matrix() -> None:
    """As exporters write the Conv1D of GPT-2: a Gemm of [batch * tokens, width]."""
    x = Parameter(f32, ["batch", "tokens", 8], "x")
    flat = ops.Reshape(x, Constant(np.array([-1, 8])))
    weights, bias = values(6, 8), values(6)
    product = ops.Gemm(flat, Constant(weights, friendly_name="h.0.c_fc.weight"), Constant(bias), transB=1)
    tail = ops.Concat(ops.Shape(x, end=2), Constant(np.array([6])), axis=0)
    model = Model([Result(ops.Reshape(product, tail), "y")], [x])
    MakeAdaptable().run_on_model(model)
    assert inputs_of(model) == ["h.0.c_fc.lora_A"]
    given, a, b = values(2, 3, 8), values(8, 2), values(2, 6)
    found = evaluate_model(model, [given, np.array([[True, True], [False, True]]), a, b])[0]
    for row, used in enumerate((slice(0, 2), slice(1, 2))):
        expected = given[row] @ (weights.T + a[:, used] @ b[used]) + bias
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=TOLERANCE)


def packed() -> Model:
    x = Parameter(f32, ["batch", "tokens", 8], "x")
    joined = layer(x, 16, "/model/layers.0/attn/qkv_proj/MatMul", "model.layers.0.attn.qkv_proj.MatMul.weight")
    parts = ops.Split(joined, Constant(np.array([8, 4, 4])), axis=-1)
    return Model([Result(ops.Relu(part), f"y{i}") for i, part in enumerate(parts.outputs)], [x])


def test_joined_projections_are_adapted_separately_unless_they_are_named() -> None:
    model = packed()
    MakeAdaptable().run_on_model(model)
    assert inputs_of(model) == [f"model.layers.0.attn.{part}_proj.lora_A" for part in "qkv"]
    model = packed()
    MakeAdaptable(["v_proj", "model.layers.0.self_attn.q_proj"]).run_on_model(model)
    assert inputs_of(model) == [f"model.layers.0.attn.{part}_proj.lora_A" for part in "qv"]
    model = packed()
    MakeAdaptable(["qkv_proj"]).run_on_model(model)
    assert inputs_of(model) == ["model.layers.0.attn.qkv_proj.lora_A"]


def test_a_part_of_joined_projections() -> None:
    model, x = packed(), values(1, 3, 8)
    expected = evaluate_model(model, [x])
    weights = model.constant("model.layers.0.attn.qkv_proj.MatMul.weight").data
    MakeAdaptable(["k_proj"]).run_on_model(model)
    a, b = values(8, 2), values(2, 4)
    q, k, v = evaluate_model(model, [x, np.ones((1, 2), bool), a, b])
    np.testing.assert_array_equal(q, expected[0])
    np.testing.assert_array_equal(v, expected[2])
    np.testing.assert_allclose(k, np.maximum(x @ (weights[:, 8:12] + a @ b), 0), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("form", ["plain", "permuted", "real zero points"])
def test_matrices_of_4_bits(form: str) -> None:
    """MatMulNBits stays compressed, also where its import permutes x or adds a second product."""
    k, n, block = 32, 16, 16
    codes = RANDOM.integers(0, 256, (n, k // block, block // 2), dtype=np.uint8)
    scales = RANDOM.uniform(0.01, 0.02, (n, k // block)).astype(np.float32)
    extra, names = {}, ["x", "codes", "scales"]
    if form == "permuted":
        extra["groups"] = (np.arange(k) % 2).astype(np.int32)
        names += ["", "groups"]
    if form == "real zero points":
        extra["zeros"] = RANDOM.uniform(7, 9, (n, k // block)).astype(np.float32)
        names += ["zeros"]
    node = helper.make_node(
        "MatMulNBits", names, ["y"], "/model/layers.0/mlp/up_proj/MatMul_Q4", domain="com.microsoft",
        K=k, N=n, bits=4, block_size=block,
    )  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["y"], ["z"])],
        "g",
        [info("x", TensorProto.FLOAT, ["batch", "tokens", k])],
        [info("z", TensorProto.FLOAT, ["batch", "tokens", n])],
        [numpy_helper.from_array(v, name) for name, v in ({"codes": codes, "scales": scales} | extra).items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = read_model(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    x, a, b = values(1, 3, k), values(k, 2), values(2, n)
    plain = model.clone()
    plain.results[0].input(0).replace_source_output(plain.results[0].input_value(0).node.input_value(0))
    expected = np.maximum(evaluate_model(plain, [x])[0] + x @ (a @ b), 0)
    MakeAdaptable().run_on_model(model)
    assert inputs_of(model) == ["model.layers.0.mlp.up_proj.lora_A"]
    found = evaluate_model(model, [x, np.ones((1, 2), bool), a, b])[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_compressed_weights_stay_compressed() -> None:
    model = compress_weights(perceptron(), "int4", group=8, least=5).model
    MakeAdaptable().run_on_model(model)
    CompressedWeightsFusion().run_on_model(model)
    assert sum(node.op_type == "CompressedMatMul" for node in model.ordered_nodes()) == 3


def test_a_module_that_is_called_twice_has_one_pair() -> None:
    x = Parameter(f32, ["batch", "tokens", 8], "x")
    weights = Constant(values(8, 8), friendly_name="block.proj.weight")
    model = Model([Result(ops.Relu(ops.MatMul(ops.Relu(ops.MatMul(x, weights)), weights)), "y")], [x])
    MakeAdaptable().run_on_model(model)
    assert inputs_of(model) == ["block.proj.lora_A"]
    given, a, b = values(1, 2, 8), values(8, 1), values(1, 8)
    merged = weights.data + a @ b
    expected = np.maximum(np.maximum(given @ merged, 0) @ merged, 0)
    found = evaluate_model(model, [given, np.ones((1, 1), bool), a, b])[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_names_that_the_file_does_not_have() -> None:
    model = perceptron(scopes=True)
    for node in model.ordered_nodes():
        node.rt_info.pop("metadata", None)
    named = model.clone()
    MakeAdaptable(["up_proj"], names={"node_linear_0": "model.layers.0.up_proj"}).run_on_model(named)
    assert inputs_of(named) == ["model.layers.0.up_proj.lora_A"]
    MakeAdaptable(["node_linear_1"]).run_on_model(model)
    assert inputs_of(model) == ["node_linear_1.lora_A"]


def test_files_keep_the_inputs(tmp_path: Any) -> None:
    model = perceptron()
    MakeAdaptable(rank=4).run_on_model(model)
    write_model(model, tmp_path / "model.onnx")
    network = Core().compile_model(tmp_path / "model.onnx", "CPU")
    network.export_model(tmp_path / "model.blob")
    imported = Core().import_model(tmp_path / "model.blob")
    expected = [(p.friendly_name, str(p.type)) for p in model.parameters]
    assert [(p.name, str(p.type)) for p in imported.inputs] == expected
    x, mask = values(2, 3, 8), np.ones((2, 1), bool)
    given = [x, mask, values(8, 1), values(1, 64), values(64, 1), values(1, 8)]
    np.testing.assert_allclose(imported(given)["logits"], evaluate_model(model, given)[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["q_proj"]}, r"no linear layer .* is `q_proj`; its linear layers: layers.0.down_proj, .*lm_head"),
        ({"targets": "up_proj"}, r"expected a list, such as \['up_proj'\]"),
        ({"rank": 0}, "rank is 0; expected 1 or more"),
        ({"rank": True}, "rank is True"),
        ({"names": {"other": "a.b"}}, r"names has `other`, which is not a product .*; products: /layers/0/down_proj"),
        ({"names": {"/layers/0/up_proj/MatMul": "a", "/layers/0/down_proj/MatMul": "a"}, "targets": ["a"]}, "is `a`"),
    ],
)
def test_wrong_options_change_nothing(options: dict[str, Any], message: str) -> None:
    model = perceptron()
    before = str(model)
    with pytest.raises(PassError, match=message):
        MakeAdaptable(**options).run_on_model(model)
    assert str(model) == before


def test_metadata_that_is_not_a_list_is_not_a_name() -> None:
    model = perceptron(scopes=True)
    texts = ["", "[", "[1, 2]", "{}", json.dumps(["only"]), "[" * 10000]
    for node, text in zip([n for n in model.ordered_nodes() if n.op_type == "MatMul"], texts, strict=False):
        node.rt_info["metadata"] = {SCOPES: text}
    MakeAdaptable().run_on_model(model)
    assert inputs_of(model) == ["node_linear_0.lora_A", "node_linear_1.lora_A"]
