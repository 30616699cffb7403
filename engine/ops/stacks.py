"""The values that the iterations of a loop stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.limits import LARGE_BYTES, check_growth
from engine.ops.result_size import value_bytes


class Stacks:
    """For each stacked output of a loop, its value in each iteration."""

    __slots__ = ("_bytes", "_checked", "_title", "columns")

    def __init__(self, title: str, count: int) -> None:
        self.columns: list[list[Any]] = [[] for _ in range(count)]
        self._title = title
        self._bytes = 0
        self._checked = LARGE_BYTES

    def append(self, values: Sequence[Any]) -> None:
        """Add the values of one iteration. Raises `OutOfMemoryError` if the result would not fit into memory."""
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
            self._bytes += value_bytes(value)
        if self._bytes >= self._checked:
            self._checked = self._bytes + LARGE_BYTES
            check_growth(self._title, self._bytes)  # stacking them copies all
