"""Attention on the CPU device against its evaluation: layouts, masks, bounds, rows without a number, whole exports."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cpu.lowering import decisions
from engine_cpu.transform import prepare_model

from engine import Core, ops
from engine.errors import ModelError
from engine.ir import Constant, ElementType, Model, Node, Parameter, boolean, f16, f32, i64
from engine.onnx import read_model
from engine.ops.evaluator import ModelEvaluator
from engine.ops.internal import FusedAttention
from engine.testing.values import values as random_values

Array = np.ndarray[Any, np.dtype[Any]]
EXPORTS = Path(__file__).parents[3] / "tests" / "fixtures" / "exports"
# Scores are sums of at most 64 products of numbers below one and move the probabilities as much.
CLOSE = {"rtol": 2e-6, "atol": 2e-5}


values = functools.partial(random_values, is_uniform=True)


def parameter(name: str, array: Array, element_type: ElementType = f32) -> Parameter:
    return Parameter(element_type, list(array.shape), name)


def check(node: Node, parameters: Sequence[Parameter], *inputs: Array) -> Array:
    """Compare the device's results, without reference steps, with the evaluation of the graph."""
    model = Model([node.output(0)], list(parameters))
    expected = ModelEvaluator(model).run(list(inputs))[0]
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    actual = np.array(next(iter(network(list(inputs)).values())))
    np.testing.assert_allclose(actual, expected, **CLOSE)
    return actual


def arrays(heads: int, kv_heads: int, is_flat: bool, queries: int = 9, keys: int = 21, size: int = 12) -> list[Array]:
    """Q, K and V of [2, H, S, D] or [2, S, H * D]."""
    shapes = [(heads, queries, size), (kv_heads, keys, size), (kv_heads, keys, size + 4)]
    return [
        values(2, rows, count * width, seed=index) if is_flat else values(2, count, rows, width, seed=index)
        for index, (count, rows, width) in enumerate(shapes)
    ]


@pytest.mark.parametrize("is_bool", [False, True])
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize(
    "shape", [(9, 21), (1, 21), (4, 9, 21), (1, 1, 21), (2, 4, 9, 21), (2, 1, 1, 21), (1, 4, 1, 21), (2, 1, 9, 15)]
)
def test_masks(shape: tuple[int, ...], is_bool: bool, is_causal: int) -> None:
    given = arrays(4, 4, False)
    mask = values(*shape, seed=4)
    mask = mask > -0.3 if is_bool else np.where(mask > 0.8, -np.inf, mask).astype(np.float32)
    parameters = [parameter(name, array) for name, array in zip("qkv", given, strict=True)]
    parameters.append(parameter("mask", mask, boolean if is_bool else f32))
    check(ops.Attention(*parameters, is_causal=is_causal), parameters, *given, mask)


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("read", [(0,), (0, 1, 2), (0, 2)])
@pytest.mark.parametrize("queries", [1, 5])
def test_a_cache_of_keys_and_values(is_flat: bool, has_past: bool, read: tuple[int, ...], queries: int) -> None:
    """A decoder step: past keys and values, then new ones, and both concatenated for the next step."""
    given = arrays(4, 2, is_flat, queries, queries)
    past = [values(2, 2, 7, 12, seed=5), values(2, 2, 7, 16, seed=6)] if has_past else []
    every = [*given, *past]
    parameters = [parameter(str(index), array) for index, array in enumerate(every)]
    heads = {"q_num_heads": 4, "kv_num_heads": 2} if is_flat else {}
    operands = [*parameters[:3], *([None, *parameters[3:]] if past else [])]
    node = ops.create("Attention", operands, {"is_causal": 1, **heads}, num_outputs=3)
    model = Model([node.output(index) for index in read], parameters)
    expected = ModelEvaluator(model).run(every)
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    for actual, wanted in zip(network(every).values(), expected, strict=True):
        np.testing.assert_allclose(np.array(actual), wanted, **CLOSE)


@pytest.mark.parametrize("rows", ["attention", "softmax", "guarded"])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("is_bool", [False, True])
def test_rows_without_a_number(rows: str, is_packed: bool, is_bool: bool) -> None:
    """A fully masked row, and one of NaN: each rule gives the results of the graph that it represents."""
    packed = values(2, 9, (4 + 2 + 2) * 12)
    packed[1, 3, 0] = np.nan  # query 3 of head 0
    mask = values(9, 9, seed=1) > -0.5
    mask[5] = False
    mask[:, 0] |= mask.any(axis=1)
    bias: Array = mask if is_bool else np.where(mask, np.float32(0), np.float32(-np.inf))
    given = [packed] if is_packed else np.split(packed, [48, 72], axis=2)
    parameters = [parameter(str(index), array) for index, array in enumerate(given)]
    last = parameter("mask", bias, boolean if is_bool else f32)
    operands = [*parameters, *[None] * (3 - len(parameters))]
    node = FusedAttention(*operands, last, rows=rows, scale=0.3, q_num_heads=4, kv_num_heads=2)
    result = check(node, [*parameters, last], *given, bias)
    assert np.isnan(result[0, 5]).all() == (rows == "softmax")
    assert np.isnan(result[1, 3, :12]).all() == (rows != "guarded")


@pytest.mark.parametrize("rows", ["softmax", "guarded"])
@pytest.mark.parametrize("is_flat", [False, True])
def test_the_internal_operator_apart(rows: str, is_flat: bool) -> None:
    given = arrays(4, 2, is_flat, queries=21)
    parameters = [parameter(name, array) for name, array in zip("qkv", given, strict=True)]
    heads = {"q_num_heads": 4, "kv_num_heads": 2} if is_flat else {}
    check(FusedAttention(*parameters, rows=rows, scale=0.25, is_causal=1, **heads), parameters, *given)


def test_one_network_takes_all_lengths() -> None:
    packed = Parameter(f32, [None, None, 96], "x")
    node = FusedAttention(packed, rows="guarded", scale=0.3, q_num_heads=4, kv_num_heads=2)
    model = Model([node], [packed])
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    for shape in ((1, 1, 96), (2, 33, 96), (1, 300, 96), (0, 4, 96)):
        data = values(*shape)
        np.testing.assert_allclose(
            np.array(next(iter(network([data]).values()))), ModelEvaluator(model).run([data])[0], **CLOSE
        )


@pytest.mark.parametrize("queries", [1, 3, 20])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_each_sequence_has_its_own_number_of_keys(queries: int, is_causal: int) -> None:
    """As with caches of a fixed length that are partly filled."""
    given = [values(2, 4, queries, 16), values(2, 2, 40, 16), values(2, 2, 40, 16)]
    parameters = [parameter(name, array) for name, array in zip("qkv", given, strict=True)]
    lengths = Parameter(i64, [2], "lengths")
    node = ops.Attention(*parameters, None, None, None, lengths, is_causal=is_causal)
    for counts in ([40, 22], [1, 0], [23, 40]):
        check(node, [*parameters, lengths], *given, np.array(counts))


def test_what_no_kernel_computes_is_refused() -> None:
    given = arrays(4, 4, False)
    q, k, v = (parameter(name, array) for name, array in zip("qkv", given, strict=True))
    halves = [Parameter(f16, list(array.shape), name) for name, array in zip("qkv", given, strict=True)]
    assert "f16" in str(decisions().refusal(ops.Attention(*halves)))
    wide = ops.create("Attention", [q, k, v], {}, num_outputs=4)
    reader = ops.Relu(wide.output(3))
    assert "qk_matmul_output" in str(decisions().refusal(reader.input_value(0).node))
    assert decisions().refusal(ops.Attention(q, k, v)) is None


def test_positions_that_kernels_cannot_check_are_refused() -> None:
    x, table = Parameter(f32, [1, 2, 3, 4], "x"), Constant(values(5, 2))
    assert "run time" in str(decisions().refusal(ops.RotaryEmbedding(x, table, table, Parameter(i64, [1, 3], "p"))))
    with pytest.raises(ModelError, match=r"position 5 is out of range"):
        ops.RotaryEmbedding(x, table, table, Constant(np.array([[0, 1, 5]])))


@pytest.mark.parametrize(
    "name", ["bert_sdpa", "distilbert_sdpa", "vit_sdpa", "gpt2_sdpa", "bert_eager", "gpt2_eager", "mobilevit", "t5"]
)
def test_exports_attend_in_one_step_that_reads_the_projections_where_they_lie(name: str) -> None:
    path = EXPORTS / f"{name}.dynamo20.static.onnx"
    model = read_model(path)
    graph = prepare_model(model).graph
    kinds = [node.op_type for node in graph.ordered_nodes()]
    assert "FusedAttention" in kinds
    assert not {"Softmax", "Split", "IsNaN"} & set(kinds)
    rng = np.random.default_rng(0)
    inputs: list[Array] = []
    for source in model.parameters:
        shape = source.output(0).shape.get_shape()
        element_type = source.output(0).element_type
        drawn = rng.uniform(-1, 1, shape) if element_type.is_real else rng.integers(0, 2, shape)
        inputs.append(np.asarray(drawn).astype(element_type.numpy))
    expected = ModelEvaluator(model).run(inputs)
    network = Core().compile_model(model, "CPU")
    for actual, wanted in zip(network(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(np.array(actual), wanted, rtol=1e-4, atol=1e-4)
