"""The kernels of products for GPUs: each that may be chosen, on shapes that no tile divides, against numpy.

If a case fails here, a network's answers depend on the kernel that tuning chose on some GPU, or on the GPU's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from engine_opencl.devices.device import DeviceFacts, device_of
from engine_opencl.lowering.matmul import tiles
from engine_opencl.lowering.matmul.product import Product
from engine_opencl.lowering.matmul.tile_candidates import (
    TILES,
    Candidate,
    DirectProduct,
    Narrow,
    Tile,
    candidates_of,
    cost,
)

from engine import Core, ops
from engine.ir import Constant, Model, Node, Output, Parameter, Result, f32
from engine.ops.internal import Activation, FusedMatMul

Choose = Callable[[Candidate], None]
SMALL = Tile(16, 16, 4, 4, 4, 2)
"""Not offered; quick to compile."""


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """The device poses as a GPU, where products get this candidate."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))

    def take(candidate: Candidate) -> None:
        monkeypatch.setattr(tiles, "candidates_of", lambda p, facts: [candidate])

    return take


def random_values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def check(build: Callable[..., Node], inputs: Sequence[np.ndarray], expected: np.ndarray) -> None:
    """The device's answer is the expected one, up to rounding."""
    parameters = [Parameter(f32, value.shape) for value in inputs]
    model = Model([Result(build(*parameters))], parameters, name="case")
    (found,) = Core().compile_model(model, "OPENCL")(list(inputs)).values()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * float(np.max(np.abs(expected))) + 1e-6)


def exact(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) @ y.astype(np.float64)


def matmul(x: object, y: object) -> Node:
    return ops.create("MatMul", [x, y], {})


def check_epilogue(m: int, k: int, n: int) -> None:
    """With bias, residual and an activation."""
    x, y, bias, residual = (random_values(*shape) for shape in ((m, k), (k, n), (n,), (m, n)))

    def build(x: Output, y: Output, residual: Output) -> Node:
        return FusedMatMul(x, y, Constant(bias), residual, activation=Activation("Relu"))

    check(build, [x, y, residual], np.maximum(exact(x, y) + bias + residual, 0))


def check_transposed(m: int, k: int, n: int, trans_a: int, trans_b: int, is_constant: bool) -> None:
    a, b = random_values(*((k, m) if trans_a else (m, k))), random_values(*((n, k) if trans_b else (k, n)))
    expected = exact(a.T if trans_a else a, b.T if trans_b else b)
    attributes = {"transA": trans_a, "transB": trans_b}
    if is_constant:
        check(lambda x: ops.create("Gemm", [x, Constant(b)], attributes), [a], expected)
    else:
        check(lambda x, y: ops.create("Gemm", [x, y], attributes), [a, b], expected)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(choose: Choose, tile: Tile) -> None:
    """Loads of four, with tails of all axes."""
    if tile.local_bytes > device_of("0").facts.local_bytes:
        pytest.skip("the device has less local memory, and is not offered this tile")
    choose(tile)
    check_epilogue(tile.m + 1, 2 * tile.k + 4, tile.n + 4)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("shape", [(64, 32, 64), (70, 34, 66), (33, 21, 65)])
def test_every_transposition(
    choose: Choose, shape: tuple[int, int, int], trans_a: int, trans_b: int, is_constant: bool
) -> None:
    """Loads of four, two and one; a constant is rearranged for loads of four."""
    choose(SMALL)
    check_transposed(*shape, trans_a, trans_b, is_constant)


@pytest.mark.parametrize("splits", [2, 8])
@pytest.mark.parametrize("shape", [(40, 30, 68), (40, 30, 70), (17, 32, 33)])
def test_shared_steps(choose: Choose, shape: tuple[int, int, int], splits: int) -> None:
    """With more groups than steps, the last groups have no steps."""
    choose(replace(SMALL, splits=splits))
    check_epilogue(*shape)


BATCHES = [
    ((2, 3, 40, 20), (2, 3, 20, 36)),
    ((2, 3, 40, 20), (3, 20, 36)),
    ((2, 1, 40, 21), (1, 3, 21, 33)),
    ((3, 40, 20), (20, 36)),
]


@pytest.mark.parametrize("constant", [None, 0, 1])
@pytest.mark.parametrize(("x", "y"), BATCHES)
def test_batches(choose: Choose, x: tuple[int, ...], y: tuple[int, ...], constant: int | None) -> None:
    choose(SMALL if constant is None else replace(SMALL, buffers=1, splits=2))
    left, right = random_values(*x), random_values(*y)
    if constant == 0:
        check(lambda b: matmul(Constant(left), b), [right], exact(left, right))
    elif constant == 1:
        check(lambda a: matmul(a, Constant(right)), [left], exact(left, right))
    else:
        check(matmul, [left, right], exact(left, right))


NARROW = [
    (1, 100, 70, Narrow(False, 32, 8, 2)),
    (1, 100, 64, Narrow(False, 8, 32, 4)),
    (8, 33, 65, Narrow(False, 16, 16, 1)),
    (3, 20, 4, Narrow(False, 64, 4, 4)),
    (5, 64, 48, Narrow(False, 16, 16, 4)),
    (1, 100, 70, Narrow(True, 32, 8, 4)),
    (8, 33, 65, Narrow(True, 16, 16, 1)),
    (2, 66, 30, Narrow(True, 8, 32, 2)),
    (1, 1000, 9, Narrow(True, 256, 1, 4)),
    (3, 300, 9, Narrow(True, 128, 2, 4)),
]


@pytest.mark.parametrize("is_column", [False, True])
@pytest.mark.parametrize(("short", "k", "long", "narrow"), NARROW, ids=str)
def test_narrow(choose: Choose, short: int, k: int, long: int, narrow: Narrow, is_column: bool) -> None:
    """Few rows or columns, with neighbouring elements of the long operand along either axis."""
    choose(narrow)
    if is_column:
        check_transposed(long, k, short, int(not narrow.along_k), int(long % 2), is_constant=False)
    else:
        check_transposed(short, k, long, int(long % 2), int(narrow.along_k), is_constant=True)


@pytest.mark.parametrize("along_k", [False, True])
def test_narrow_batches_with_all_that_they_end_with(choose: Choose, along_k: bool) -> None:
    choose(Narrow(along_k, 32, 4, 4))
    check_epilogue(4, 32, 40) if not along_k else check_epilogue(40, 32, 4)
    x, y = random_values(2, 3, 1, 24), random_values(2, 1, 24, 36)
    expected = exact(x, y)
    if along_k:
        check(lambda a, b: matmul(b, a), [x.swapaxes(-1, -2), y.swapaxes(-1, -2)], expected.swapaxes(-1, -2))
    else:
        check(matmul, [x, y], expected)


GPU = DeviceFacts("GPU", "1", "gpu", False, 256, 1024, 48 << 10, 1 << 34, 1 << 36, 100)
SMALL_GPU = replace(GPU, max_work_group=64, local_bytes=16 << 10, compute_units=4)


def product(m: int, n: int, k: int, batch: tuple[int, ...] = ()) -> Product:
    return Product(m, n, k, batch, tuple(m * k for _ in batch), tuple(k * n for _ in batch), (k, 1), (n, 1))


PRODUCTS = [
    product(4096, 4096, 4096), product(70, 40, 9000), product(512, 49, 4608), product(1, 4096, 4096),
    product(1000, 3, 700), product(64, 64, 64, (12,)), product(20, 30, 0), product(4, 4, 4, (1000,)),
]  # fmt: skip


@pytest.mark.parametrize("facts", [GPU, SMALL_GPU])
@pytest.mark.parametrize("p", PRODUCTS, ids=lambda p: f"{p.m}x{p.n}x{p.k}")
def test_candidates_fit_the_device(p: Product, facts: DeviceFacts) -> None:
    candidates = candidates_of(p, facts)
    assert 1 <= len(candidates) <= 13
    assert len({str(candidate) for candidate in candidates}) == len(candidates)
    assert candidates == candidates_of(p, facts)
    for candidate in candidates:
        if isinstance(candidate, Tile):
            assert candidate.items <= facts.max_work_group
            assert candidate.local_bytes <= facts.local_bytes
        elif isinstance(candidate, Narrow):
            assert candidate.items <= facts.max_work_group
            assert candidate.local_bytes(min(p.m, p.n)) <= facts.local_bytes


def test_the_default_suits_the_product() -> None:
    """Large tiles if they fill the device, split steps otherwise, a single read of the matrix for a vector."""
    large, few, vector = (
        candidates_of(product(*size), GPU)[0] for size in ((4096,) * 3, (70, 40, 9000), (1, 4096, 64))
    )
    assert isinstance(large, Tile)
    assert (large.m, large.n, large.splits) == (128, 128, 1)
    assert isinstance(few, Tile)
    assert few.tiles(product(70, 40, 9000)) * few.splits >= GPU.compute_units // 2
    assert isinstance(vector, Narrow)
    assert isinstance(candidates_of(product(4, 4, 0), GPU)[0], DirectProduct)
    for p in PRODUCTS[:1]:
        found = [each for each in candidates_of(p, GPU) if isinstance(each, Tile)]
        assert cost(found[0], p, GPU) == min(cost(each, p, GPU) for each in found)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_are_what_the_kernel_expects(tile: Tile) -> None:
    assert tile.items >= max(tile.m, tile.n)
    for length, items in ((tile.m, tile.row_items), (tile.n, tile.col_items)):
        assert length % (4 * items) == 0
        assert length * tile.k % (4 * tile.items) == 0 or length * tile.k // tile.items in (1, 2)
    assert all(value & (value - 1) == 0 for value in (tile.m, tile.n, tile.k, tile.items))
