"""Comparing results: a difference that is missed makes a wrong device look right."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.errors import InputError
from engine.runtime.comparison import Comparison, compare_results


def compare(actual: Any, expected: Any, **tolerances: float) -> Comparison:
    (comparison,) = compare_results({"y": actual}, {"y": expected}, **tolerances)
    return comparison


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def test_numbers_are_close_within_absolute_plus_relative_tolerance() -> None:
    expected = f32(0, 1, -1000)
    assert compare(expected + f32(0.01, 0.02, 10), expected, atol=0.01, rtol=0.01).is_close
    found = compare(expected + f32(0.011, 0.021, 10.1), expected, atol=0.01, rtol=0.01)
    assert (found.mismatches, found.size, found.is_close) == (3, 3, False)
    assert found.max_absolute == pytest.approx(10.1, rel=1e-4)
    assert found.max_relative == pytest.approx(0.021, rel=1e-4)


@pytest.mark.parametrize(
    ("actual", "expected", "mismatches"),
    [
        (np.nan, np.nan, 0),
        (np.inf, np.inf, 0),
        (-np.inf, np.inf, 1),
        (1.0, np.nan, 1),
        (np.nan, 1.0, 1),
        (1.0, np.inf, 1),
        (np.inf, 1.0, 1),
        (3.4e38, np.inf, 1),
    ],
)
def test_what_is_not_finite_equals_only_itself(actual: float, expected: float, mismatches: int) -> None:
    assert compare(f32(actual), f32(expected), rtol=0.5, atol=0.5).mismatches == mismatches


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.uint8])
def test_integers_are_exact_but_for_the_absolute_tolerance(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    low, high = np.array([limits.min], dtype), np.array([limits.max], dtype)
    assert compare(high, high).is_close
    assert not compare(high - np.array(1, dtype), high).is_close, "a relative tolerance must not hide this"
    assert compare(high - np.array(1, dtype), high, atol=1).is_close
    assert compare(low, high).max_absolute == compare(high, low).max_absolute == float(limits.max) - float(limits.min)


def test_booleans_strings_and_narrow_types() -> None:
    assert compare(np.array([True, False]), np.array([True, True])).mismatches == 1
    assert compare(np.array(["a", "b"], object), np.array(["a", "c"])).mismatches == 1
    assert compare(np.array(["a"], object), np.array(["a"])).is_close
    narrow = np.array([1, 2], ml_dtypes.bfloat16)
    assert compare(narrow, narrow).is_close
    assert compare(narrow, np.array([1, 2.5], ml_dtypes.bfloat16)).mismatches == 1
    assert compare(np.array([1 + 1j], np.complex64), np.array([1 - 1j], np.complex64)).max_absolute == 2


def test_other_shapes_types_and_kinds_are_problems() -> None:
    assert "shape is (1, 2), expected (2,)" in compare(np.zeros((1, 2)), np.zeros(2)).problem
    assert "element type is float64, expected float32" in compare(np.zeros(2), f32(0, 0)).problem
    assert "is a list, expected a ndarray" in compare([f32(1)], f32(1)).problem
    assert "has 1 elements, expected 2" in compare([f32(1)], [f32(1), f32(2)]).problem
    assert not compare(np.zeros((0, 3)), np.zeros((0, 2))).is_close
    assert compare(np.zeros((0, 3)), np.zeros((0, 3))).is_close


def test_sequences_optionals_and_missing_outputs() -> None:
    comparisons = compare_results({"s": [f32(1), f32(2)], "o": None}, {"o": None, "s": [f32(1), f32(3)]})
    assert [(c.name, c.is_close) for c in comparisons] == [("o", True), ("s[0]", True), ("s[1]", False)]
    with pytest.raises(InputError, match=r"no output 'z'.*outputs: s, o"):
        compare_results({"s": [], "o": None}, {"z": f32(1)})


@given(
    arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)),
    st.data(),
)
def test_agrees_with_numpy(expected: Any, data: st.DataObject) -> None:
    actual = data.draw(arrays.arrays(np.float32, expected.shape, elements=st.floats(width=32)))
    with np.errstate(over="ignore", invalid="ignore"):
        wide = actual.astype(np.float64), expected.astype(np.float64)
        close = np.isclose(*wide, rtol=1e-3, atol=1e-5, equal_nan=True)
    assert compare(actual, expected).mismatches == int((~close).sum())
