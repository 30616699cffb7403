"""Inputs from files of raw bytes: lengths follow from the type, and data that does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InputError
from engine.ir import PartialShape, TensorType, f32, i16, string
from engine.values.images import raw_value

NUMBERS = np.arange(12, dtype=np.float32)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [([3, 4], (3, 4)), ([12], (12,)), (["N", 4], (3, 4)), ([2, None, 3], (2, 2, 3)), (["N"], (12,))],
    ids=str,
)
def test_an_unknown_length_follows_from_the_number_of_bytes(
    shape: list[int | str | None], expected: tuple[int, ...]
) -> None:
    found = raw_value(NUMBERS.tobytes(), "x.bin", TensorType(f32, PartialShape(shape)))
    np.testing.assert_array_equal(found, NUMBERS.reshape(expected), strict=True)
    found[...] = 0


def test_a_scalar_is_one_element() -> None:
    found = raw_value(np.int16(-7).tobytes(), "x.bin", TensorType(i16, PartialShape([])))
    np.testing.assert_array_equal(found, np.array(-7, np.int16), strict=True)


@pytest.mark.parametrize(
    ("value_type", "words"),
    [
        (TensorType(f32, PartialShape([3, 5])), "48 bytes"),
        (TensorType(f32, PartialShape([3, 3])), "48 bytes"),
        (TensorType(f32, PartialShape(["N", 5])), "48 bytes"),
        (TensorType(f32, PartialShape(["N", "M"])), "48 bytes"),
        (TensorType(f32, PartialShape(["N", 0])), "48 bytes"),
        (TensorType(f32, PartialShape.dynamic()), "do not tell the shape"),
        (TensorType(string, PartialShape([3])), "strings cannot be read"),
    ],
    ids=str,
)
def test_bytes_that_do_not_fit_are_refused(value_type: TensorType, words: str) -> None:
    with pytest.raises(InputError, match=rf"x\.bin: .*{words}"):
        raw_value(NUMBERS.tobytes(), "x.bin", value_type)
