"""Attention in one kernel, as GPUs get it: layouts, masks, windows and lengths that no tile divides, against CPU.

If a case fails here, transformers give wrong answers on GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from engine_opencl.lowering.attention import launches
from engine_opencl.lowering.attention.launches import AttentionTile

from engine import Core, ops
from engine.ir import ElementType, Model, Parameter, Result
from engine.ir.element_type import bf16, f16, f32
from engine.ops.internal import FusedAttention

Shape = tuple[int, ...]


def answer(device: str, inputs: list[np.ndarray], element_type: ElementType, attributes: dict[str, Any]) -> np.ndarray:
    parameters = [Parameter(element_type, x.shape) for x in inputs]
    model = Model([Result(ops.create("Attention", parameters, attributes))], parameters)
    network: Any = Core().compile_model(model, device)
    return next(iter(network(inputs).values())).astype(np.float64)


@pytest.fixture(params=[AttentionTile(32, 32), AttentionTile(16, 16)], ids=str)
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AttentionTile:
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))
    monkeypatch.setattr(launches, "attention_tiles", lambda *given: [request.param])
    return request.param


HEADS = {"q_num_heads": 4, "kv_num_heads": 4}
# A result is a weighted mean of values below 4. On each device, it is off by some roundings of f32 (2^-24) or, if it is
# below 2, by one of f16 (2^-11).
TOLERANCE = {f32: 2e-6, f16: 2 * 2 * 2.0**-11, bf16: 2 * 2 * 2.0**-8}


@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "attributes", "element_type"),
    [
        ((1, 2, 40, 64), (1, 2, 70, 64), (1, 2, 70, 64), None, {}, f32),
        ((2, 4, 17, 24), (2, 2, 33, 24), (2, 2, 33, 40), None, {"is_causal": 1}, f32),  # shared heads
        ((1, 2, 40, 7), (1, 2, 20, 7), (1, 2, 20, 5), (40, 20), {}, f32),  # single elements
        ((1, 30, 48), (1, 30, 48), (1, 30, 48), (1, 1, 30, 30), HEADS, f32),  # heads side by side
        ((1, 2, 40, 64), (1, 2, 70, 64), (1, 2, 70, 64), None, {"softcap": 3.0}, f16),
        ((1, 2, 40, 64), (1, 2, 70, 64), (1, 2, 70, 64), None, {"softcap": 3.0}, bf16),
    ],
)
def test_answers(
    tile: AttentionTile, q: Shape, k: Shape, v: Shape, mask: Shape | None, attributes: dict[str, Any],
    element_type: ElementType,
) -> None:  # fmt: skip
    random = np.random.default_rng(0)
    shapes = [shape for shape in (q, k, v, mask) if shape is not None]
    inputs = [random.standard_normal(shape).astype(element_type.numpy) for shape in shapes]
    expected = answer("CPU", inputs, element_type, attributes)
    found = answer("OPENCL", inputs, element_type, attributes)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[element_type])


def test_masked_and_infinite_rows(tile: AttentionTile) -> None:
    """A query that sees no key gives zeros; large scores do not overflow."""
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((1, 1, 20, 16)).astype(np.float32) for _ in range(3))
    mask = np.zeros((20, 20), np.float32)
    mask[3], mask[7, 5:] = -np.inf, -np.inf
    q[0, 0, 9] *= 1e4
    expected = answer("CPU", [q, k, v, mask], f32, {})
    found = answer("OPENCL", [q, k, v, mask], f32, {})
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[f32])
    assert not found[0, 0, 3].any()


@pytest.mark.parametrize("rows", ["attention", "softmax", "guarded"])
def test_rows_that_see_no_key(tile: AttentionTile, rows: str) -> None:
    """Zeros or NaN, as the operator says: the one with Where(IsNaN(p), 0, p) gives zeros."""
    random = np.random.default_rng(1)
    inputs = [random.standard_normal((1, 1, 20, 16)).astype(np.float32) for _ in range(3)]
    inputs.append(np.zeros((20, 20), np.float32))
    inputs[3][3] = -np.inf

    def answer(device: str) -> np.ndarray:
        parameters = [Parameter(f32, x.shape) for x in inputs]
        model = Model([Result(FusedAttention(*parameters, rows=rows))], parameters)
        network: Any = Core().compile_model(model, device)
        return next(iter(network(inputs).values()))

    found = answer("OPENCL")
    np.testing.assert_allclose(found, answer("CPU"), rtol=0, atol=TOLERANCE[f32])
    assert np.isnan(found[0, 0, 3]).all() if rows == "softmax" else not found[0, 0, 3].any()


def test_no_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))
    assert answer("OPENCL", [np.zeros((1, 0, 17, 8), np.float32)] * 3, f32, {}).shape == (1, 0, 17, 8)


def test_products_remain_for_few_queries_and_large_heads() -> None:
    facts = replace(device_of("0").facts, kind="gpu", local_bytes=48 << 10, max_work_group=1024, compute_units=132)
    softmax = launches.Softmax(scale=1.0)

    def tiles(queries: int, size: int) -> list[AttentionTile]:
        q, kv = launches.Heads.of((1, 8, queries, size), 8), launches.Heads.of((1, 8, 50, size), 8)
        return launches.attention_tiles(facts, q, kv, kv, softmax)

    assert tiles(64, 64)
    assert not tiles(1, 64)
    assert not tiles(64, 512)
