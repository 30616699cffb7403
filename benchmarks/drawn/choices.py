"""Seeded choices of the widths, sizes, batches and lengths that networks usually have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

T = TypeVar("T")

WIDTHS: Final = (
    16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 120, 128, 144, 160, 168, 192, 240, 256, 288, 320, 384, 448, 512, 576, 672,
    768, 960, 1024, 1280, 1536, 2048,
)  # fmt: skip
SIZES: Final = (
    7, 8, 10, 12, 13, 14, 16, 19, 20, 24, 26, 28, 32, 38, 40, 48, 52, 56, 64, 75, 80, 96, 112, 128, 150, 160, 192, 224,
    256, 320, 384, 416, 448, 512,
)  # fmt: skip
# How often a batch is drawn: most networks run on one image or text.
_BATCHES: Final = (1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 32)
# Channels times size of usual maps: stages of networks have twice the channels where they have half the size.
_SMALLEST_MAP, _LARGEST_MAP = 600, 16384


class Choices:
    """Draws from a seed; the same calls in the same order give the same values."""

    def __init__(self, *seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))

    def one_of(self, *values: T) -> T:
        """One of the values, each as likely as another; repeat a value to make it more likely."""
        return values[int(self._random.integers(len(values)))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self._random.random() < probability)

    def batch(self) -> int:
        """A batch from 1 to 32, mostly 1."""
        return self.one_of(*_BATCHES)

    def width(self, least: int = 16, most: int = 2048, multiple: int = 1) -> int:
        """A usual number of channels or columns."""
        return self.one_of(*[width for width in WIDTHS if least <= width <= most and width % multiple == 0])

    def size(self, least: int = 7, most: int = 512, multiple: int = 1) -> int:
        """A usual height of a map."""
        return self.one_of(*[size for size in SIZES if least <= size <= most and size % multiple == 0])

    def channels(self, size: int, least: int = 16, most: int = 2048, multiple: int = 1) -> int:
        """The channels of a map of this size."""
        usual = [width for width in WIDTHS if _SMALLEST_MAP <= width * size <= _LARGEST_MAP]
        fitting = [width for width in usual if least <= width <= most and width % multiple == 0]
        return self.one_of(*(fitting or [self.width(least, most, multiple)]))

    def map(self, least: int = 7, most: int = 512, multiple: int = 1) -> tuple[int, int, int, int]:
        """The shape [N, C, H, W] of a map; most maps are square."""
        height = self.size(least, most)
        width = self.size(least, most) if self.chance(0.1) else height
        return self.batch(), self.channels(max(height, width), multiple=multiple), height, width

    def tokens(self, most: int = 1024) -> int:
        """The length of a sequence, such as of patches of an image or of a text."""
        usual = (16, 32, 49, 50, 64, 77, 100, 128, 144, 196, 197, 256, 257, 300, 384, 512, 576, 784, 1024)
        return self.one_of(*[length for length in usual if length <= most])

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """The values in another order."""
        return [values[int(index)] for index in self._random.permutation(len(values))]
