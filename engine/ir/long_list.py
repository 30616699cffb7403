"""Long lists in attributes, as those of tree ensembles: tuples that also have their elements as an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class LongList(tuple[Any, ...]):
    """A tuple of integers, of f32 values, or of texts, as a file stores them.

    Attributes:
        array: the numbers as an array of i64 or f32; None for texts.
    """

    array: NDArray[np.generic] | None

    @classmethod
    def of_numbers(cls, array: NDArray[np.generic]) -> LongList:
        """The list of the elements of an array, which must not change afterwards."""
        made = cls(array.tolist())
        made.array = array
        return made

    @classmethod
    def of_texts(cls, texts: list[str]) -> LongList:
        """The list of some texts."""
        made = cls(texts)
        made.array = None
        return made
