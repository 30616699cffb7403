"""ArgMax, ArgMin, Hardmax, TopK and CumSum on the device against numpy: ties, NaN, axes, types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import EngineError
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape, f32, i64

Array = np.ndarray[Any, np.dtype[Any]]

SHAPES = [((7,), 0), ((3, 100), 1), ((100, 3), 0), ((2, 21, 5, 30), 1), ((4, 1), 1), ((3, 70000), -1)]
TYPES = [np.float32, np.int32, np.int64]


def values(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> Array:
    """Few different ones, so that there are ties."""
    return np.random.default_rng(seed).integers(-40, 40, shape).astype(dtype)


def run(op_type: str, x: Array, *more: Array, fixed: bool = True, outputs: int = 1, **attributes: Any) -> list[Array]:
    shape = PartialShape(x.shape if fixed else [-1] * x.ndim)
    parameter = Parameter(ElementType.from_numpy(x.dtype), shape, "x")
    node = ops.create(op_type, [parameter, *map(Constant, more)], attributes, num_outputs=outputs)
    model = Model(node.outputs, [parameter], name="selection")
    return list(Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})({"x": x}).values())


def last_argmax(x: Array, axis: int) -> Array:
    return x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis)


@pytest.mark.parametrize("dtype", [*TYPES, np.uint8, np.int8])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_positions_of_extremes(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x = values(shape, np.int8).astype(dtype)
    np.testing.assert_array_equal(run("ArgMax", x, axis=axis, keepdims=0)[0], np.argmax(x, axis))
    got = run("ArgMin", x, axis=axis, fixed=False)[0]
    np.testing.assert_array_equal(got, np.argmin(x, axis, keepdims=True))
    got = run("ArgMax", x, axis=axis, keepdims=0, select_last_index=1)[0]
    np.testing.assert_array_equal(got, last_argmax(x, axis))


@pytest.mark.parametrize("fixed", [True, False])
def test_nothing_has_no_extreme(fixed: bool) -> None:
    with pytest.raises(EngineError, match=r"ArgMin .*: an input \[0, 3\] is empty along axis 0"):
        run("ArgMin", np.zeros((0, 3), np.float32), axis=0, fixed=fixed)
    assert run("ArgMin", np.zeros((0, 3), np.float32), axis=1, fixed=fixed)[0].shape == (0, 1)


@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_that_are_no_number(axis: int) -> None:
    x = values((50, 60))
    x[10, 7] = x[40, 7] = x[10, 30] = np.nan
    x[:, 9], x[20, :] = -np.inf, np.inf
    for op_type, numpy in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
        np.testing.assert_array_equal(run(op_type, x, axis=axis, keepdims=0)[0], numpy(x, axis))
    got = run("ArgMax", x, axis=axis, keepdims=0, select_last_index=1)[0]
    np.testing.assert_array_equal(got, last_argmax(x, axis))


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_hardmax(shape: tuple[int, ...], axis: int) -> None:
    x = values(shape)
    want = np.zeros_like(x)
    np.put_along_axis(want, np.argmax(x, axis, keepdims=True), 1, axis)
    np.testing.assert_array_equal(run("Hardmax", x, axis=axis)[0], want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_best_of_an_axis(shape: tuple[int, ...], axis: int, largest: int, dtype: Any) -> None:
    x = values(shape, dtype)
    order = np.argsort(-x if largest else x, axis, kind="stable")
    for k in {0, 1, min(3, shape[axis]), min(300, shape[axis])}:
        want = np.take(order, range(k), axis)
        got = run("TopK", x, np.array([k], np.int64), axis=axis, largest=largest, outputs=2)
        np.testing.assert_array_equal(got[1], want)
        np.testing.assert_array_equal(got[0], np.take_along_axis(x, want, axis))


def test_a_nan_is_the_largest() -> None:
    x = np.array([1, np.nan, -np.inf, np.inf, -np.nan, 0, -0.0], np.float32)
    k = np.array([7], np.int64)
    np.testing.assert_array_equal(run("TopK", x, k, outputs=2)[1], [1, 4, 3, 0, 5, 6, 2])
    np.testing.assert_array_equal(run("TopK", x, k, outputs=2, largest=0, sorted=0)[1], [2, 5, 6, 0, 3, 1, 4])


def test_the_ends_of_integers() -> None:
    x = np.array([0, np.iinfo(np.int64).min, np.iinfo(np.int64).max, -1], np.int64)
    for largest, want in ((1, [2, 0, 3, 1]), (0, [1, 3, 0, 2])):
        got = run("TopK", x, np.array([4], np.int64), outputs=2, largest=largest)
        np.testing.assert_array_equal(got[1], want)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_running_sums(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x = values(shape, dtype)
    sums = np.cumsum(x, axis, dtype=dtype)
    place = np.array(axis, np.int64)
    np.testing.assert_array_equal(run("CumSum", x, place)[0], sums)
    np.testing.assert_array_equal(run("CumSum", x, place, exclusive=1)[0], sums - x)
    backwards = np.flip(np.cumsum(np.flip(x, axis), axis, dtype=dtype), axis)
    np.testing.assert_array_equal(run("CumSum", x, place.astype(np.int32), reverse=1, fixed=False)[0], backwards)
    np.testing.assert_array_equal(run("CumSum", x, place, reverse=1, exclusive=1)[0], backwards - x)


def test_sums_that_wrap() -> None:
    x = np.array([np.iinfo(np.int32).max, 1, 1], np.int32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run("CumSum", x, np.array(0, np.int64))[0], np.cumsum(x, dtype=np.int32))


@pytest.mark.parametrize("op_type", ["TopK", "CumSum"])
def test_what_is_computed_is_left_to_the_reference(op_type: str) -> None:
    x, given = Parameter(f32, PartialShape([5]), "x"), Parameter(i64, PartialShape([1]), "given")
    node = ops.create(op_type, [x, given], {}, num_outputs=2 if op_type == "TopK" else 1)
    with pytest.raises(EngineError, match="constant"):
        Core().compile_model(Model(node.outputs, [x, given], name="m"), "CPU", {"ALLOW_REFERENCE": False})
