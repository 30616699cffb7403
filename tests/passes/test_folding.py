"""Constant folding: nodes that can be computed when the model is built are computed, and others are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, PartialShape, TensorType, boolean, f16, f32, i64
from engine.passes import ConstantFolding, Manager, PassConfig, constant_fold
from engine.passes.fusion import derived_constant


def kinds(model: Model) -> list[str]:
    return [node.op_type for node in model.ordered_nodes() if node.op_type not in ("Parameter", "Result")]


def test_a_chain_of_constants_becomes_one(x: Parameter) -> None:
    power = ops.Pow(Constant(2.0), Constant(3.0))
    scale = ops.Neg(power, friendly_name="scale")
    scale.rt_info["note"] = "kept"
    model = Model([ops.Mul(x, scale)], [x])
    folding = ConstantFolding()
    assert folding.run_on_model(model)
    assert kinds(model) == ["Constant", "Mul"]
    (constant,) = [n for n in model.ordered_nodes() if isinstance(n, Constant)]
    assert constant.data == -8.0
    assert (constant.friendly_name, constant.rt_info) == ("scale", {"note": "kept"})
    assert folding.rewrites == 2
    assert not ConstantFolding().run_on_model(model)


def test_one_operation_is_folded_by_hand() -> None:
    folded = constant_fold(ops.Add(Constant([1.0, 2.0]), Constant(0.5)))
    assert folded is not None
    np.testing.assert_array_equal(folded[0].node.data, np.array([1.5, 2.5], np.float32))  # type: ignore[attr-defined]
    assert not folded[0].node.has_own_name, "a name that was made up would differ from run to run"
    split = ops.Split(Constant(np.arange(4)), num_outputs=2, friendly_name="halves")
    halves = constant_fold(split)
    assert halves is not None
    assert [h.node.friendly_name for h in halves] == ["halves.0", "halves.1"]
    assert [h.node.data.tolist() for h in halves] == [[0, 1], [2, 3]]  # type: ignore[attr-defined]


def test_what_is_not_constant_random_or_protected_is_not_folded(x: Parameter) -> None:
    quantized = Constant(np.array([1], np.int8))
    kept: list[Node] = [
        ops.Relu(x),
        ops.RandomNormalLike(Constant([1.0])),
        ops.RandomNormal(shape=[2]),
        ops.DequantizeLinear(quantized, Constant(0.5)),
        ops.SequenceConstruct(Constant(1.0)),
        Node("Custom", [Constant(1.0)], domain="com.example"),
    ]
    for node in kept:
        assert constant_fold(node) is None, node
    model = Model([ops.Add(x, ops.DequantizeLinear(quantized, Constant(0.5)))], [x])
    assert not ConstantFolding().run_on_model(model)


def test_an_operation_that_fails_on_constants_is_left_for_the_run() -> None:
    indices = ops.Neg(Constant(np.array([7])))  # its value is not known when the Gather is made
    node = ops.Gather(Constant(np.zeros(6, np.float32)), indices)
    node.input(1).replace_source_output(Constant(np.array([7])).output(0))
    assert constant_fold(node) is None


def test_shapes_of_static_tensors_are_constants_though_the_tensors_are_not() -> None:
    x = Parameter(f32, [2, "N", 4], "x")
    whole, last = ops.Shape(x), ops.Shape(x, start=-1, friendly_name="last")
    static = ops.Relu(Parameter(f32, [5, 7], "y"))
    model = Model([whole, last, ops.Size(x), ops.Size(static, friendly_name="size")], [x, static.input_value(0).node])
    assert ConstantFolding().run_on_model(model)
    values = [r.input_value(0).node for r in model.results]
    assert [v.op_type for v in values] == ["Shape", "Constant", "Size", "Constant"]
    assert [values[1].data.tolist(), values[3].data.tolist()] == [[4], 35]  # type: ignore[attr-defined]
    assert [values[1].friendly_name, values[3].friendly_name] == ["last", "size"]
    assert values[1].element_type is i64  # type: ignore[attr-defined]


def test_a_constant_in_the_type_of_a_computed_value_is_a_constant(x: Parameter) -> None:
    limit = ops.CastLike(Constant(np.float32(-np.inf)), ops.Cast(x, to=f16.onnx), friendly_name="limit")
    model = Model([limit], [x])
    assert ConstantFolding().run_on_model(model)
    (result,) = (r.input_value(0).node for r in model.results)
    assert isinstance(result, Constant)
    assert (result.element_type, result.friendly_name) == (f16, "limit")
    assert result.data == -np.inf
    assert not ConstantFolding().run_on_model(model)


def test_a_result_that_outgrows_its_inputs_is_bounded() -> None:
    def model() -> Model:
        grown = ops.Expand(Constant(np.zeros(1, np.float32)), Constant(np.array([1000])))
        return Model([grown])

    assert not ConstantFolding(max_output_bytes=3999).run_on_model(model())
    assert ConstantFolding(max_output_bytes=4000).run_on_model(model())
    large = Model([ops.Neg(Constant(np.zeros(2000, np.float32)))])
    assert ConstantFolding(max_output_bytes=10).run_on_model(large), "no larger than what it reads"


def test_a_callback_keeps_single_nodes(x: Parameter) -> None:
    model = Model([ops.Mul(x, ops.Neg(Constant(1.0), friendly_name="keep"))], [x])
    config = PassConfig()
    config.set_callback(ConstantFolding, callback=lambda node: node.friendly_name == "keep")
    manager = Manager(config)
    manager.register_pass(ConstantFolding)
    assert not manager.run_passes(model)
    assert kinds(model) == ["Constant", "Neg", "Mul"]


def test_bodies_are_folded_and_the_outer_node_sees_it() -> None:
    condition = Parameter(boolean, [], "condition")
    bodies = [Model([ops.Add(Constant(float(i)), Constant(1.0))]) for i in range(2)]
    node = ops.If(condition, then_branch=bodies[0], else_branch=bodies[1])
    manager = Manager(checked=True)
    manager.register_pass(ConstantFolding)
    assert manager.run_passes(Model([node], [condition]))
    assert manager.rewrite_counts() == {"ConstantFolding": 2}
    assert all(kinds(body) == ["Constant"] for body in node.bodies.values())


@pytest.mark.parametrize("dims", [[0], [2, 0]])
def test_empty_tensors_fold_too(dims: list[int]) -> None:
    folded = constant_fold(ops.Relu(Constant(np.zeros(dims, np.float32))))
    assert folded is not None
    assert folded[0].shape == dims


def test_a_shape_that_the_file_stated_outlives_the_folding_before_it() -> None:
    x = Parameter(f32, [4], "x")
    mask = Parameter(boolean, [4], "mask")
    chosen = ops.Mul(ops.Compress(x, mask, axis=0), ops.Neg(Constant(2.0)))
    chosen.set_output_type(0, TensorType(f32, PartialShape([3])))
    model = Model([ops.Relu(chosen)], [x, mask])
    model.validate()
    manager = Manager(checked=True)
    manager.register_pass(ConstantFolding)
    assert manager.run_passes(model)
    assert model.results[0].type == TensorType(f32, PartialShape([3]))


def test_a_stated_shape_goes_where_a_folded_value_contradicts_it() -> None:
    x = Parameter(f32, [4], "x")
    reshape = ops.Reshape(x, ops.Neg(Constant(np.array([-2, -2]))))
    reshape.set_output_type(0, TensorType(f32, PartialShape([4, 1])))
    model = Model([reshape], [x])
    ConstantFolding().run_on_model(model)
    model.validate()
    assert model.results[0].type == TensorType(f32, PartialShape([2, 2]))


def test_constants_derived_one_from_another_are_read_in_bounded_steps() -> None:
    """A pass that reads each constant to derive the next takes linear time, not quadratic."""
    computed = 0

    def compute(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        nonlocal computed
        computed += 1
        return data + 1

    constant = Constant(np.zeros((256, 256), np.float32))
    for count in range(100):
        constant = derived_constant([constant], (256, 256), compute)
        assert constant.data[0, 0] == count + 1
        constant.release()
    assert computed <= 100 * 17
