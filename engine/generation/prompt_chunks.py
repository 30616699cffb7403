"""`PromptChunks`: how many tokens of a prompt are computed between two tokens of running sequences."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

_SHARE: Final = 1.5
"""The time for prompts between two tokens, of the time of a token: the gap is then 2.5 times the shortest one."""
_SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_FIRST: Final = 16
"""The size of chunks of which nothing is known."""
_GROWTH: Final = 0.77
"""Twice the size is expected to take 1.7 times the time, where it was not measured: it takes 1 to 2 times the time. If
it takes twice the time, the gap is still less than 3 times the shortest one."""
_PLANNED: Final = 2
"""How many first times of a size do not count, since plans are made: for the size, and for its family."""
_KEPT: Final = 4


class PromptChunks:
    """Chooses sizes of chunks by their times, which it is told."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=16)
        self._chunks: dict[int, deque[float]] = {}
        self._counts = dict.fromkeys(_SIZES, 0)

    @property
    def allowed(self) -> float:
        """The seconds for prompts between two tokens; infinity if no token has been computed."""
        return _SHARE * median(self._steps) if self._steps else float("inf")

    def note_step(self, seconds: float) -> None:
        """Take note of the time of a token of all running sequences."""
        self._steps.append(seconds)

    def note_chunk(self, size: int, seconds: float) -> None:
        """Take note of the time of a chunk."""
        if size not in self._counts:
            return
        self._counts[size] += 1
        if self._counts[size] > _PLANNED:
            self._chunks.setdefault(size, deque(maxlen=_KEPT)).append(seconds)

    def size(self, seconds: float) -> int:
        """The largest size of a chunk that takes so long at most; 0 if none does."""
        if seconds <= 0:
            return 0
        known = sorted((size, min(times)) for size, times in self._chunks.items())
        if not known or seconds == float("inf"):
            return _FIRST
        chosen = 0
        for size in _SIZES:
            each, time = next((pair for pair in reversed(known) if pair[0] <= size), known[0])
            if size > 2 * each or time * (size / each) ** (_GROWTH if size > each else 1.0) > seconds:
                break
            chosen = size
        return chosen
