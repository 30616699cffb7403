"""Models whose weights have few bits: OPENCL dequantizes them when it compiles, and answers like TEMPLATE."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core, Model, ops
from engine.ir import Constant, ElementType, Parameter, i4, i64, u8
from engine.passes import compress_weights

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("kind", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_a_product_and_an_embedding(symmetric: bool, kind: Any) -> None:
    ids, table = Parameter(i64, [2, 3], "ids"), Constant(RNG.standard_normal((70, 64)).astype(kind))
    weights = Constant(RNG.standard_normal((64, 96)).astype(kind))
    model = Model([ops.MatMul(ops.Gather(table, ids), weights)], [ids])
    compressed = compress_weights(model, group=32, symmetric=symmetric, embeddings=True).model
    feed = {"ids": RNG.integers(0, 70, (2, 3))}
    expected, got = (
        next(iter(Core().compile_model(compressed, device)(feed).values())) for device in ("TEMPLATE", "OPENCL")
    )
    assert got.dtype == kind
    tolerance = 1e-5 if kind is np.float32 else 2e-2
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=0, atol=tolerance * 30)


@pytest.mark.parametrize("kind", [i4, u8], ids=str)
def test_computed_codes_in_blocks(kind: ElementType) -> None:
    x = Parameter(kind, [64, 8], "x")
    scale = Constant(RNG.uniform(0.1, 1, (2, 8)).astype(np.float32))
    model = Model([ops.DequantizeLinear(x, scale, axis=0, block_size=32)], [x])
    limits = (-8, 8) if kind is i4 else (0, 256)
    feed = {"x": RNG.integers(*limits, (64, 8)).astype(kind.numpy)}
    expected, got = (
        next(iter(Core().compile_model(model, device)(feed).values())) for device in ("TEMPLATE", "OPENCL")
    )
    np.testing.assert_array_equal(got, expected)
