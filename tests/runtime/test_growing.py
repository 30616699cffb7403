"""Values that grow in place. If one fails, one request's tokens appear in another, or an error damages a state."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import OutOfMemoryError
from engine.runtime import GrowingForm, GrowingSet, growing


def made(*arrays: Any, axes: Sequence[int] | None = None) -> GrowingSet:
    """A set of arrays whose first dimension grows unless told otherwise."""
    return GrowingSet.of(arrays, [GrowingForm(axis) for axis in axes or [0] * len(arrays)])


def appended(values: GrowingSet, *rows: Any, axes: Sequence[int] | None = None) -> GrowingSet:
    """`values` with more positions, [..., count, ...] in the order of dimensions of each."""
    axes = axes or [0] * len(rows)
    grown = values.extended(rows[0].shape[axes[0]])
    for block, each, axis in zip(grown.blocks, rows, axes, strict=True):
        block[values.length : grown.length] = np.moveaxis(each, axis, 0)
    return grown


def arrays_of(values: GrowingSet) -> list[Any]:
    return [value.array() for value in values.arrays]


def test_positions_are_appended_in_the_same_memory() -> None:
    """For values whose dimensions grow at different places, and of different types."""
    axes, shapes = [0, 1, 2], [(3, 2), (2, 3, 4), (2, 2, 3, 5)]
    expected = [np.arange(np.prod(shape)).reshape(shape).astype("fdh"[axis]) for axis, shape in enumerate(shapes)]
    values, addresses = made(*expected, axes=axes), set()
    for step in range(62):
        rows = [
            np.full([1 if i == axis else n for i, n in enumerate(shape)], step, each.dtype)
            for axis, shape, each in zip(axes, shapes, expected, strict=True)
        ]
        values = appended(values, *rows, axes=axes)
        expected = [np.concatenate([a, b], axis=axis) for a, b, axis in zip(expected, rows, axes, strict=True)]
        addresses.add(tuple(block.ctypes.data for block in values.blocks))
        for value, wanted in zip(values.arrays, expected, strict=True):
            np.testing.assert_array_equal(value.array(), wanted)
            assert (value.shape, value.nbytes, value.dtype) == (wanted.shape, wanted.nbytes, wanted.dtype)
    assert len(addresses) == 2  # it grows by doubling


def test_values_that_go_on_from_one_do_not_see_each_other() -> None:
    first = appended(made(np.zeros((0, 2))), np.ones((3, 2)))
    left, right = appended(first, np.full((1, 2), 2.0)), appended(first, np.full((1, 2), 3.0))
    assert arrays_of(left)[0].tolist() == [[1, 1]] * 3 + [[2, 2]]
    assert arrays_of(right)[0].tolist() == [[1, 1]] * 3 + [[3, 3]]
    assert arrays_of(first)[0].tolist() == [[1, 1]] * 3


def test_the_place_of_a_value_that_is_gone_is_used_again() -> None:
    """As after an inference that failed, or a rewind: nothing is copied."""
    values = made(np.zeros((4, 2)), np.ones((4, 3)))
    place = values.blocks[1].ctypes.data
    values.extended(3)  # of an inference that failed
    gc.disable()
    try:
        assert values.extended(1).blocks[1].ctypes.data == place
        longer = values.extended(2)
        shorter = longer.shortened(1)
        del longer
        assert shorter.arrays[0].shape == (5, 2)
        assert shorter.extended(1).blocks[1].ctypes.data == place
    finally:
        gc.enable()


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(["add", "cut", "drop"])), max_size=30))
def test_any_order_of_forks_and_rewinds(actions: list[tuple[int, int, str]]) -> None:
    """Values are what arrays of their own would be."""
    run_actions(actions)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from(["add", "cut", "drop"])), max_size=40))
def test_any_order_with_blocks_that_are_taken_over_in_parts(actions: list[tuple[int, int, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "_SMALL_BYTES", 0)
        patch.setattr(growing, "_MIN_ROOM", 4)
        run_actions(actions)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_no_extension_copies_a_whole_block(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Otherwise, a token of a long sequence takes as long as several, whenever the room is used up."""
    copied: list[int] = []
    copy = growing._Block.copy

    def counted(self: Any, other: Any, begin: int, end: int) -> None:
        copied[-1] += end - begin
        copy(self, other, begin, end)

    monkeypatch.setattr(growing._Block, "copy", counted)
    monkeypatch.setattr(growing, "_SMALL_BYTES", 0)
    values, expected = made(np.zeros((100, 2))), np.zeros((100, 2))
    while values.length < 3000:
        copied.append(0)
        rows = np.full((count, 2), float(values.length))
        values, expected = appended(values, rows), np.concatenate([expected, rows])
    np.testing.assert_array_equal(arrays_of(values)[0], expected)
    assert sum(copied) < 2 * values.length
    assert max(copied) <= 6 * count


def test_a_sequence_that_joins_is_in_the_next_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row was copied before it joined."""
    monkeypatch.setattr(growing, "_SMALL_BYTES", 0)
    values, one = made(np.zeros((60, 2, 1))), made(np.full((60, 1, 1), 7.0))
    while values.length < 115:
        values = appended(values, np.zeros((1, 2, 1)))
    values = values.with_sequence([1], 1, one)
    while values.length < 130:
        values = appended(values, np.zeros((1, 2, 1)))
    found = arrays_of(values)[0]
    assert (found[55:115, 1] == 7).all()
    assert found.sum() == 60 * 7


def run_actions(actions: list[tuple[int, int, str]]) -> None:
    values = [(made(np.zeros((0, 1))), np.zeros((0, 1)))]
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
            np.testing.assert_array_equal(arrays_of(held)[0], wanted)


@pytest.mark.parametrize("bound", [None, 5000])
def test_large_values_are_not_copied_up_to_their_bound(monkeypatch: pytest.MonkeyPatch, bound: int | None) -> None:
    """A copy of a long past would take its memory twice."""
    monkeypatch.setattr(growing, "_RESERVED_BYTES", 1000)
    given: list[Any] = []

    def allocate(nbytes: int, ranges: Any) -> Any:
        given.append(ranges)
        return np.empty(nbytes, np.uint8)

    values = GrowingSet.of([np.zeros((700, 2)), np.zeros((700, 3))], [GrowingForm(0, bound=bound)] * 2, allocate)
    for _ in range(34):  # to 4100: before three quarters of a room without a bound
        values = appended(values, np.ones((100, 2)), np.ones((100, 3)))
    (ranges,) = given
    assert [end - start for start, end in ranges] == [700 * 16, 700 * 24]  # what is used at once
    assert len(values.blocks[0]) == (bound or 5600)


def test_memory_that_cannot_grow_is_a_typed_error_and_leaves_the_value() -> None:
    values = made(np.ones((2, 2)), np.ones((2, 3)))
    with pytest.raises(OutOfMemoryError, match=r"not enough memory for \d+ positions of 2 variables"):
        values.extended(1 << 58)
    grown = appended(values, np.zeros((1, 2)), np.zeros((1, 3)))
    assert arrays_of(grown)[0].tolist() == [[1, 1], [1, 1], [0, 0]]


def test_sequences_are_gathered() -> None:
    """In any order, also twice, of sets whose dimensions of sequences are before and behind the one that grows."""
    axes, batch_axes = [0, 2], [1, 0]
    random = np.random.default_rng(0)

    def some(length: int, count: int) -> tuple[GrowingSet, list[Any]]:
        arrays = [random.random((length, count, 3)), random.random((count, 2, length, 4)).astype(np.float32)]
        longer = made(*arrays, axes=axes).extended(1)
        for block in longer.blocks:
            block[length] = 9
        return longer.shortened(1), arrays

    (left, first), (right, second) = some(5, 2), some(3, 1)
    sources = [(right, 0, 3), (left, 1, 2), (left, 0, 5), (left, 0, 0)]
    found = arrays_of(GrowingSet.gathered(sources, batch_axes))
    expected = [np.zeros((5, 4, 3)), np.zeros((4, 2, 5, 4), np.float32)]
    for row, (source, index, count) in enumerate(sources):
        tokens, heads = first if source is left else second
        expected[0][5 - count :, row] = tokens[len(tokens) - count :, index]
        expected[1][row, :, 5 - count :] = heads[index, :, heads.shape[2] - count :]
    for each, wanted in zip(found, expected, strict=True):
        assert each.dtype == wanted.dtype
        np.testing.assert_array_equal(each, wanted)
    for each, wanted in zip(arrays_of(left), first, strict=True):
        np.testing.assert_array_equal(each, wanted)
    exact = GrowingSet.gathered(sources, batch_axes, has_room=False)
    assert [len(block) for block in exact.blocks] == [5, 5]
    longer = exact.extended(1).shortened(1)
    for each, wanted in zip(arrays_of(longer), expected, strict=True):
        np.testing.assert_array_equal(each, wanted)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("is_near_full", [False, True])
def test_sequences_are_shortened_by_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch, is_shared: bool, is_near_full: bool
) -> None:
    """They stay at the end; other sets of the same values, and a block that is prepared, are right afterwards."""
    if is_near_full:
        monkeypatch.setattr(growing, "_SMALL_BYTES", 0)
    random, axes, batch_axes = np.random.default_rng(0), [0, 2], [1, 0]
    arrays = [random.random((58, 3, 2)), random.random((3, 2, 58, 4)).astype(np.float32)]
    values = made(*arrays, axes=axes)
    if is_near_full:
        parts = [np.ones((1, 3, 2)), np.ones((1, 3, 2, 4), np.float32)]
        while values.length < 108:
            values = appended(values, *parts)
        arrays = [each.copy() for each in arrays_of(values)]
    other = values.shortened(0) if is_shared else None
    counts = [3, 1, 40]
    memory = values.blocks[0]
    values = values.shortened_each(batch_axes, counts)
    assert (values.blocks[0] is memory) == (not is_shared)
    length = arrays[0].shape[0]
    for _ in range(70):  # until the block is full
        for each, whole, axis, batch in zip(arrays_of(values), arrays, axes, batch_axes, strict=True):
            found = np.moveaxis(each, (batch, axis), (0, 1))[:, : length - 1]
            wanted = np.moveaxis(whole, (batch, axis), (0, 1))
            for row, one, count in zip(found, wanted, counts, strict=True):
                kept = length - count
                np.testing.assert_array_equal(row[len(row) - kept :], one[:kept])
                assert not row[: len(row) - kept].any()
        values = appended(values, np.full((1, 3, 2), 5.0), np.full((1, 3, 2, 4), 5.0, np.float32))
    if other is not None:
        for each, whole in zip(arrays_of(other), arrays, strict=True):
            np.testing.assert_array_equal(each, whole)
