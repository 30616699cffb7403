"""Logits of the last token only. If these fail, tokens are drawn from the logits of another position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import PassError
from engine.generation import Generator
from engine.ir import Constant, Model, Parameter, Result, f32, i64
from engine.ops import evaluate_model
from engine.passes import LastPosition, MakeStateful

DECODERS = sorted((Path(__file__).parents[2] / "fixtures" / "decoders").glob("*.onnx"))
PROMPT = [3, 14, 15, 9]


def head(bias: bool = True) -> Model:
    x = Parameter(f32, ["batch", "tokens", 4], "x")
    product = ops.MatMul(x, Constant(np.arange(12, dtype=np.float32).reshape(4, 3)))
    logits = ops.Mul(ops.Add(product, Constant(np.arange(3, dtype=np.float32))), Constant(0.5)) if bias else product
    return Model([Result(logits, "logits")], [x])


@pytest.mark.parametrize("bias", [False, True])
def test_the_head_has_one_row_for_each_sequence(bias: bool) -> None:
    model, x = head(bias), np.arange(40, dtype=np.float32).reshape(2, 5, 4)
    expected = evaluate_model(model, [x])[0]
    assert LastPosition().run_on_model(model)
    np.testing.assert_array_equal(evaluate_model(model, [x])[0], expected[:, -1:])
    (product,) = (node for node in model.ordered_nodes() if node.op_type == "MatMul")
    assert product.input_value(0).node.op_type == "Slice"
    assert not LastPosition().run_on_model(model)


def test_the_head_has_rows_for_the_last_tokens() -> None:
    model, x = head(), np.arange(40, dtype=np.float32).reshape(2, 5, 4)
    expected = evaluate_model(model, [x])[0]
    assert LastPosition(count=3).run_on_model(model)
    assert str(model.results[0].input_value(0).type.shape) == "[batch,0..3,3]"
    np.testing.assert_array_equal(evaluate_model(model, [x])[0], expected[:, -3:])
    np.testing.assert_array_equal(evaluate_model(model, [x[:, :2]])[0], expected[:, :2])
    assert not LastPosition(count=3).run_on_model(model)
    with pytest.raises(PassError, match="has the last 3 tokens already; expected 1 or all"):
        LastPosition().run_on_model(model)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, None])
def test_numbers_of_tokens_that_are_refused(count: Any) -> None:
    with pytest.raises(PassError, match=r"count is .*; expected a number of tokens"):
        LastPosition(count=count)


def test_the_transposed_table_of_embeddings_is_the_head() -> None:
    """As torch exports models whose head has the weights of the embedding, such as GPT-2 and Gemma."""
    ids, table = (
        Parameter(i64, ["batch", "tokens"], "input_ids"),
        Constant(np.arange(12, dtype=np.float32).reshape(3, 4)),
    )
    logits = ops.MatMul(ops.Gather(table, ids), ops.Transpose(table, perm=[1, 0]))
    model, value = Model([Result(logits, "logits")], [ids]), np.array([[0, 2, 1], [1, 1, 2]])
    expected = evaluate_model(model, [value])[0]
    assert LastPosition().run_on_model(model)
    np.testing.assert_array_equal(evaluate_model(model, [value])[0], expected[:, -1:])


def test_every_pointwise_operation_may_follow_the_head() -> None:
    model, x = head(), np.arange(40, dtype=np.float32).reshape(2, 5, 4)
    (logits,) = model.results
    limited = ops.Softplus(ops.Clip(logits.input_value(0), Constant(np.float32(-5)), Constant(np.float32(5))))
    logits.input(0).replace_source_output(limited.output(0))
    expected = evaluate_model(model, [x])[0]
    assert LastPosition().run_on_model(model)
    np.testing.assert_array_equal(evaluate_model(model, [x])[0], expected[:, -1:])


@pytest.mark.parametrize("path", DECODERS, ids=lambda path: path.name.removesuffix(".onnx"))
def test_the_same_tokens(path: Path) -> None:
    core, found = Core(), []
    for is_last in (False, True):
        model = core.read_model(path)
        MakeStateful().run_on_model(model)
        if is_last:
            LastPosition().run_on_model(model)
        found.append(Generator(core.compile_model(model, "CPU")).generate(PROMPT, 6))
    assert found[0] == found[1]


def test_a_slice_before_the_head_that_is_not_the_last_position() -> None:
    x = Parameter(f32, ["batch", "tokens", 8], "x")
    part = ops.Slice(x, *(Constant(np.array(value)) for value in ([0, 0, 0], [99, 99, 4])))
    logits = ops.MatMul(part, Constant(np.arange(12, dtype=np.float32).reshape(4, 3)))
    model, value = Model([Result(logits, "logits")], [x]), np.arange(48, dtype=np.float32).reshape(2, 3, 8)
    expected = evaluate_model(model, [value])[0]
    assert LastPosition().run_on_model(model)
    np.testing.assert_array_equal(evaluate_model(model, [value])[0], expected[:, -1:])


def test_other_heads_are_refused() -> None:
    x = Parameter(f32, ["batch", "tokens", 4], "x")
    weights = Constant(np.ones((4, 3), np.float32))
    product = ops.MatMul(x, weights)
    per_token = ops.Add(product, Constant(np.ones((5, 3), np.float32)))
    for result in (ops.Softmax(product, axis=1), per_token, ops.MatMul(x, x)):
        with pytest.raises(PassError, match=r"output `logits` is computed by .*expected a MatMul"):
            LastPosition().run_on_model(Model([Result(result, "logits")], [x]))
    read_twice = Model([Result(product, "logits"), Result(ops.Relu(product), "other")], [x])
    with pytest.raises(PassError, match="also read by others"):
        LastPosition().run_on_model(read_twice)
    logits = ops.Add(ops.MatMul(x, weights), Constant(1.0))
    shown = Model([Result(logits, "logits"), Result(ops.Softmax(logits), "probabilities")], [x])
    with pytest.raises(PassError, match="also read by others"):
        LastPosition().run_on_model(shown)
    with pytest.raises(PassError, match="scores"):
        LastPosition("scores").run_on_model(read_twice)
