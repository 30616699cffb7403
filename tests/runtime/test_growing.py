"""Values that grow in place. If one fails, one request's tokens appear in another, or an error damages a state."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import OutOfMemoryError
from engine.runtime import GrowingArray


def appended(value: GrowingArray, rows: Any) -> GrowingArray:
    """`value` with more positions, [..., count, ...] in its own order of dimensions."""
    grown = value.extended(rows.shape[value.axis])
    grown.block[value.length : grown.length] = np.moveaxis(rows, value.axis, 0)
    return grown


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_positions_are_appended_in_the_same_memory(axis: int) -> None:
    shape = [2, 3, 4]
    value = GrowingArray.of(np.arange(24.0).reshape(shape), axis)
    expected, blocks = value.array(), set()
    for step in range(40):
        rows = np.full([1 if i == axis else n for i, n in enumerate(shape)], float(step))
        value = appended(value, rows)
        expected = np.concatenate([expected, rows], axis=axis)
        blocks.add(value.block.ctypes.data)
        np.testing.assert_array_equal(value.array(), expected)
    assert (value.shape, value.nbytes) == (expected.shape, expected.nbytes)
    assert len(blocks) <= 2  # it grows by doubling


def test_values_that_go_on_from_one_do_not_see_each_other() -> None:
    first = appended(GrowingArray.of(np.zeros((0, 2)), 0), np.ones((3, 2)))
    left, right = appended(first, np.full((1, 2), 2.0)), appended(first, np.full((1, 2), 3.0))
    assert left.array().tolist() == [[1, 1]] * 3 + [[2, 2]]
    assert right.array().tolist() == [[1, 1]] * 3 + [[3, 3]]
    assert first.array().tolist() == [[1, 1]] * 3


def test_the_place_of_a_value_that_is_gone_is_used_again() -> None:
    """As after an inference that failed, or a rewind: nothing is copied."""
    value = GrowingArray.of(np.zeros((4, 2)), 0)
    place = value.block.ctypes.data
    value.extended(3)  # of an inference that failed
    gc.collect()
    assert value.extended(1).block.ctypes.data == place
    longer = value.extended(2)
    shorter = longer.shortened(1)
    del longer
    gc.collect()
    assert shorter.length == 5
    assert shorter.extended(1).block.ctypes.data == place


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(["add", "cut", "drop"])), max_size=30))
def test_any_order_of_forks_and_rewinds(actions: list[tuple[int, int, str]]) -> None:
    """Values are what arrays of their own would be."""
    values = [(GrowingArray.of(np.zeros((0, 1)), 0), np.zeros((0, 1)))]
    for number, (which, count, action) in enumerate(actions):
        value, expected = values[which % len(values)]
        if action == "drop" and len(values) > 1:
            values.pop(which % len(values))
        elif action == "cut":
            count = min(count, value.length)
            values.append((value.shortened(count), expected[: value.length - count]))
        else:
            rows = np.full((count, 1), float(number))
            values.append((appended(value, rows), np.concatenate([expected, rows])))
        for held, wanted in values:
            np.testing.assert_array_equal(held.array(), wanted)


def test_memory_that_cannot_grow_is_a_typed_error_and_leaves_the_value() -> None:
    value = GrowingArray.of(np.ones((2, 2)), 0)
    with pytest.raises(OutOfMemoryError, match=r"not enough memory for \d+ positions of a variable"):
        value.extended(1 << 58)
    assert appended(value, np.zeros((1, 2))).array().tolist() == [[1, 1], [1, 1], [0, 0]]
