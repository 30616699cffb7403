"""`Model.reshape` and `set_batch`: the results get the types that follow, or the node is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, Model, ops
from engine.errors import GraphError, ModelError, TypeInferenceError
from engine.ir import Constant, Node, Parameter, Result, TensorType, Variable, boolean, f32, i64
from engine.ops import evaluate_model
from engine.runtime.random_inputs import random_inputs

FILES = Path(__file__).parents[1] / "fixtures" / "architectures"


def flattened() -> Model:
    """A Conv, and a Reshape to a target that is computed from the Conv's shape."""
    x = Parameter(f32, ["N", 3, "H", "W"], "x")
    conv = ops.Conv(x, Constant(np.ones((4, 3, 3, 3), np.float32)), pads=[1, 1, 1, 1])
    conv.friendly_name = "conv"
    batch = ops.Gather(ops.Shape(conv), Constant([0]))
    flat = ops.Reshape(conv, ops.Concat(batch, Constant([-1]), axis=0))
    flat.friendly_name = "flat"
    return Model([Result(flat, "y")], [x], name="flattened")


def fixed_batch() -> Model:
    """A Reshape whose target fixes the batch at 1, as exporters write it for an example of batch 1."""
    x = Parameter(f32, [1, 2, 3], "x")
    flat = ops.Reshape(ops.Relu(x), Constant([1, -1]))
    flat.friendly_name = "flat"
    return Model([Result(flat, "y")], [x], name="fixed")


def types(model: Model) -> list[str]:
    return [str(result.type) for result in model.results]


def test_lengths_follow_through_values_that_are_computed_from_shapes() -> None:
    model = flattened()
    model.reshape({"x": [8, 3, None, 224]})
    assert types(model) == ["f32[8,?]"]
    assert str(model.node("conv").output(0).type) == "f32[8,4,?,224]"
    model.reshape({0: [2, 3, 10, 12]})
    assert types(model) == ["f32[2,480]"]
    model.reshape(["B", 3, 8, 8])
    assert types(model) == ["f32[B,256]"]
    assert model.node("flat").op_type == "Reshape"  # the graph is as it was


@pytest.mark.parametrize(
    ("shapes", "error", "words"),
    [
        ({"x": [2, 4, 10, 10]}, TypeInferenceError, ["`x` [2,4,10,10]", "Conv `conv`", "channels"]),
        ({"x": [2, 3]}, TypeInferenceError, ["Conv `conv`", "rank 2"]),
        ({"z": [1]}, GraphError, ["no input 'z'", "'x'"]),
        ({"x": "ab"}, ModelError, ["a shape must be a list", "'ab'"]),
        ({"x": [-3, 3, 4, 4]}, ModelError, ["-3"]),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    shapes: Any, error: type[ModelError], words: list[str]
) -> None:
    model = flattened()
    before = str(model)
    with pytest.raises(error) as caught:
        model.reshape(shapes)
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(model) == before


def test_a_shape_alone_needs_a_model_with_one_input() -> None:
    a, b = Parameter(f32, ["N"], "a"), Parameter(f32, ["N"], "b")
    model = Model([Result(ops.Add(a, b), "y")], [a, b])
    with pytest.raises(GraphError, match=r"2 inputs \(`a`, `b`\); pass shapes by name"):
        model.reshape([3])


def test_bodies_are_typed_again() -> None:
    x = Parameter(f32, [2, 3], "x")
    state = Parameter(f32, [2, 3], "state")
    count, keep = Parameter(i64, [], "count"), Parameter(boolean, [], "keep")
    body = Model([Result(ops.Identity(keep)), Result(ops.Relu(state))], [count, keep, state], name="body")
    loop = ops.create("Loop", [Constant(3), None, x], {"body": body}, num_outputs=1)
    model = Model([Result(loop, "y")], [x])
    model.reshape([5, 7])
    assert types(model) == ["f32[5,7]"]
    (relu,) = [n for n in loop.bodies["body"].ordered_nodes() if n.op_type == "Relu"]
    assert str(relu.output(0).type) == "f32[5,7]"


def test_shapes_of_unknown_operators_are_forgotten_but_not_their_types() -> None:
    x = Parameter(f32, [2, 3], "x")
    custom = Node("Fold", [x], domain="com.example", types=[TensorType(i64, ops.Relu(x).output(0).shape)])
    model = Model([Result(custom, "y")], [x])
    model.reshape([4, 3])
    assert types(model) == ["i64[...]"]


def test_variables_must_still_fit() -> None:
    x, past = Parameter(f32, [1, 4], "x"), Parameter(f32, [1, 4], "past")
    model = Model([Result(ops.Add(x, past), "y"), Result(ops.Relu(x), "present")], [x, past])
    model.add_variable(Variable("state", "past", "present", np.zeros((1, 4), np.float32)))
    with pytest.raises(TypeInferenceError, match="`state`"):
        model.reshape({"x": [2, 4]})
    assert types(model)[0] == "f32[1,4]"


# A few architectures of each exporter; lengths that their position tables hold.
@pytest.mark.parametrize(
    "name", ["vit.script17", "style_transfer.script13", "opt.dynamo19", "super_resolution.dynamo21", "gcn.script20"]
)
def test_real_exports_compile_for_fixed_shapes(name: str) -> None:
    path = FILES / f"{name}.dynamic.onnx"
    core = Core()
    model = core.read_model(path)
    assert any(value.shape.is_dynamic for value in model.inputs)
    model.reshape({p.friendly_name: [d.min if d.is_static else 8 for d in p.output(0).shape] for p in model.parameters})
    network = core.compile_model(model, "TEMPLATE")
    inputs = random_inputs(network.inputs)
    result = network(inputs)
    for port in network.outputs:
        assert port.shape.is_static, f"{port.name} is {port.type}"
        assert result[port.name].shape == port.shape.get_shape()
    # The open model gives the same for these inputs; fusions for known shapes may add in another order.
    np.testing.assert_allclose(
        next(iter(result.values())), next(iter(core.compile_model(path, "TEMPLATE")(inputs).values())), rtol=1e-5
    )


# -- the batch --------------------------------------------------------------------------------------------


def test_the_batch_is_the_first_length_of_the_inputs_that_share_it() -> None:
    ids, mask, scale = Parameter(i64, ["N", 4], "ids"), Parameter(f32, ["N", 4], "mask"), Parameter(f32, [4], "scale")
    product = ops.Mul(ops.Mul(ops.Cast(ids, to=f32.onnx), mask), scale)
    model = Model([Result(product, "y")], [ids, mask, scale])
    model.set_batch(6)
    assert [str(p.type) for p in model.parameters] == ["i64[6,4]", "f32[6,4]", "f32[4]"]
    assert types(model) == ["f32[6,4]"]
    model.set_batch("B")
    assert types(model) == ["f32[B,4]"]
    model.set_batch(2)
    values = {"ids": np.ones((2, 4), np.int64), "mask": np.ones((2, 4), np.float32), "scale": np.ones(4, np.float32)}
    assert evaluate_model(model, list(values.values()))[0].shape == (2, 4)


def test_a_batch_elsewhere_is_named() -> None:
    x = Parameter(f32, [7, "N", 4], "x")
    model = Model([Result(ops.Relu(x), "y")], [x])
    model.set_batch(3, {"x": 1})
    assert types(model) == ["f32[7,3,4]"]
    with pytest.raises(GraphError, match=r"`x` .* has no axis 3"):
        model.set_batch(3, {"x": 3})


def test_a_batch_that_a_constant_fixes_is_refused() -> None:
    model = fixed_batch()
    with pytest.raises(TypeInferenceError, match=r"output `y` would be f32\[1,48\], because Reshape `flat` fixes .* 1"):
        model.set_batch(8)
    assert types(model) == ["f32[1,6]"]


@pytest.mark.parametrize(
    ("shapes", "words"),
    [({}, "has no batch"), ({"x": []}, "has no batch"), ({"x": None}, "rank of input `x` is unknown")],
)
def test_a_model_without_a_batch(shapes: dict[str, Any], words: str) -> None:
    inputs = [Parameter(f32, shape, name) for name, shape in shapes.items()]
    model = Model([Result(ops.Relu(inputs[0] if inputs else Constant(1.0)), "y")], inputs)
    with pytest.raises(GraphError, match=words):
        model.set_batch(2)
