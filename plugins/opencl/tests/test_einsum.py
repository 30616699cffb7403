"""Einsum, as products of matrices, sums and transposes, and the products of integers that it may need: as numpy.

If it fails, a network that an exporter wrote with Einsum is refused, or answers with other numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from numpy.typing import NDArray

from engine import Core, Model, ops
from engine.errors import EngineError
from engine.ir import Dimension, ElementType, Parameter
from engine.passes.runtime_info import FUSED_NAMES
from engine.plugin_api import SupportLevel

Array = NDArray[Any]
EQUATIONS = [
    ("ij,jk->ik", [(3, 5), (5, 4)]),
    ("ij,jk->ki", [(3, 5), (5, 4)]),
    ("ij,jk", [(3, 0), (0, 4)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 5, 4), (2, 3, 6, 4)]),
    ("bqhd,bkhd->bhqk", [(2, 5, 3, 4), (2, 6, 3, 4)]),
    ("...qd,...dk->...qk", [(2, 3, 5, 4), (2, 1, 4, 6)]),
    ("bchw,hkc->bkhw", [(2, 4, 5, 3), (5, 6, 4)]),
    ("abxcd,xbecf->xaefd", [(2, 3, 2, 3, 4), (2, 3, 5, 3, 2)]),
    ("ab,bc,cd,a->d", [(2, 3), (3, 4), (4, 5), (2,)]),
    ("bij,bj->bi", [(2, 3, 4), (2, 4)]),
    ("bi,bi->b", [(3, 70), (3, 70)]),
    ("i,j->ji", [(3,), (4,)]),
    ("ijk->kj", [(3, 4, 5)]),
    ("biij->bji", [(2, 3, 3, 4)]),
    ("aba,ca->", [(3, 4, 3), (2, 3)]),
    ("iji->j", [(0, 4, 0)]),
]


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def einsum(equation: str, shapes: list[Any], element: type[Any]) -> Model:
    element_type = ElementType.from_numpy(np.dtype(element))
    parameters = [Parameter(element_type, shape, f"x{i}") for i, shape in enumerate(shapes)]
    return Model([ops.Einsum(*parameters, equation=equation, friendly_name="product")], parameters)


def whole_numbers(shapes: list[Any], element: type[Any]) -> list[Array]:
    """Small enough for sums of their products to be exact."""
    random = np.random.default_rng(1)
    return [random.integers(-4, 5, shape).astype(element) for shape in shapes]


@pytest.mark.parametrize("element", [np.float32, np.float16, np.int64, np.int8])
@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[equation for equation, _ in EQUATIONS])
def test_equations(core: Core, equation: str, shapes: list[tuple[int, ...]], element: type[Any]) -> None:
    """Also of integers, whose sums wrap around."""
    given = whole_numbers(shapes, element)
    model = einsum(equation, shapes, element)
    assert core.query_model(model, "OPENCL")["product"].level is SupportLevel.NATIVE
    found = core.compile_model(model, "OPENCL")(given)[0]
    expected = np.einsum(equation, *given)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("equation", "axes"),
    [
        ("bqhd,bkhd->bhqk", [("B", "Q", 3, 4), ("B", "K", 3, 4)]),
        ("bqhd,hdm->bqm", [("B", "Q", "H", "D"), ("H", "D", 6)]),
        ("abxc,bec->xae", [("A", "B", "X", "C"), ("B", "E", "C")]),
        ("bii->bi", [("B", "N", "N")]),
        ("...i,...j->...ij", [("A", "B", "I"), ("A", "B", "J")]),
    ],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_unknown_lengths(core: Core, equation: str, axes: list[tuple[Any, ...]], is_named: bool) -> None:
    """One network for all of them, zero among them."""
    shapes = axes if is_named else [tuple(Dimension() if isinstance(n, str) else n for n in shape) for shape in axes]
    network = core.compile_model(einsum(equation, shapes, np.float32), "OPENCL")
    symbols = sorted({n for shape in axes for n in shape if isinstance(n, str)})
    for start in (2, 3, 0):
        lengths = {symbol: start + i for i, symbol in enumerate(symbols)}
        given = whole_numbers([tuple(lengths.get(n, n) for n in shape) for shape in axes], np.float32)
        np.testing.assert_array_equal(network(given)[0], np.einsum(equation, *given))


def test_unknown_lengths_that_contradict_each_other_fail_by_name(core: Core) -> None:
    network = core.compile_model(einsum("ij,jk->ik", [(2, Dimension()), (Dimension(), 3)], np.float32), "OPENCL")
    with pytest.raises(EngineError, match="product"):
        network([np.ones((2, 4), np.float32), np.ones((5, 3), np.float32)])


def test_the_parts_carry_the_name(core: Core) -> None:
    """Profiles, placements and errors refer to nodes by this name."""
    network = core.compile_model(einsum("bij,kjb->ki", [(2, 3, 4), (5, 4, 2)], np.float32), "OPENCL")
    parts = [node for node in network.graph.ordered_nodes() if node.op_type in ("MatMul", "Transpose")]
    assert any(part.friendly_name == "product" for part in parts)
    model = einsum("bij,kjb->ki", [(2, 3, 4), (5, 4, 2)], np.float32)
    model.node("product").rt_info["affinity"] = "CPU"
    network = core.compile_model(model, "OPENCL")
    parts = [node for node in network.graph.ordered_nodes() if node.op_type in ("MatMul", "Transpose")]
    assert all(part.rt_info["affinity"] == "CPU" for part in parts)
    assert FUSED_NAMES not in parts[0].rt_info


def test_what_the_device_cannot_compute_is_left_to_others(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, has_fp64=False))
    model = einsum("ij,jk->ik", [(2, 3), (3, 4)], np.float64)
    assert core.query_model(model, "OPENCL")["product"].level is SupportLevel.REFUSED
    given = whole_numbers([(2, 3), (3, 4)], np.float64)
    found = core.compile_model(model, "HETERO:OPENCL,CPU")(given)[0]
    np.testing.assert_array_equal(found, np.einsum("ij,jk->ik", *given))


@pytest.mark.parametrize("element", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 7), (7, 9)),
        ((3, 0), (0, 2)),
        ((2, 1, 6, 5), (3, 5, 2)),
        ((4,), (2, 4, 3)),
        ((2, 9, 4), (4,)),
        ((0, 2), (2, 2)),
    ],
)
def test_products_of_integers(core: Core, left: tuple[int, ...], right: tuple[int, ...], element: type[Any]) -> None:
    """Tails of tiles, batches that repeat, and numbers whose products wrap around."""
    limits, random = np.iinfo(element), np.random.default_rng(1)
    given = [random.integers(limits.min, limits.max, shape, element) for shape in (left, right)]
    parameters = [Parameter(ElementType.from_numpy(x.dtype), x.shape, f"x{i}") for i, x in enumerate(given)]
    network = core.compile_model(Model([ops.MatMul(*parameters)], parameters), "OPENCL")
    np.testing.assert_array_equal(network(given)[0], np.matmul(*given))
