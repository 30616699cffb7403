"""Other outputs, parts, inputs and constants of a model, and files of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine import Core, Model, ops
from engine.errors import GraphError, ModelError, ModelWriteError
from engine.ir import Constant, Node, Parameter, Result, boolean, f32
from engine.onnx import read_model
from engine.ops import evaluate_model
from tests.counted_steps import counted


def layers() -> Model:
    """relu(x @ w + b), and its sum with z; values `product`, `biased`, `active`."""
    generator = np.random.default_rng(0)
    x, z = Parameter(f32, ["N", 8], "x"), Parameter(f32, ["N", 6], "z")
    w = Constant(generator.normal(size=(8, 6)).astype(np.float32), friendly_name="w")
    b = Constant(generator.normal(size=6).astype(np.float32), friendly_name="b")
    product = ops.MatMul(x, w)
    biased = ops.Add(product, b)
    active = ops.Relu(biased)
    for node, name in ((product, "product"), (biased, "biased"), (active, "active")):
        node.friendly_name = name
    total = ops.Add(active, z)
    total.friendly_name = "total"
    return Model([Result(total, "y")], [x, z], name="layers")


X, Z = np.ones((3, 8), np.float32), np.full((3, 6), 2, np.float32)


def test_values_inside_become_outputs() -> None:
    model = layers()
    model.add_output("active")
    model.add_output("biased", "before_relu")
    y, active, biased = evaluate_model(model, [X, Z])
    np.testing.assert_array_equal(y, active + Z)
    np.testing.assert_array_equal(active, np.maximum(biased, 0))
    assert [r.friendly_name for r in model.results] == ["y", "active", "before_relu"]
    with pytest.raises(GraphError, match="already has an output `active`"):
        model.add_output("active")
    with pytest.raises(GraphError, match="did you mean `active`"):
        model.add_output("activ")


def test_parts_compute_what_the_model_computes() -> None:
    model = layers()
    before = str(model)
    head = model.extract(None, ["biased"])
    tail = model.extract(["biased", "z"], ["y"])
    assert [p.friendly_name for p in head.parameters] == ["x"]
    (biased,) = evaluate_model(head, [X])
    np.testing.assert_array_equal(evaluate_model(tail, [biased, Z])[0], evaluate_model(model, [X, Z])[0])
    assert str(model) == before


def test_a_value_may_be_an_input_and_an_output() -> None:
    part = layers().extract(["product"], ["product", "biased"])
    given = np.zeros((2, 6), np.float32)
    np.testing.assert_array_equal(evaluate_model(part, [given])[0], given)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["biased"], ["y"], "also depend on `z`; add it"),
        (["x", "z"], ["active"], "do not depend on `z`; drop it"),
        (["q"], ["y"], "no value 'q'"),
        (None, [], "outputs is empty"),
        (None, ["y", "y"], "lists `y` twice"),
    ],
)
def test_parts_that_do_not_exist(inputs: Any, outputs: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        layers().extract(inputs, outputs)


def test_constants_are_replaced_or_become_inputs() -> None:
    model = layers()
    (before,) = evaluate_model(model, [X, Z])
    model.set_constant("w", np.zeros((8, 6)))
    (zero,) = evaluate_model(model, [X, Z])
    assert not np.array_equal(zero, before)
    np.testing.assert_array_equal(zero, np.broadcast_to(np.maximum(model.node("b").data, 0), (3, 6)) + Z)  # type: ignore[attr-defined]
    model.make_input("b")
    np.testing.assert_array_equal(evaluate_model(model, [X, Z, np.ones(6, np.float32)])[0], 1 + Z)
    with pytest.raises(GraphError, match=r"shape \[8, 6\]; got \[8\]"):
        model.set_constant("w", np.zeros(8))
    with pytest.raises(GraphError, match="computed by Relu `active`"):
        model.set_constant("active", 0)
    with pytest.raises(ModelError, match="complex"):
        model.set_constant("w", np.zeros((8, 6), complex))


def test_several_constants_become_inputs_at_once() -> None:
    """In the order in which they are named; a name of none of them changes nothing."""
    model = layers()
    before = str(model)
    for names, words in (
        (["w", "nothing"], "no value 'nothing'"),
        (["w", "x"], "`x`"),
        (["w", "active"], "computed by Relu `active`"),
    ):
        with pytest.raises(GraphError, match=words):
            model.make_inputs(names)
    assert str(model) == before
    (expected,) = evaluate_model(model, [X, Z])
    w, b = (model.constant(name).data for name in "wb")
    assert [each.friendly_name for each in model.make_inputs(["b", "w", "b"])] == ["b", "w"]
    np.testing.assert_array_equal(evaluate_model(model, [X, Z, b, w])[0], expected)
    with pytest.raises(GraphError, match="computed by Parameter `b`"):
        model.make_inputs(["b"])


def chain(count: int) -> Model:
    """`count` times: the sum with a constant that a branch reads, too, and a shape that another constant decides."""
    x, c = Parameter(f32, [2, 3], "x"), Parameter(boolean, [], "c")
    value: Node = x
    for index in range(count):
        term = Constant(np.full(3, index, np.float32), friendly_name=f"term{index}")
        shape = Constant(np.array([2, 3]), friendly_name=f"shape{index}")
        summed = ops.Reshape(ops.Add(value, term), shape)
        one, other = Parameter(f32, [2, 3], "one"), Parameter(f32, [2, 3], "other")
        adds = Model([Result(ops.Add(one, term.clone_with_new_inputs([])), "r")], captures=[one])
        keeps = Model([Result(ops.Identity(other), "r")], captures=[other])
        value = Node("If", [c, summed, summed], {"then_branch": adds, "else_branch": keeps})
    return Model([Result(value, "y")], [x, c])


def test_four_times_as_many_constants_become_inputs_in_four_times_as_many_steps() -> None:
    found = []
    for count in (8, 32):
        model = chain(count)
        names = [f"{kind}{index}" for index in range(count) for kind in ("term", "shape")]
        feeds = [X[:2, :3], np.array(True), *(model.constant(name).data for name in names)]
        (expected,) = evaluate_model(model, feeds[:2])
        with counted() as steps:
            model.make_inputs(names)
        found.append(steps[0])
        np.testing.assert_array_equal(evaluate_model(model, feeds)[0], expected)
        feeds[2] = feeds[2] + 1  # which the sum and a body read
        np.testing.assert_array_equal(evaluate_model(model, feeds)[0], expected + 2)
    assert found[1] <= 5 * found[0]


def test_initializers_that_are_inputs_are_listed() -> None:
    node = onnx.helper.make_node("Mul", ["x", "scale"], ["y"])
    vector = onnx.helper.make_tensor_value_info("x", 1, [2])
    scale = onnx.numpy_helper.from_array(np.array([2, 3], np.float32), "scale")
    infos = [vector, onnx.helper.make_tensor_value_info("scale", 1, [2])]
    graph = onnx.helper.make_graph([node], "g", infos, [onnx.helper.make_tensor_value_info("y", 1, [2])], [scale])
    core, one = Core(), np.ones(2, np.float32)
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    model = core.read_model(proto)
    assert model.overridable == ["scale"]
    np.testing.assert_array_equal(core.compile_model(model, "TEMPLATE")({"x": one})["y"], [2, 3])
    model.make_input("scale")
    assert model.overridable == []
    network = core.compile_model(model, "TEMPLATE")
    np.testing.assert_array_equal(network({"x": one, "scale": 5 * one})["y"], [5, 5])
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": one, "scale": 5 * one})[0], [5, 5])


# -- files ------------------------------------------------------------------------------------------------


def test_saved_models_are_read_by_others(tmp_path: Path) -> None:
    model = layers()
    model.reshape({"x": [3, 8], "z": [3, 6]})
    model.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert session.get_inputs()[0].shape == [3, 8]
    # Both add 8 products of f32 in some order.
    np.testing.assert_allclose(session.run(None, {"x": X, "z": Z})[0], evaluate_model(model, [X, Z])[0], rtol=1e-5)
    assert str(read_model(tmp_path / "model.onnx")) == str(model)
    with pytest.raises(ModelWriteError, match="nowhere"):
        model.save(tmp_path / "nowhere" / "model.onnx")


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_half_weights(tmp_path: Path, device: str) -> None:
    generator = np.random.default_rng(1)
    weights = generator.normal(size=(64, 32)).astype(np.float32)
    huge = np.full(32, 1e30, np.float32)
    small = np.array([1e-12], np.float32)  # would be 0 in f16
    x = Parameter(f32, [2, 64], "x")
    product = ops.MatMul(x, Constant(weights, friendly_name="w"))
    scaled = ops.Mul(ops.Div(product, Constant(huge)), ops.Div(Constant(small), Constant(small)))
    model = Model([Result(product, "y"), Result(scaled, "scaled")], [x])
    model.save(tmp_path / "full.onnx")
    model.save(tmp_path / "half.onnx", f16=True)
    assert (tmp_path / "half.onnx").stat().st_size < (tmp_path / "full.onnx").stat().st_size - 64 * 32 * 2 + 512
    stored = {tensor.name: tensor.data_type for tensor in onnx.load(tmp_path / "half.onnx").graph.initializer}
    assert list(stored.values()).count(onnx.TensorProto.FLOAT16) == 1
    values = generator.normal(size=(2, 64)).astype(np.float32)
    y = Core().compile_model(tmp_path / "half.onnx", device)({"x": values})
    # Each result is a sum of 64 products of f32, in some order.
    expected = values.astype(np.float64) @ weights.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(y["y"], expected, atol=64 * 2**-24 * np.abs(values).max() * np.abs(weights).max())
    assert np.isfinite(y["scaled"]).all()
    assert (y["scaled"] != 0).any()
    assert model.node("w").element_type is f32  # type: ignore[attr-defined]  # the model itself is unchanged
