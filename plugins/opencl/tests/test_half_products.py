"""Products that multiply in half precision, as tuning may choose them on GPUs that compute in it.

If a case fails here, such a GPU gives users of f16 answers that are further off than its documentation says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import DeviceFacts, device_of
from engine_opencl.lowering.matmul import tiles
from engine_opencl.lowering.matmul.product import Product
from engine_opencl.lowering.matmul.tile_candidates import Tile, candidates_of

from engine import Core, ops
from engine.ir import ElementType, Model, Parameter, Result
from engine.ir.element_type import f16, f32

UNIT = 2.0**-11
RUN = 8
"""Steps that are added up in half."""


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> DeviceFacts:
    """The device poses as a GPU whose arithmetic in f16 is fit for products."""
    device = device_of("0")
    if not device.facts.has_fp16:
        pytest.skip("the device has no arithmetic in f16")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu", has_half_products=True))
    return device.facts


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((17, 203, 36), Tile(16, 16, 4, 4, 4, 2, in_half=True)),
        ((40, 64, 64), Tile(16, 32, 16, 4, 8, 1, in_half=True)),
        ((33, 130, 19), Tile(32, 32, 32, 8, 8, 2, splits=2, in_half=True)),
    ],
)
def test_sums_of_a_few_steps_are_half(
    facts: DeviceFacts, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], tile: Tile
) -> None:
    """Off by no more than a rounding of each product and of each of a run's sums; long sums are f32."""
    m, k, n = shape
    random = np.random.default_rng(m)
    x, y = (random.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    parameters = [Parameter(f16, v.shape) for v in (x, y)]
    model = Model([Result(ops.MatMul(*parameters))], parameters)
    answers = []
    for candidate in (tile, replace(tile, in_half=False)):
        monkeypatch.setattr(tiles, "candidates_of", lambda p, facts, candidate=candidate: [candidate])
        (answer,) = Core().compile_model(model, "OPENCL")([x, y]).values()
        answers.append(answer.astype(np.float64))
    found, in_f32 = answers
    exact = x.astype(np.float64) @ y.astype(np.float64)
    spread = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64))
    bound = UNIT * (np.abs(exact) + (RUN + 1) * spread)
    assert (np.abs(found - exact) <= 1.01 * bound).all()
    # Roundings are independent: about sqrt(RUN / 2) units of the spread of a sum's result, not of its operands.
    assert np.abs(found - exact).max() <= 4 * np.sqrt(RUN / 2) * UNIT * np.abs(exact).max()
    assert (found != in_f32).any()


def product(real: ElementType) -> Product:
    return Product(512, 512, 512, (), (), (), (512, 1), (512, 1), real)


def test_only_measuring_chooses_it(facts: DeviceFacts) -> None:
    """The default sums in f32; there is no choice for f32, and on devices that flush subnormals."""

    def offered(p: Product, where: DeviceFacts) -> list[bool]:
        return [c.in_half for c in candidates_of(p, where) if isinstance(c, Tile)]

    first, *others = offered(product(f16), facts)
    assert not first
    assert any(others)
    assert not any(offered(product(f32), facts))
    assert not any(offered(product(f16), replace(facts, has_half_products=False)))


def test_the_choice_is_told_apart(facts: DeviceFacts) -> None:
    """In caches and blobs."""
    names: list[Any] = [str(c) for c in candidates_of(product(f16), facts)]
    assert len(set(names)) == len(names)
