"""`WidenPrecision`: a model stored in f16 or bf16 computes in f32.

If it fails, models in half precision run on the reference evaluator, hundreds of times slower, or give other results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, Result, f32
from engine.ir.element_type import ElementType, bf16, boolean, f16, i64
from engine.ops import evaluate_model
from engine.ops.internal import ExpertMatMul, as_onnx
from engine.passes import Manager
from engine.passes.common.widen_precision import WidenPrecision

WEIGHTS = np.random.default_rng(0).standard_normal((8, 8), np.float32)
LEAVES = (Constant, Parameter, Result)


def const(value: Any, element_type: ElementType = f16) -> Constant:
    return Constant(np.asarray(value, np.float32).astype(element_type.numpy))


def widened(model: Model, **options: Any) -> Model:
    """The model after the pass, run with all checks; inputs and outputs keep their types; a second run does nothing."""
    copy, manager = model.clone(), Manager(checked=True)
    manager.register_pass(WidenPrecision(**options), enabled=True)
    assert manager.run_passes(copy)
    assert not manager.run_passes(copy)
    for ports in ("inputs", "outputs"):
        before, after = (getattr(m, ports) for m in (model, copy))
        assert [(p.element_type, p.shape) for p in before] == [(p.element_type, p.shape) for p in after]
    return copy


def operations(model: Model) -> list[str]:
    return [f"{n.op_type} {n.output(0).element_type}" for n in model.ordered_nodes() if not isinstance(n, LEAVES)]


@pytest.mark.parametrize("element_type", [f16, bf16], ids=str)
def test_the_inside_is_f32(element_type: ElementType) -> None:
    x = Parameter(element_type, [4, 8], "x")
    result = ops.Relu(ops.MatMul(x, const(WEIGHTS, element_type)), friendly_name="y")
    model = widened(Model([Result(result)], [x]))
    assert operations(model) == ["Cast f32", "MatMul f32", "Relu f32", f"Cast {element_type}"]
    (weights,) = [n for n in model.ordered_nodes() if isinstance(n, Constant)]
    np.testing.assert_array_equal(weights.data, WEIGHTS.astype(element_type.numpy).astype(np.float32))
    assert (model.node("y").op_type, model.outputs[0].name) == ("Cast", "y")


def test_results_are_rounded_once() -> None:
    """In f16, 2049 is 2048, and its sum with 1 again: rounded twice, the first would be lost."""
    x = Parameter(f16, [1], "x")
    model = widened(Model([Result(ops.Add(ops.Add(x, const([1])), const([1])))], [x]))
    (found,) = evaluate_model(model, [np.array([2048], np.float16)])
    assert (found.dtype, found.tolist()) == (np.float16, [2050])


def test_a_cast_of_the_model_rounds() -> None:
    x = Parameter(f32, [3], "x")
    model = widened(Model([Result(ops.Cast(ops.Neg(ops.Cast(x, to=f16.onnx)), to=f32.onnx))], [x]))
    value = np.array([0.1, 1e6, 1e-9], np.float32)
    (found,) = evaluate_model(model, [value])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, -value.astype(np.float16).astype(np.float32))


def test_what_a_device_runs_stays_until_a_converted_value_comes() -> None:
    """The table of an embedding is not widened; what is moved later is."""
    table, row = const(WEIGHTS), Parameter(i64, [2], "row")
    embedded = ops.Gather(table, row)
    turned = ops.Transpose(ops.Relu(embedded))
    model = widened(Model([Result(turned)], [row]), accepts=lambda node: True)
    assert operations(model) == ["Gather f16", "Cast f32", "Relu f32", "Transpose f32", "Cast f16"]


def test_values_that_are_read_in_both_types() -> None:
    """A branch of control flow, and a network output in the middle, read the type of the model."""
    x, condition = Parameter(f16, [4], "x"), Parameter(boolean, [], "condition")
    inner = ops.Exp(x, friendly_name="inner")

    def body(make: Any) -> Model:
        captured = Parameter(f16, [4], "captured")
        return Model([Result(make(captured))], [], captures=[captured])

    chosen = ops.create("If", [condition, inner, inner], {"then_branch": body(ops.Neg), "else_branch": body(ops.Abs)})
    model = Model([Result(inner), Result(ops.Sqrt(inner)), Result(chosen)], [x, condition])
    value = np.array([0.5, 1, 2, 3], np.float16)
    found = evaluate_model(widened(model), [value, np.array(True)])
    exact = np.exp(value.astype(np.float32))
    np.testing.assert_array_equal(found[0], exact.astype(np.float16))
    np.testing.assert_array_equal(found[1], np.sqrt(exact).astype(np.float16))
    np.testing.assert_array_equal(found[2], -exact.astype(np.float16))


def test_both_types_in_one_model() -> None:
    x, y = Parameter(f16, [2], "x"), Parameter(bf16, [2], "y")
    total = ops.Add(ops.Relu(x), ops.Cast(ops.Relu(y), to=f16.onnx))
    model = widened(Model([Result(total), Result(ops.Neg(y))], [x, y]))
    assert {node.output(0).element_type for node in nodes(model) if node.op_type != "Cast"} == {f32}
    found = evaluate_model(model, [np.array([1, -1], np.float16), np.array([0.5, 2], bf16.numpy)])
    np.testing.assert_array_equal(found[0], np.array([1.5, 2], np.float16))
    np.testing.assert_array_equal(found[1].astype(np.float32), [-0.5, -2])


def nodes(model: Model) -> list[Node]:
    return [n for n in model.ordered_nodes() if not isinstance(n, LEAVES)]


def test_elements_of_sequences_keep_their_type() -> None:
    x, index = Parameter(f16, [4], "x"), Parameter(i64, [], "index")
    sequence = ops.SequenceConstruct(const(WEIGHTS[0, :4]), ops.Relu(x))
    model = widened(Model([Result(ops.SequenceAt(sequence, index), "y")], [x, index]))
    assert model.outputs[0].element_type is f16
    (found,) = evaluate_model(model, [np.ones(4, np.float16), np.array(0)])
    np.testing.assert_array_equal(found, WEIGHTS[0, :4].astype(np.float16))


@pytest.mark.parametrize("element_type", [f16, bf16], ids=str)
def test_weights_of_experts_stay_as_they_are_stored(element_type: ElementType) -> None:
    """Otherwise the memory would hold all experts, twice as large, where a file can hold them."""
    x, experts = Parameter(element_type, [2, 1, 8], "x"), Parameter(i64, [2, 1], "experts")
    weights, bias = const(np.stack([WEIGHTS, 2 * WEIGHTS]), element_type), const(np.ones((2, 8)), element_type)
    model = Model([ExpertMatMul(x, experts, weights, bias=bias)], [x, experts])
    made = widened(model)
    (product,) = (node for node in made.ordered_nodes() if node.op_type == "ExpertMatMul")
    types = [value.element_type for value in product.input_values if value is not None]
    assert types == [f32, i64, element_type, f32]
    inputs = [np.ones((2, 1, 8), element_type.numpy), np.array([[1], [0]])]
    (expected,), (found,), (decomposed,) = (evaluate_model(each, inputs) for each in (model, made, as_onnx(made)))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(decomposed, expected)
