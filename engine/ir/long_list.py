"""Long lists in attributes, as in tree ensembles: tuples that also have their elements as an array."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LONG: Final = 4096
"""Elements of a long list, such as in a tree ensemble; nodes have all tuples of this length as `LongList`s."""

PART: Final = 1 << 16
"""Elements that are converted at a time, as one call that holds the interpreter's lock: other threads run between."""


class LongList(tuple[Any, ...]):
    """A tuple of integers, of f32 values, or of texts, as a file stores them; or any other long tuple.

    Attributes:
        array: the numbers as an array of i64 or f32; None for texts, and for numbers that are not from a file.
        derived: values computed from the list, which live no longer than it. Kept here because tuples have no weak
            references.
    """

    array: NDArray[np.generic] | None = None
    derived: dict[object, Any]

    def __new__(cls, values: Iterable[Any]) -> LongList:
        """The list of some values."""
        made = super().__new__(cls, values)
        made.derived = {}
        return made

    @classmethod
    def of_numbers(cls, array: NDArray[np.generic]) -> LongList:
        """The list of the elements of an array, which must not change afterwards."""
        parts = (array[start : start + PART].tolist() for start in range(0, len(array), PART))
        made = cls(chain.from_iterable(parts))
        made.array = array
        return made

    @classmethod
    def of_texts(cls, texts: list[str]) -> LongList:
        """The list of these texts; `array` is None."""
        return cls(texts)
