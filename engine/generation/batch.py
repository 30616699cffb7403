"""`Batch`: the tokens of the sequences of a generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import StateError
from engine.generation.sampling import Sampling
from engine.generation.speculation import copy_of
from engine.startup import dataclass

Array = NDArray[Any]


@dataclass(slots=True)
class Batch:
    """The tokens of a batch: as the model computes them, padded to one length, and without padding.

    `computed` columns of `ids` have been computed.
    """

    rows: list[list[int]]
    generated: list[list[bool]]
    """Which tokens of the rows were generated, not appended."""
    ids: Array
    mask: Array
    positions: Array
    randoms: list[np.random.Generator]
    ended: list[bool]
    computed: int = 0

    @classmethod
    def empty(cls, count: int, seed: int | None) -> Batch:
        """`count` sequences without tokens."""
        none = np.zeros((count, 0), np.int64)
        # A generator for each sequence: what it draws does not depend on the others.
        randoms = [np.random.default_rng(None if seed is None else [seed, row]) for row in range(count)]
        rows: list[list[int]] = [[] for _ in range(count)]
        return cls(rows, [[] for _ in rows], none, none.astype(bool), none, randoms, [False] * count)

    @property
    def length(self) -> int:
        """The number of columns."""
        return int(self.ids.shape[1])

    def copy(self) -> Batch:
        """The same, whose sequences draw the same numbers from now on."""
        made = self.extended([[] for _ in self.rows])
        made.randoms = [copy_of(random) for random in self.randoms]
        return made

    def seen(self, row: int, sampling: Sampling) -> tuple[Array, np.random.Generator, Array]:
        """The tokens of a row, what draws its numbers, and its generated tokens, as `Sampling.choose` takes them."""
        tokens = np.array(self.rows[row] if sampling.reads_tokens else [], np.int64)
        return tokens, self.randoms[row], tokens[np.array(self.generated[row][: len(tokens)], bool)]

    def extended(self, rows: Sequence[Sequence[int]], *, is_generated: bool = False) -> Batch:
        """With these tokens behind each sequence, and padding behind those of shorter rows."""
        width = max(map(len, rows))
        ids, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), bool)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
            mask[index, : len(row)] = True
        before = self.mask.sum(axis=1, dtype=np.int64)[:, None]
        positions = np.maximum(before + np.cumsum(mask, axis=1) - 1, 0)
        return Batch(
            [[*old, *new] for old, new in zip(self.rows, rows, strict=True)],
            [[*old, *[is_generated] * len(new)] for old, new in zip(self.generated, rows, strict=True)],
            np.concatenate([self.ids, ids], axis=1),
            np.concatenate([self.mask, mask], axis=1),
            np.concatenate([self.positions, positions], axis=1),
            self.randoms,
            list(self.ended),
            self.computed,
        )

    def compacted(self) -> Batch:
        """The sequences with the padding behind all tokens, also behind tokens appended to padded prompts."""
        columns = np.argsort(~self.mask, axis=1, kind="stable")
        kept = (self.ids, self.mask, self.positions)
        ids, mask, positions = (np.take_along_axis(each, columns, axis=1) for each in kept)
        return replace(self, ids=ids, mask=mask, positions=positions)

    def shortened(self, count: int) -> Batch:
        """Without the last `count` columns. Raises `StateError` if there is padding among them."""
        if not self.mask[:, self.length - count :].all():
            raise StateError(f"cannot rewind by {count} tokens: some of the sequences were padded among them")
        left = self.length - count
        return Batch(
            [row[: len(row) - count] for row in self.rows],
            [row[: len(row) - count] for row in self.generated],
            self.ids[:, :left],
            self.mask[:, :left],
            self.positions[:, :left],
            self.randoms,
            [False] * len(self.rows),
            min(self.computed, left),
        )

    def reordered(self, indices: Sequence[int]) -> Batch:
        """Sequence i continues sequence `indices[i]`, and draws the same numbers."""
        order = list(indices)
        return Batch(
            [list(self.rows[i]) for i in order],
            [list(self.generated[i]) for i in order],
            self.ids[order],
            self.mask[order],
            self.positions[order],
            [copy_of(self.randoms[i]) for i in order],
            [self.ended[i] for i in order],
            self.computed,
        )
