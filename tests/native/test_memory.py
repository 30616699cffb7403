"""Memory for weights: in the right place, apart, and gone when nobody uses it."""

import numpy as np
import pytest

from engine.native.memory import WeightMemory

SIZES = [0, 1, 100_000, (1 << 20) + 4, 3 << 20, (4 << 20) + 1, 40 << 20]


def test_arrays_are_aligned_writable_and_apart() -> None:
    memory = WeightMemory()
    arrays = [memory.empty(nbytes) for nbytes in SIZES * 3]
    for number, array in enumerate(arrays):
        assert array.nbytes == 0 or array.ctypes.data % 64 == 0
        assert (array.nbytes, array.dtype) == (SIZES[number % len(SIZES)], np.uint8)
        array.fill(number)
    for number, array in enumerate(arrays):
        assert np.all(array == number)


def test_a_chunk_goes_with_its_last_array() -> None:
    memory = WeightMemory()
    first, second = memory.empty(1 << 20), memory.empty(2 << 20)
    chunk = memory._chunk
    assert chunk is not None
    del first
    assert chunk() is not None
    second.fill(7)
    del second
    assert chunk() is None
    assert memory.empty(1 << 20).nbytes == 1 << 20


def test_more_than_there_is_raises_memory_error() -> None:
    with pytest.raises(MemoryError):
        WeightMemory().empty(1 << 60)
