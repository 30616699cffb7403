"""`Checkpoints`: former values of the variables that inferences replace, such as the state of linear attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.runtime.growing import Held, plain
from engine.runtime.values import Array
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The variables before an inference.

    Attributes:
        lengths: the length of each variable that grows.
        replaced: the value of each that is replaced; None for its initial value. They are shared, not copied.
        order: which sequences they have now, after a reorder; None for all, in their order.
    """

    lengths: Mapping[str, int]
    replaced: Mapping[str, Held | None]
    order: Array | None = None

    def reordered(self, order: Array) -> Checkpoint:
        """The checkpoint after another reorder. Nothing is copied before it is used."""
        return Checkpoint(self.lengths, self.replaced, order if self.order is None else self.order[order])

    def values(self, batch_axes: Mapping[str, int | None]) -> dict[str, Held | None]:
        """The replaced variables with the sequences that they have now."""
        if self.order is None:
            return dict(self.replaced)
        found: dict[str, Held | None] = {}
        for name, value in self.replaced.items():
            axis = batch_axes[name]
            assert axis is not None  # as it was reordered
            found[name] = None if value is None else np.ascontiguousarray(np.take(plain(value), self.order, axis=axis))
        return found


class Checkpoints:
    """The last checkpoints of a request, of which at most `room` are kept; the newest is the last one.

    A checkpoint holds on to values which inferences have replaced: it takes their memory, and no time.
    """

    __slots__ = ("_kept", "room")

    def __init__(self, room: int = 0, kept: Sequence[Checkpoint] = ()) -> None:
        self.room = room
        self._kept = list(kept)[-room:] if room else []

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> Checkpoint:
        return self._kept[index]

    def add(self, made: Checkpoint) -> None:
        """Keep a checkpoint in place of the oldest one."""
        self._kept = [*self._kept, made][-self.room :]

    def without(self, count: int) -> Checkpoints:
        """These without the newest `count`."""
        return Checkpoints(self.room, self._kept[: len(self._kept) - count])

    def resized(self, room: int) -> Checkpoints:
        """The newest ones, at most `room`."""
        return Checkpoints(room, self._kept)

    def reordered(self, order: Array) -> Checkpoints:
        """These after sequence i has become sequence `order[i]`."""
        return Checkpoints(self.room, [each.reordered(order) for each in self._kept])

    def copy(self) -> Checkpoints:
        """Checkpoints for a fork, with the same values."""
        return Checkpoints(self.room, self._kept)

    def forget(self) -> None:
        """Drop all, since the values before the next inference do not follow from the former ones."""
        self._kept = []

    @property
    def nbytes(self) -> int:
        """The memory of the values, each counted once, even if a request still has it, too."""
        values = {id(value): value for each in self._kept for value in each.replaced.values() if value is not None}
        return sum(value.nbytes for value in values.values())
