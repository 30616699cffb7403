"""Sequences that one request computes together, and which of them it pays to compute together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.generation.adapter import Adapter
from engine.generation.stream import Stream
from engine.plugin_api import AsyncInferRequest
from engine.startup import dataclass

Array = NDArray[Any]

_ROWS_OF_WEIGHTS: Final = 8
"""How many rows are computed in the time in which the weights are read: 4 of 8 bits and 16 of f32 on Zen 4."""

_NONE: Final = MappingProxyType[Stream, Sequence[int]]({})


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """Sequences of one request, a row each.

    All rows append at the same column, so that a sequence has the last columns of its row, and others are masked.

    Attributes:
        request: its variables have the keys and values.
        streams: the sequences by row; None for a row whose sequence has left.
        columns: the positions of the variables.
        pause: how many tokens the last pause between proposals took.
        left: how many tokens are left until the next proposal, if proposals are of little use.
    """

    request: AsyncInferRequest
    streams: list[Stream | None]
    columns: int
    pause: int = 0
    left: int = 0

    @property
    def members(self) -> list[tuple[int, Stream]]:
        """The rows that have a sequence, and their sequences."""
        return [(row, stream) for row, stream in enumerate(self.streams) if stream is not None]

    @property
    def adapters(self) -> list[Adapter | None]:
        """The adapter of each row."""
        return [None if stream is None else stream.adapter for stream in self.streams]

    @property
    def is_settled(self) -> bool:
        """Whether all tokens of its sequences but the last ones are computed."""
        return all(stream.computed == len(stream.sequence) - 1 for _, stream in self.members)

    @property
    def longest(self) -> int:
        """The positions that the longest sequence has."""
        return max((stream.computed for _, stream in self.members), default=0)

    def inputs(self, proposed: Mapping[Stream, Sequence[int]] = _NONE) -> tuple[Array, Array, Array]:
        """The tokens that are not computed and those proposed behind them, which columns are seen, and the positions.

        Rows with fewer tokens get others behind them, which no token before them sees.
        """
        rows = {
            row: [*stream.sequence[stream.computed :].tolist(), *proposed.get(stream, ())]
            for row, stream in self.members
        }
        width = max(map(len, rows.values()))
        ids, positions = (np.zeros((len(self.streams), width), np.int64) for _ in range(2))
        starts = np.zeros((len(self.streams), 1), np.int64)
        for row, stream in self.members:
            ids[row, : len(rows[row])], starts[row] = rows[row], stream.computed
            # The positions behind the proposed tokens may be more than the model has.
            positions[row] = stream.computed + np.minimum(np.arange(width), len(rows[row]) - 1)
        # A row without a sequence sees its own tokens only, since a row that sees none may be NaN.
        return ids, np.arange(self.columns + width) >= self.columns - starts, positions


@dataclass(frozen=True, slots=True)
class RunCost:
    """What the next tokens of a group cost, in bytes that are read; computing a row counts as a part of the weights.

    Attributes:
        weights: the bytes of the weights, which a run of any number of rows reads once.
        position: the bytes of a sequence's keys and values at one position.
    """

    weights: int
    position: int

    def of_run(self, rows: int, columns: int) -> int:
        """The cost of computing a token for each row."""
        return self.weights + rows * (self.weights // _ROWS_OF_WEIGHTS + columns * self.position)

    def of_copy(self, rows: int, columns: int) -> int:
        """The cost of moving sequences into another group: they are read, and written into memory that is new."""
        return 3 * rows * columns * self.position


def divided(lengths: Sequence[int], cost: RunCost) -> list[list[int]]:
    """The groups, as indices of `lengths`, whose runs cost least together.

    A group is as long as its longest sequence, so one has sequences of neighbouring lengths. Takes O(n^2).
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    longest = np.array([lengths[index] for index in order], np.float64) * cost.position
    least = np.zeros(len(order) + 1)
    starts = [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        # The last group begins at any of the sequences before; the constant part of a row's cost is the same for all.
        totals = least[:end] + cost.weights + np.arange(end, 0, -1) * longest[:end]
        starts[end] = int(totals.argmin())
        least[end] = totals[starts[end]]
    groups, end = [], len(order)
    while end:
        groups.append(order[starts[end] : end])
        end = starts[end]
    return groups[::-1]


@dataclass(frozen=True, slots=True)
class Division:
    """How running sequences would be divided into groups for their next tokens to cost least.

    Attributes:
        parts: the groups that do not exist yet.
        saved: what each token of all sequences would cost less.
        price: the cost of making the groups.
    """

    parts: list[list[Stream]]
    saved: int
    price: int


def division_of(groups: Sequence[SequenceGroup], cost: RunCost) -> Division:
    """The best division of the sequences of groups; without parts, if it saves nothing."""
    streams = [stream for group in groups for _, stream in group.members]
    now = sum(cost.of_run(len(group.streams), group.columns) for group in groups)
    known = {
        frozenset(stream for _, stream in group.members)
        for group in groups
        if None not in group.streams and group.longest == group.columns
    }
    parts = [[streams[index] for index in part] for part in divided([each.computed for each in streams], cost)]
    sizes = [(part, len(part), max(stream.computed for stream in part)) for part in parts]
    saved = now - sum(cost.of_run(rows, columns) for _, rows, columns in sizes)
    new = [each for each in sizes if frozenset(each[0]) not in known]
    if saved <= 0 or not new:
        return Division([], 0, 0)
    return Division([part for part, _, _ in new], saved, sum(cost.of_copy(*size) for _, *size in new))
