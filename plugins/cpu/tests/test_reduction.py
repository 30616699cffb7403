"""Reductions on the device against numpy: axes, types, layouts, what is not finite, what is empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import EngineError
from engine.ir import Constant, ElementType, Model, Node, Parameter, PartialShape, f32

Array = np.ndarray[Any, np.dtype[Any]]

WIDE: dict[str, Callable[[Array, tuple[int, ...], bool], Array]] = {
    "ReduceSum": lambda x, axes, keep: np.sum(x, axes, keepdims=keep),
    "ReduceMean": lambda x, axes, keep: np.mean(x, axes, keepdims=keep),
    "ReduceMax": lambda x, axes, keep: np.max(x, axes, keepdims=keep, initial=-np.inf),
    "ReduceMin": lambda x, axes, keep: np.min(x, axes, keepdims=keep, initial=np.inf),
    "ReduceProd": lambda x, axes, keep: np.prod(x, axes, keepdims=keep),
    "ReduceL1": lambda x, axes, keep: np.sum(np.abs(x), axes, keepdims=keep),
    "ReduceL2": lambda x, axes, keep: np.sqrt(np.sum(x * x, axes, keepdims=keep)),
    "ReduceSumSquare": lambda x, axes, keep: np.sum(x * x, axes, keepdims=keep),
    "ReduceLogSum": lambda x, axes, keep: np.log(np.sum(x, axes, keepdims=keep)),
    "ReduceLogSumExp": lambda x, axes, keep: np.log(np.sum(np.exp(x), axes, keepdims=keep)),
}
INTEGER = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare")


def values(shape: Sequence[int], seed: int = 0) -> Array:
    """Between 0.5 and 1.5, so that products and logarithms stay in range."""
    return np.random.default_rng(seed).random(shape, np.float32) + np.float32(0.5)


def reduction(op_type: str, x: Node, axes: Sequence[int] | None, **attributes: Any) -> Node:
    inputs = [x] if axes is None else [x, Constant(np.array(axes, np.int64))]
    return ops.create(op_type, inputs, attributes)


def run(op_type: str, x: Array, axes: Sequence[int] | None, *, fixed: bool = True, **attributes: Any) -> Array:
    shape = PartialShape(x.shape if fixed else [-1] * x.ndim)
    parameter = Parameter(ElementType.from_numpy(x.dtype), shape, "x")
    model = Model([reduction(op_type, parameter, axes, **attributes)], [parameter], name="reduction")
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    return next(iter(network({"x": x}).values()))


def assert_equal(op_type: str, x: Array, axes: Sequence[int], keep: int = 1) -> None:
    got = run(op_type, x, axes, keepdims=keep)
    with np.errstate(all="ignore"):
        want = WIDE[op_type](x.astype(np.float64), tuple(axes), bool(keep))
    count = x.size / max(1, want.size)
    tolerance = 4 * 1.2e-7 * (2 + (count if op_type == "ReduceProd" else np.log2(count + 1)))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op_type", WIDE)
def test_any_axes(op_type: str) -> None:
    x = values((2, 3, 5, 4, 7))
    for axes in ([0], [4], [1, 2], [0, 4], [1, 3], [0, 2, 4], [2, 3, 4], [0, 1, 2, 3, 4], [-1, -3]):
        for keep in (0, 1):
            assert_equal(op_type, x, axes, keep)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceLogSumExp", "ReduceMax", "ReduceL2"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((300000,), [0]), ((100000, 3), [0]), ((40, 3000, 70), [1]), ((2, 70000, 17), [0, 1]), ((5, 3, 20000), [0, 2])],
)
def test_large(op_type: str, shape: tuple[int, ...], axes: list[int]) -> None:
    """Few outputs: their elements are shared by the workers."""
    assert_equal(op_type, values(shape), axes)


def test_a_long_mean_loses_no_digits() -> None:
    """One sum after the other would be off by a hundredth."""
    for shape in ((1 << 22, 1), (1 << 20, 4)):
        x = np.full(shape, 0.1, np.float32)
        got = run("ReduceMean", x, [0])
        # 64 roundings of a partial sum; what adds these up rounds far less.
        np.testing.assert_allclose(got, np.full((1, shape[1]), np.float32(0.1)), rtol=64 * 6e-8)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("op_type", INTEGER)
def test_integers(op_type: str, dtype: type[Any]) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, 6, 5)).astype(dtype)
    for axes in ([1], [2], [0, 2], [0, 1, 2]):
        want = WIDE[op_type](x.astype(np.float64), tuple(axes), True)
        np.testing.assert_array_equal(run(op_type, x, axes), np.trunc(want).astype(dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_])
def test_extremes_of_bytes(dtype: type[Any]) -> None:
    x = np.random.default_rng(1).integers(-100, 100, (4, 5, 70)).astype(dtype)
    for axes in ((1,), (2,), (0, 2)):
        np.testing.assert_array_equal(run("ReduceMax", x, axes, keepdims=0), np.max(x, axes))
        np.testing.assert_array_equal(run("ReduceMin", x, axes, keepdims=0), np.min(x, axes))


def test_axes_that_are_not_given() -> None:
    x = values((3, 4))
    np.testing.assert_allclose(run("ReduceSum", x, None, keepdims=0), x.sum(), rtol=1e-6)
    np.testing.assert_allclose(run("ReduceSum", x, []), x.sum(keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(run("ReduceSum", x, [], noop_with_empty_axes=1), x)
    np.testing.assert_allclose(run("ReduceLogSum", x, None, noop_with_empty_axes=1), np.log(x), rtol=1e-6, atol=1e-7)


def test_nothing_to_reduce() -> None:
    empty = np.zeros((2, 0, 3), np.float32)
    for op_type, want in (("ReduceSum", 0.0), ("ReduceProd", 1.0), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)):
        np.testing.assert_array_equal(run(op_type, empty, [1]), np.full((2, 1, 3), want, np.float32))
    np.testing.assert_array_equal(run("ReduceLogSumExp", empty, [1, 2], fixed=False), np.full((2, 1, 1), -np.inf))
    assert run("ReduceSum", empty, [2], keepdims=0).shape == (2, 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_not_finite(axis: int) -> None:
    x = values((80, 90))
    x[3, 5], x[70, 40], x[20, 20], x[60, 20] = np.nan, np.inf, np.inf, -np.inf
    for op_type, wide in WIDE.items():
        with np.errstate(all="ignore"):
            want = wide(x.astype(np.float64), (axis,), False)
        got = run(op_type, x, [axis], keepdims=0)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    huge = np.array([[1e4, 1e4], [-1e4, -1e4]], np.float32)
    np.testing.assert_allclose(run("ReduceLogSumExp", huge, [1], keepdims=0), huge[:, 0] + np.log(2), rtol=1e-6)


@pytest.mark.parametrize("channels", [16, 24])
@pytest.mark.parametrize("keep", [0, 1])
def test_over_the_pixels_of_a_convolution(channels: int, keep: int) -> None:
    parameter = Parameter(f32, PartialShape([2, 3, 9, 11]), "x")
    weights = np.random.default_rng(2).standard_normal((channels, 3, 3, 3)).astype(np.float32)
    conv = ops.create("Conv", [parameter, Constant(weights)], {"kernel_shape": [3, 3]})
    pooled = reduction("ReduceMean", conv, [2, 3], keepdims=keep)
    model = Model([pooled], [parameter], name="pooled")
    feeds = {"x": np.random.default_rng(3).standard_normal((2, 3, 9, 11)).astype(np.float32)}
    got, want = (next(iter(Core().compile_model(model, d)(feeds).values())) for d in ("CPU", "TEMPLATE"))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_axes_that_are_computed_are_left_to_the_reference() -> None:
    x, axes = Parameter(f32, PartialShape([2, 3]), "x"), Parameter(ElementType.parse("i64"), PartialShape([1]), "axes")
    model = Model([ops.create("ReduceSum", [x, axes])], [x, axes], name="reduction")
    with pytest.raises(EngineError, match="constant"):
        Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
