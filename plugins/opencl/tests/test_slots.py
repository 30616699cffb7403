"""Values that share device memory. If this fails, a value overwrites another that is still needed."""

from __future__ import annotations

from engine_opencl.memory.slots import slots_of
from engine_opencl.plan import Buffer
from hypothesis import given
from hypothesis import strategies as st

BUFFERS = st.lists(
    st.builds(
        lambda nbytes, first, length: Buffer(nbytes, first=first, last=first + length, offset=0),
        st.integers(1, 1000),
        st.integers(-1, 12),
        st.integers(0, 6),
    ),
    max_size=25,
)


@given(BUFFERS)
def test_values_that_live_at_the_same_time_have_separate_slots(buffers: list[Buffer]) -> None:
    slots, sizes = slots_of(buffers)
    for number, one in enumerate(buffers):
        assert one.byte_size <= sizes[slots[one]]
        for other in buffers[:number]:
            if one.first <= other.last and other.first <= one.last:
                assert slots[one] != slots[other]


def test_a_chain_needs_two_slots() -> None:
    chain = [Buffer(100 + n, first=n, last=n + 1, offset=0) for n in range(20)]
    assert len(slots_of(chain)[1]) == 2
