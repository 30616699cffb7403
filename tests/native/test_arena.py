"""The arena: a buffer that shares memory with a live one gives silently wrong results."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import native
from engine.errors import PlanError

Lifetime = tuple[int, int, int, int]


@st.composite
def lifetimes(draw: st.DrawFn) -> Lifetime:
    first = draw(st.integers(0, 20))
    alignment = 2 ** draw(st.integers(0, 8))
    return draw(st.integers(0, 4096)), alignment, first, first + draw(st.integers(0, 8))


@given(st.lists(lifetimes(), max_size=40))
def test_live_buffers_never_share_memory(buffers: list[Lifetime]) -> None:
    offsets, total, naive, bound = native.lay_out_arena(buffers)
    assert bound <= total
    assert total <= naive or any(alignment > 1 for _, alignment, _, _ in buffers)
    for i, (size, alignment, first, last) in enumerate(buffers):
        assert offsets[i] % alignment == 0
        assert size == 0 or offsets[i] + size <= total
        for j, (other_size, _, other_first, other_last) in enumerate(buffers[:i]):
            together = size and other_size and first <= other_last and other_first <= last
            apart = offsets[i] + size <= offsets[j] or offsets[j] + other_size <= offsets[i]
            assert not together or apart, (i, j)


@given(st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 20), st.integers(0, 8)), max_size=40))
def test_sharing_never_takes_more_than_not_sharing(buffers: list[tuple[int, int, int]]) -> None:
    equal = [(size * 64, 64, first, first + length) for size, first, length in buffers]
    _, total, naive, bound = native.lay_out_arena(equal)
    assert bound <= total <= naive
    assert naive == sum(size for size, _, _, _ in equal)


def test_a_chain_takes_two_buffers() -> None:
    offsets, total, naive, bound = native.lay_out_arena([(1 << 20, 64, i, i + 1) for i in range(50)])
    assert (total, naive, bound) == (2 << 20, 50 << 20, 2 << 20)
    assert set(offsets) == {0, 1 << 20}


def test_sizes_that_overflow_are_refused() -> None:
    with pytest.raises(PlanError, match="overflow"):
        native.lay_out_arena([(2**64 - 1, 64, 0, 1), (2**64 - 1, 64, 0, 1)])
