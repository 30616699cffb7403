"""Products with matrices that are looked up by expert become one operator. If it fails, a token of an exported mixture
of experts copies all matrices that it needs, or is multiplied with those of another expert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, ElementType, Model, Parameter, f32, i32, i64
from engine.ops import evaluate_model
from engine.passes.common.expert_matmul_fusion import ExpertMatMulFusion

Apply = Callable[..., Counter[str]]
RNG = np.random.default_rng(0)
EXPERTS, ROWS, COLUMNS = 8, 12, 20


def product(count: Any = 4, columns: Any = None, index_type: ElementType = i64, axis: int = 0, width: int = 1) -> Model:
    """`MatMul(Gather(weights, experts), x)`, with x of [columns or count, COLUMNS, width]."""
    weights = Constant(RNG.standard_normal((EXPERTS, ROWS, COLUMNS)).astype(np.float32))
    experts = Parameter(index_type, [count], "experts")
    x = Parameter(f32, [count if columns is None else columns, COLUMNS, width], "x")
    return Model([ops.Relu(ops.MatMul(ops.Gather(weights, experts, axis=axis), x))], [x, experts])


@pytest.mark.parametrize("count", [1, 4, "n"])
@pytest.mark.parametrize("index_type", [i32, i64], ids=str)
def test_a_product_of_each_token_with_its_expert(count: Any, index_type: ElementType, apply: Apply) -> None:
    model = product(count, index_type=index_type)
    before = model.clone()
    found = apply(model, ExpertMatMulFusion)
    assert found["ExpertMatMul"] == 1
    assert "MatMul" not in found
    number = 3 if count == "n" else count
    experts = np.array([2, -1, 0, 2][:number]).astype(index_type.numpy)
    x = RNG.standard_normal((number, COLUMNS, 1)).astype(np.float32)
    (expected,), (actual,) = (evaluate_model(each, [x, experts]) for each in (before, model))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize(
    "model",
    [
        product(4, columns=1),  # one column for all matrices
        product("n", columns="m"),
        product("?"),
        product(4, width=2),
    ],
    ids=["broadcast", "other symbols", "unknown", "matrices"],
)
def test_other_products_stay(model: Model, apply: Apply) -> None:
    assert "ExpertMatMul" not in apply(model, ExpertMatMulFusion, modified=False)


def test_numbers_of_tokens_on_cpu() -> None:
    model = product("n")
    network = Core().compile_model(model, "CPU")
    for number in (0, 1, 7):
        feed = {"x": RNG.standard_normal((number, COLUMNS, 1)).astype(np.float32)}
        feed["experts"] = RNG.integers(0, EXPERTS, number)
        (found,) = network(feed).values()
        (expected,) = evaluate_model(model, list(feed.values()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * (1 + np.abs(expected).max(initial=0)))
