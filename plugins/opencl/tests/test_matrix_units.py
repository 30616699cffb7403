"""Products and convolutions of f16 and bf16 on matrix units, and their choice, with these units emulated in OpenCL C.

If a case fails here, a GPU of NVIDIA gives wrong answers for models in 16 bits, or does not use its matrix units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import EMULATED, DeviceFacts, OpenclDevice, device_of
from engine_opencl.lowering.conv import gpu_convolution
from engine_opencl.lowering.conv import implicit_gemm as conv_tiles
from engine_opencl.lowering.conv.implicit_gemm import MatrixImplicit
from engine_opencl.lowering.matmul import tiles
from engine_opencl.lowering.matmul.product import Product
from engine_opencl.lowering.matmul.tile_candidates import (
    MATRIX_TILES,
    SPARE_LOCAL_BYTES,
    MatrixTile,
    Tile,
    candidates_of,
)

from engine import Core, ops
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, Result
from engine.ir.element_type import bf16, f16, f32
from engine.ops.internal import Activation, FusedMatMul

SMALL = MatrixTile(32, 32, 32, 2, 2, 3)
UNITS = {f16: 2.0**-11, bf16: 2.0**-8}
"""The relative errors of rounding."""


@pytest.fixture
def posing(monkeypatch: pytest.MonkeyPatch) -> OpenclDevice:
    """The device poses as a GPU with matrix units."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu", matrix_unit=EMULATED))
    return device


@pytest.fixture(params=[f16, bf16], ids=str)
def real(request: pytest.FixtureRequest) -> ElementType:
    """The type of a model's floating-point values."""
    found: ElementType = request.param
    return found


def values(real: ElementType, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(real.numpy)


def check(real: ElementType, build: Callable[..., Node], inputs: list[np.ndarray], exact: np.ndarray) -> None:
    """The answer is off by the rounding of the result, and of sums in f32."""
    parameters = [Parameter(real, x.shape) for x in inputs]
    (found,) = Core().compile_model(Model([Result(build(*parameters))], parameters), "OPENCL")(inputs).values()
    assert found.dtype == real.numpy
    compare(real, found, exact)


def compare(real: ElementType, found: np.ndarray, exact: np.ndarray) -> None:
    np.testing.assert_allclose(
        found.astype(np.float64), exact, rtol=UNITS[real], atol=1e-5 * float(np.abs(exact).max())
    )


@pytest.mark.parametrize(
    ("m", "k", "n", "trans_a", "trans_b", "is_constant"),
    [
        (32, 32, 32, 0, 0, False),  # whole tiles
        (33, 40, 50, 0, 0, False),  # copies of 8 and of 2 elements, partial tiles
        (33, 40, 52, 1, 1, False),  # the other axis
        (35, 41, 51, 1, 0, False),  # odd lengths: single elements
        (40, 48, 24, 0, 1, True),
        (37, 70, 29, 0, 0, True),  # a constant that is arranged for copies of 8
    ],
)
def test_products(
    posing: OpenclDevice, monkeypatch: pytest.MonkeyPatch, real: ElementType, m: int, k: int, n: int, trans_a: int,
    trans_b: int, is_constant: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(tiles, "candidates_of", lambda p, facts: [SMALL])
    x, y = values(real, *((k, m) if trans_a else (m, k))), values(real, *((n, k) if trans_b else (k, n)))
    exact = (x.T if trans_a else x).astype(np.float64) @ (y.T if trans_b else y).astype(np.float64)
    attributes = {"transA": trans_a, "transB": trans_b}
    if is_constant:
        check(real, lambda x: ops.create("Gemm", [x, Constant(y)], attributes), [x], exact)
    else:
        check(real, lambda x, y: ops.create("Gemm", [x, y], attributes), [x, y], exact)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((70, 130, 40), replace(MATRIX_TILES[-4], splits=2)),
        ((20, 200, 128), MATRIX_TILES[-1]),
        ((64, 64, 128), MatrixTile(64, 128, 32, 2, 2, 3)),
        ((40, 96, 36), MatrixTile(32, 64, 32, 1, 2, 2)),
    ],
    ids=str,
)
def test_tiles_batches_and_epilogues(
    posing: OpenclDevice, monkeypatch: pytest.MonkeyPatch, real: ElementType, shape: tuple[int, int, int],
    tile: MatrixTile,
) -> None:  # fmt: skip
    m, k, n = shape
    monkeypatch.setattr(tiles, "candidates_of", lambda p, facts: [tile])
    x, y, bias, residual = (values(real, *shape) for shape in ((2, m, k), (2, k, n), (n,), (2, m, n)))

    def build(x: Output, y: Output, residual: Output) -> Node:
        return FusedMatMul(x, y, Constant(bias), residual, activation=Activation("Relu"))

    exact = np.maximum(x.astype(np.float64) @ y.astype(np.float64) + bias.astype(float) + residual.astype(float), 0)
    check(real, build, [x, y, residual], exact)


@pytest.mark.parametrize(
    ("operator", "x", "w", "attributes", "splits"),
    [
        ("Conv", (2, 32, 9, 7), (40, 32, 3, 3), {"pads": [1, 1, 1, 1]}, 1),
        ("Conv", (1, 5, 12, 11), (20, 5, 3, 3), {"pads": [1, 0, 1, 0], "strides": [2, 2]}, 1),
        ("Conv", (2, 64, 6, 6), (32, 32, 3, 3), {"pads": [1, 1, 1, 1], "group": 2}, 2),
        ("ConvTranspose", (1, 16, 5, 6), (16, 20, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, 1),
    ],
)
def test_convolutions(
    posing: OpenclDevice, monkeypatch: pytest.MonkeyPatch, real: ElementType, operator: str, x: tuple[int, ...],
    w: tuple[int, ...], attributes: dict[str, Any], splits: int,
) -> None:  # fmt: skip
    variant = MatrixImplicit(MatrixTile(32, 64, 32, 1, 2, 2, splits))
    monkeypatch.setattr(gpu_convolution, "variants_of", lambda facts, c: [variant])
    check_convolution(real, operator, x, w, attributes)


def check_convolution(
    real: ElementType, operator: str, x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    image, weights = values(real, *x), values(real, *w)

    def answer(device: str, element_type: ElementType) -> np.ndarray:
        parameter = Parameter(element_type, x)
        node = ops.create(operator, [parameter, Constant(weights.astype(element_type.numpy))], attributes)
        network: Any = Core().compile_model(Model([Result(node)], [parameter]), device)
        return next(iter(network([image.astype(element_type.numpy)]).values()))

    exact = answer("CPU", f32)
    compare(real, answer("OPENCL", real), exact)


def test_they_are_the_default_for_16_bits_alone(posing: OpenclDevice) -> None:
    facts = replace(posing.facts, compute_units=132, local_bytes=48 << 10)

    def best(element_type: ElementType, facts: DeviceFacts) -> type:
        p = Product(512, 512, 512, (), (), (), (512, 1), (512, 1), element_type)
        return type(candidates_of(p, facts)[0])

    assert best(f16, facts) is best(bf16, facts) is MatrixTile
    assert best(f32, facts) is Tile
    assert best(f16, replace(facts, matrix_unit="")) is Tile
    p = Product(512, 512, 512, (), (), (), (512, 1), (512, 1), f16)
    assert any(isinstance(each, Tile) for each in candidates_of(p, facts))


@pytest.mark.parametrize("tile", {*MATRIX_TILES, *conv_tiles.MATRIX_TILES}, ids=str)
def test_shapes_are_possible(tile: MatrixTile) -> None:
    """Each item has something to copy of both operands, and 48 KiB of local memory suffice for the driver, too."""
    assert tile.local_bytes + SPARE_LOCAL_BYTES <= 48 << 10
    for length in (tile.m, tile.n):
        assert length * tile.k % (8 * tile.items) == 0
    assert tile.m % (16 * tile.row_warps) == tile.n % (16 * tile.col_warps) == 0


@pytest.mark.parametrize("tile", conv_tiles.MATRIX_TILES, ids=str)
def test_each_shape_convolves(posing: OpenclDevice, monkeypatch: pytest.MonkeyPatch, tile: MatrixTile) -> None:
    monkeypatch.setattr(gpu_convolution, "variants_of", lambda facts, c: [MatrixImplicit(tile)])
    check_convolution(f16, "Conv", (1, 32, 12, 11), (36, 32, 3, 3), {})
