"""Every kernel that GPUs have for convolutions, over geometries of all kinds, against CPU.

If a case fails here, users of a GPU get wrong answers from networks with such a layer, or from those whose layer was
measured to be faster with that kernel.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from engine_opencl.lowering.conv import gpu_convolution
from engine_opencl.lowering.conv.depthwise import Strip
from engine_opencl.lowering.conv.direct_convolution import Direct
from engine_opencl.lowering.conv.implicit_gemm import Implicit, is_taken
from engine_opencl.lowering.matmul.tile_candidates import TILES, Tile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine import Core, ops
from engine.ir import Constant, Model, Node, Output, Parameter, Result, f32

CONFIG: dict[str, dict[str, Any]] = {"CPU": {}, "OPENCL": {"KERNEL_TRIAL_SECONDS": 0}}
SETTINGS = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WHOLE = [tile for tile in TILES if is_taken(tile)]
SMALL = next(tile for tile in WHOLE if tile.m == tile.n == 32)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device poses as a GPU."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))


def force(monkeypatch: pytest.MonkeyPatch, variant: object) -> None:
    monkeypatch.setattr(gpu_convolution, "variants_of", lambda facts, c: [variant])


@st.composite
def cases(draw: st.DrawFn, *, transposed: bool = False, depthwise: bool = False) -> dict[str, Any]:
    """Shapes and attributes of a convolution that has results."""
    rank = draw(st.integers(1, 3))
    longest = (40, 14, 7)[rank - 1]
    axes = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    kernel = draw(st.lists(st.integers(1, 5 if rank < 3 else 3), min_size=rank, max_size=rank))
    strides, dilations = draw(axes), draw(axes)
    pads = draw(st.lists(st.integers(0, 3), min_size=2 * rank, max_size=2 * rank))
    space = draw(st.lists(st.integers(1, longest), min_size=rank, max_size=rank))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    groups = draw(st.integers(1, 5) if depthwise else st.sampled_from([1, 1, 2, 3]))
    channels, outputs = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    if depthwise:
        channels, outputs = 1, outputs % 3 + 1
    for axis in range(rank):
        if transposed:  # pads take away from the result
            while strides[axis] * (space[axis] - 1) + reach[axis] <= pads[axis] + pads[rank + axis]:
                space[axis] += 1
        else:
            space[axis] = max(space[axis], reach[axis] - pads[axis] - pads[rank + axis])
    weights = (groups * channels, outputs, *kernel) if transposed else (groups * outputs, channels, *kernel)
    return {
        "op": "ConvTranspose" if transposed else "Conv",
        "x": (draw(st.integers(0, 3)), groups * channels, *space),
        "w": weights,
        "outputs": groups * outputs,
        "attributes": {"group": groups, "strides": strides, "dilations": dilations, "pads": pads},
        "is_constant": draw(st.booleans()),
    }


def check(case: dict[str, Any]) -> None:
    """With a bias and a fused activation; the error is at most the one of a summation in any order."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(case[name], np.float32) for name in ("x", "w"))
    bias = rng.standard_normal(case["outputs"], np.float32)
    expected, found = (answer(case, device, x, w, bias) for device in ("CPU", "OPENCL"))
    most = answer(case, "CPU", np.abs(x), np.abs(w), np.abs(bias))
    depth = w[0].size if case["op"] == "Conv" else w[:, 0].size
    assert found.shape == expected.shape
    bound = 2 * (depth + 2) * np.finfo(np.float32).eps * most
    np.testing.assert_array_less(np.abs(found - expected), bound + 1e-30)


def answer(
    case: dict[str, Any], device: str, x: NDArray[Any], w: NDArray[Any], bias: NDArray[Any]
) -> NDArray[np.float32]:
    parameters = [Parameter(f32, x.shape, "x")] + ([] if case["is_constant"] else [Parameter(f32, w.shape, "w")])
    weights: Node | Output = Constant(w) if case["is_constant"] else parameters[1]
    node = ops.Relu(ops.create(case["op"], [parameters[0], weights, Constant(bias)], case["attributes"]))
    network = Core().compile_model(Model([Result(node)], parameters), device, CONFIG[device])
    result: NDArray[np.float32] = network([x, w][: len(parameters)])[0]
    return result


@pytest.mark.parametrize("tile", [*WHOLE, replace(SMALL, splits=3)], ids=str)
@SETTINGS
@given(case=cases())
def test_tiles(monkeypatch: pytest.MonkeyPatch, tile: Tile, case: dict[str, Any]) -> None:
    force(monkeypatch, Implicit(tile))
    check(case)


@pytest.mark.parametrize("splits", [1, 2])
@SETTINGS
@given(case=cases(transposed=True))
def test_tiles_of_transposed(monkeypatch: pytest.MonkeyPatch, splits: int, case: dict[str, Any]) -> None:
    force(monkeypatch, Implicit(replace(SMALL, splits=splits)))
    check(case)


@pytest.mark.parametrize(("transposed", "wide"), [(False, 1), (False, 4), (True, 2)])
@SETTINGS
@given(data=st.data())
def test_direct(monkeypatch: pytest.MonkeyPatch, transposed: bool, wide: int, data: st.DataObject) -> None:
    force(monkeypatch, Direct(wide))
    check(data.draw(cases(transposed=transposed)))


@pytest.mark.parametrize("length", [1, 2, 4, 8])
@SETTINGS
@given(case=cases(depthwise=True))
def test_depthwise(monkeypatch: pytest.MonkeyPatch, length: int, case: dict[str, Any]) -> None:
    force(monkeypatch, Strip(length))
    check(case)


@pytest.mark.parametrize("variant", [Implicit(SMALL), Direct(2), Strip(4)], ids=str)
def test_values_that_are_not_finite(monkeypatch: pytest.MonkeyPatch, variant: object) -> None:
    """They affect the results whose windows contain them, and no others."""
    force(monkeypatch, variant)
    x = np.zeros((2, 3, 9, 10), np.float32)
    x[0, 1, 4, 4], x[1, 2, 0, 9], x[1, 0, 8, 0] = np.inf, np.nan, -np.inf
    group = 3 if isinstance(variant, Strip) else 1
    w = np.ones((9, 3 // group, 3, 3), np.float32)
    case = {"op": "Conv", "attributes": {"group": group, "pads": [1, 0, 0, 1]}, "is_constant": True}
    expected, found = (answer(case, device, x, w, np.zeros(9, np.float32)) for device in ("CPU", "OPENCL"))
    np.testing.assert_array_equal(found, expected)


def test_measured_variants(tmp_path: Path) -> None:
    """All variants for a layer run, and are measured."""
    x = Parameter(f32, (1, 16, 8, 8), "x")
    node = ops.create("Conv", [x, Constant(np.ones((16, 16, 3, 3), np.float32))], {"pads": [1, 1, 1, 1]})
    config = {"COMPILE_EFFORT": "full", "CACHE_DIR": str(tmp_path), "KERNEL_TRIAL_SECONDS": 0}
    network = Core().compile_model(Model([Result(node)], [x]), "OPENCL", config)
    (line,) = (each for each in network.get_metric("KERNEL_CHOICES") if each.startswith("Conv "))
    assert all(name in line for name in ("implicit tile", "winograd 2x2 3x3", "direct"))
