"""CPU's query answers for partitioners: which nodes may be separated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_cpu.lowering.registry import LOWERINGS
from onnx import TensorProto, helper

from engine import Core, ops
from engine.cli.main import main
from engine.ir import Constant, Model, Node, Parameter, f32
from engine.lowering import Decision, Refusal, RefusalCause
from engine.onnx import model_to_proto
from engine.plugin_api import SupportLevel


def gelu() -> onnx.ModelProto:
    """x * 0.5 * (1 + erf(x / sqrt(2))), spelled out."""
    nodes = [
        helper.make_node("Div", ["x", "root"], ["a"], name="div"),
        helper.make_node("Erf", ["a"], ["b"], name="erf"),
        helper.make_node("Add", ["b", "one"], ["c"], name="add"),
        helper.make_node("Mul", ["x", "c"], ["d"], name="mul"),
        helper.make_node("Mul", ["d", "half"], ["y"], name="scale"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    constants = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    weights = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def test_what_is_joined_only_to_be_faster_may_be_separated() -> None:
    answer = Core().query_model(gelu(), "CPU")
    assert {support.level for support in answer.nodes.values()} == {SupportLevel.NATIVE}
    assert answer.atoms == ()


def test_what_runs_natively_only_together_is_an_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a kernel for Gelu, and none for Erf."""
    original = LOWERINGS.decide

    def without_erf(node: Node) -> Decision[Any]:
        if node.op_type == "Erf":
            return Decision(Refusal(RefusalCause.OP, "no kernel for Erf"), None)
        return original(node)

    monkeypatch.setattr(LOWERINGS, "decide", without_erf)
    answer = Core().query_model(gelu(), "CPU")
    assert {support.level for support in answer.nodes.values()} == {SupportLevel.NATIVE}
    assert answer.atoms == (frozenset({"div", "erf", "add", "mul", "scale"}),)


def test_operations_without_names_are_answered_too() -> None:
    x = Parameter(f32, [2, 2], "x")
    answer = Core().query_model(Model([ops.Det(ops.Relu(x))], [x]), "CPU")
    assert [support.level for support in answer.nodes.values()] == [SupportLevel.NATIVE, SupportLevel.REFERENCE]


def quantized_products() -> Model:
    """Convolutions and products between quantizations; CPU computes one of them, and a Softmax, in f32."""
    x = Parameter(f32, [1, 4, 6, 6], "x")
    rng = np.random.default_rng(1)

    def parameters(zero_point: Any) -> list[Constant]:
        return [Constant(np.float32(0.02)), Constant(zero_point)]

    def weights(*shape: int, zero_point: int = 0) -> Node:
        data = Constant(rng.integers(-128, 128, shape).astype(np.int8))
        return ops.DequantizeLinear(data, *parameters(np.int8(zero_point)))

    def requantized(value: Node, name: str) -> Node:
        codes = ops.QuantizeLinear(value, *parameters(np.uint8(100)), friendly_name=f"{name}.codes")
        return ops.DequantizeLinear(codes, *parameters(np.uint8(100)), friendly_name=f"{name}.values")

    values = requantized(x, "x")
    symmetric = ops.Conv(values, weights(8, 4, 3, 3), friendly_name="symmetric")
    values = requantized(ops.Relu(symmetric, friendly_name="relu"), "symmetric")
    asymmetric = ops.Conv(values, weights(8, 1, 3, 3, zero_point=3), group=8, friendly_name="asymmetric")
    values = requantized(asymmetric, "asymmetric")
    scores = ops.MatMul(values, values, friendly_name="scores")
    softmax = ops.Softmax(requantized(scores, "scores"), axis=1, friendly_name="softmax")
    return Model([requantized(softmax, "softmax")], [x])


REASONS = {
    "asymmetric": "the weights have zero points; depthwise convolutions multiply symmetric ones only",
    "softmax": "the device has no kernel that computes Softmax on integers here",
}


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU,TEMPLATE"])
def test_a_quantized_product_in_f32_has_its_reason(device: str) -> None:
    products = ("symmetric", "relu", "asymmetric", "scores", "softmax")
    answer = Core().query_model(quantized_products(), device)
    assert {name: support.precision for name, support in answer.nodes.items() if name in products} == {
        "symmetric": "u8", "relu": "u8", "asymmetric": "f32", "scores": "u8", "softmax": "f32",
    }  # fmt: skip
    assert {name: s.precision_reason for name, s in answer.nodes.items() if s.precision_reason} == REASONS


def test_the_command_prints_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model_to_proto(quantized_products()), tmp_path / "model.onnx")
    assert main(["query", str(tmp_path / "model.onnx"), "-d", "CPU", "--why"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"in f32: Conv `asymmetric`: {REASONS['asymmetric']}" in lines
    assert [line for line in lines if line.startswith("in f32: ") and "symmetric`" in line] == [
        f"in f32: Conv `asymmetric`: {REASONS['asymmetric']}"
    ]


@pytest.mark.parametrize(
    ("element_type", "block_size", "reason"),
    [
        (np.int16, 0, "x is quantized to i16; integer products take i8 or u8"),
        (np.uint8, 4, "weights have a scale for each block; integer products take one for each column or one for all"),
    ],
)
def test_a_product_of_quantized_values_with_compressed_weights_has_its_reason(
    element_type: Any, block_size: int, reason: str
) -> None:
    x = Parameter(f32, [3, 8], "x")
    scale, zero_point = Constant(np.float32(0.02)), Constant(element_type(0))
    values = ops.DequantizeLinear(ops.QuantizeLinear(x, scale, zero_point), scale, zero_point)
    scales = np.full((2, 5) if block_size else (), 0.1, np.float32)
    weights = ops.DequantizeLinear(Constant(np.ones((8, 5), np.int8)), Constant(scales), axis=0, block_size=block_size)
    model = Model([ops.MatMul(values, weights, friendly_name="product")], [x])
    assert Core().query_model(model, "CPU").nodes["product"].precision_reason == reason


def test_why_says_which_lengths_have_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = Parameter(f32, ["batch", 1, "n"], "x")
    pooled = ops.MaxPool(x, kernel_shape=[2], strides=[2])
    onnx.save(model_to_proto(Model([ops.Relu(pooled)], [x])), tmp_path / "model.onnx")
    assert main(["query", str(tmp_path / "model.onnx"), "-d", "CPU", "--why"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("length: ")]
    assert lines[0].startswith("length: batch: one plan (2 to ")
    assert lines[1].startswith("length: n: a plan for each value: MaxPool")
    assert main(["query", str(tmp_path / "model.onnx"), "-d", "CPU", "--why", "--json"]) == 0
    assert [f"length: {line}" for line in json.loads(capsys.readouterr().out)["lengths"]] == lines
    # A device need not say anything.
    assert main(["query", str(tmp_path / "model.onnx"), "-d", "TEMPLATE", "--why"]) == 0
    assert "length: " not in capsys.readouterr().out
