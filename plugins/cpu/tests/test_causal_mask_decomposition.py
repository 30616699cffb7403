"""Constant masks as comparisons. If these fail, attention sees other keys, or each length needs a plan of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cpu.passes.causal_mask_decomposition import CausalMaskDecomposition

from engine import ops
from engine.ir import Constant, Model, Parameter, boolean, f32
from engine.ops import evaluate_model


def band(queries: int, keys: int, low: int | None, high: int | None) -> np.ndarray[Any, Any]:
    distance = np.arange(keys) - np.arange(queries)[:, None]
    seen = np.ones((queries, keys), bool)
    if low is not None:
        seen &= distance >= low
    if high is not None:
        seen &= distance <= high
    return seen[None, None]


@pytest.mark.parametrize("queries", [1, 2, 4, 7])
@pytest.mark.parametrize("keys", [4, 7, 12])
@pytest.mark.parametrize(("low", "high"), [(None, 0), (None, 2), (-1, 1), (1, None), (2, 3), (-3, None)])
@pytest.mark.parametrize("hidden", [None, -np.inf, -3.4e38])
def test_bands_are_comparisons(queries: int, keys: int, low: int, high: int, hidden: float | None) -> None:
    seen = band(queries, keys, low, high)
    if hidden is None:
        x = Parameter(boolean, [2, 1, queries, keys], "x")
        model = Model([ops.And(x, Constant(seen))], [x])
        feed: Any = np.arange(2 * queries * keys).reshape(2, 1, queries, keys) % 3 > 0
    else:
        x = Parameter(f32, [2, 1, queries, keys], "x")
        model = Model([ops.Add(x, Constant(np.where(seen, 0, hidden).astype(np.float32)))], [x])
        feed = np.arange(2 * queries * keys, dtype=np.float32).reshape(2, 1, queries, keys)
    if seen.all() or not seen.any():
        assert not CausalMaskDecomposition().run_on_model(model)
        return
    (expected,) = evaluate_model(model, [feed])
    assert CausalMaskDecomposition().run_on_model(model)
    np.testing.assert_array_equal(evaluate_model(model, [feed])[0], expected)
    assert not CausalMaskDecomposition().run_on_model(model)
    constants = [node for node in model.ordered_nodes() if isinstance(node, Constant)]
    assert all(node.data.size <= max(queries, keys) for node in constants)


@pytest.mark.parametrize(
    "mask",
    [
        np.array([[[[True, False, True, False]]]]),
        np.where(band(4, 4, None, 0), 0, [[-1, -2, -3, -4]]).astype(np.float32),
        np.where(band(4, 4, None, 0), 0, 1).astype(np.float32),
        np.where(band(4, 4, None, 0), 1, 0).astype(np.float32),
        np.repeat(band(4, 4, None, 0), 2, axis=1),
    ],
)
def test_other_masks_stay(mask: np.ndarray[Any, Any]) -> None:
    x = Parameter(boolean if mask.dtype == bool else f32, [1, mask.shape[1], 4, 4], "x")
    model = Model([ops.And(x, Constant(mask)) if mask.dtype == bool else ops.Add(x, Constant(mask))], [x])
    assert not CausalMaskDecomposition().run_on_model(model)


def test_weights_are_not_masks() -> None:
    x = Parameter(f32, [1, 4], "x")
    triangle = Constant(np.where(band(4, 4, None, 0)[0, 0], 0, -1).astype(np.float32))
    assert not CausalMaskDecomposition().run_on_model(Model([ops.MatMul(x, triangle)], [x]))
