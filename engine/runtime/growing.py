"""`GrowingSet`: values that grow together in place, such as the keys and values of past tokens in all layers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfMemoryError
from engine.startup import dataclass

Array = NDArray[Any]
Ranges = Sequence[tuple[int, int]]
Allocate = Callable[[int, Ranges | None], Array]
"""Returns this many uninitialised bytes, of which these ranges, or all, are expected to be used. Raises MemoryError."""

_MIN_ROOM: Final = 64
_LINE: Final = 64
_SMALL_BYTES: Final = 1 << 22
"""A block of fewer bytes is copied at once when its room is used up."""
_RESERVED_BYTES: Final = 4 << 20
"""If values have so many bytes on average, addresses for all positions up to their bound are reserved, so that they are
never copied. Addresses take no memory, except for the rest of a huge page, which is as large as small values are."""
_RESERVED_ROOM: Final = 8
"""The room without a bound, in lengths."""
_COPIED: Final = 1024
"""Positions that are encoded at a time."""
_PRUNED: Final = 16
"""Freed sets of a block are removed from its list whenever the list has this many."""
_lock = threading.Lock()
"""Held while a place in a block is given to a set."""


class RowFormat(Protocol):
    """How a device stores the elements of a growing value if not unchanged: for example, with fewer bits."""

    def encode(self, array: Array) -> Array:
        """Elements as they are kept; all dimensions but the last one stay the same."""

    def decode(self, rows: Array) -> Array:
        """The elements of kept rows, as the model reads them."""


@dataclass(frozen=True, slots=True)
class GrowingForm:
    """The form of a growing value: the dimension that grows, which is not the last one, how elements are kept, and the
    most positions if they are known.
    """

    axis: int
    row_format: RowFormat | None = None
    bound: int | None = None

    def position_bytes(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
        """The bytes of one position of a value of this shape."""
        one = _kept(np.zeros((1, *shape[: self.axis], *shape[self.axis + 1 :]), dtype), self)
        return int(one.nbytes)


class GrowingSet:
    """Values of equal length; longer ones may begin with the same memory.

    Immutable, as variables' values are; but see `with_sequence`.

    Their elements lie in one block of memory, each value's elements together, with the dimension that grows first, so
    that a longer value needs no other distances between elements; the block has room for more. `extended` gives a set
    that shares the block, with new positions to be written; sets that continue the same one do not see each other's. A
    position that another set uses is not given again: then the block is copied, as it is when its room is used up.

    Attributes:
        length: of all values, in the dimension that grows.
    """

    __slots__ = ("__weakref__", "_block", "length")

    def __init__(self, block: _Block, length: int) -> None:
        self._block, self.length = block, length
        block.add(self)

    @classmethod
    def of(cls, arrays: Sequence[Array], forms: Sequence[GrowingForm], allocate: Allocate | None = None) -> GrowingSet:
        """A copy of arrays, which must have the same length. Raises `OutOfMemoryError`."""
        turned = [np.moveaxis(array, form.axis, 0) for array, form in zip(arrays, forms, strict=True)]
        none = [_kept(each[:0], form) for each, form in zip(turned, forms, strict=True)]
        values = [
            _Value(form, array.shape, array.dtype, each.shape[1:], each.dtype)
            for form, array, each in zip(forms, arrays, none, strict=True)
        ]
        (length,) = {len(each) for each in turned}
        block = _Block.of(values, length, allocate or _ordinary)
        for part, each, form in zip(block.arrays, turned, forms, strict=True):
            for start in range(0, length, _COPIED):  # since encoding takes several times the memory of what it gives
                part[start : min(start + _COPIED, length)] = _kept(each[start : start + _COPIED], form)
        return cls(block, length)

    @classmethod
    def gathered(
        cls, sources: Sequence[tuple[GrowingSet, int, int]], batch_axes: Sequence[int], *, has_room: bool = True
    ) -> GrowingSet:
        """A batch of sequences of sets: sequence i is the last `count` positions of sequence `index` of a set, for the
        triple (set, index, count) at i.

        It is as long as the longest; shorter ones have zeros before them. All sets must have values of equal forms and
        shapes, but for their lengths and numbers of sequences. Without `has_room`, its block has none for further
        positions. Raises `OutOfMemoryError`.
        """
        length = max(count for _, _, count in sources)
        first = sources[0][0]._block
        values = [
            value.with_sequences(axis, len(sources)) for value, axis in zip(first.values, batch_axes, strict=True)
        ]
        with _lock:
            block = _Block.of(values, length, first.allocate, has_room=has_room)
            for place, (value, axis) in enumerate(zip(values, batch_axes, strict=True)):
                turned = value.turned(axis)
                rows = np.moveaxis(block.arrays[place], turned, 0)
                for row, (given, index, count) in enumerate(sources):
                    rows[row][: length - count] = 0
                    one = np.moveaxis(given.blocks[place], turned, 0)[index]
                    rows[row][length - count : length] = one[given.length - count : given.length]
            return cls(block, length)

    def __len__(self) -> int:
        """The number of values."""
        return len(self._block.values)

    @property
    def arrays(self) -> list[GrowingArray]:
        """The values as arrays of the set, in order."""
        return [GrowingArray(self, index) for index in range(len(self))]

    @property
    def blocks(self) -> list[Array]:
        """The memory of each value: the dimension that grows first, with room for more, then the others in order."""
        return self._block.arrays

    def extended(self, count: int) -> GrowingSet:
        """A set with `count` more positions, which the caller writes into its blocks. Raises `OutOfMemoryError`."""
        with _lock:
            length, block = self.length + count, self._block
            if block.is_taken(self.length):
                block = _Block.of(block.values, length, block.allocate)
                block.copy(self._block, 0, self.length)
            elif length > block.room:
                block = block.successor(self.length, length)
            else:
                block.prepare(self.length, length)
            return GrowingSet(block, length)

    def shortened(self, count: int) -> GrowingSet:
        """Another set of the same values without their last `count` positions, if any."""
        with _lock:
            return GrowingSet(self._block, self.length - count)

    def with_sequence(self, batch_axes: Sequence[int], index: int, other: GrowingSet) -> GrowingSet:
        """These values, with sequence `index` replaced by the first one of `other`, which is at most as long.

        It gets the last positions, and zeros before them. The memory is changed in place if no other set has it: the
        caller, which alone holds this set, must not use it any more. Raises `OutOfMemoryError`.
        """
        with _lock:
            block = self._block
            if len(block.live()) > 1:
                block = _Block.of(block.values, self.length, block.allocate)
                block.copy(self._block, 0, self.length)
            block.forget_next()
            start = self.length - other.length
            for part, given, value, axis in zip(block.arrays, other.blocks, block.values, batch_axes, strict=True):
                turned = value.turned(axis)
                rows, one = np.moveaxis(part, turned, 0)[index], np.moveaxis(given, turned, 0)[0]
                rows[:start] = 0
                rows[start : self.length] = one[: other.length]
            return self if block is self._block else GrowingSet(block, self.length)

    def shortened_each(self, batch_axes: Sequence[int], counts: Sequence[int]) -> GrowingSet:
        """These values without the last `counts[i]` positions of sequence i, which are at the end of their rows then.

        The set becomes shorter by the least of the counts; sequences that lose more are moved, with zeros before them.
        If any is, the memory is changed in place as by `with_sequence`. Raises `OutOfMemoryError`.
        """
        least = min(counts)
        moved = [(index, count - least) for index, count in enumerate(counts) if count > least]
        with _lock:
            block, length = self._block, self.length - least
            if moved and len(block.live()) > 1:
                block = _Block.of(block.values, self.length, block.allocate)
                block.copy(self._block, 0, length)
            for place, (value, axis) in enumerate(zip(block.values, batch_axes, strict=True)):
                turned = value.turned(axis)
                for part, end in block.copies(place, length):
                    rows = np.moveaxis(part, turned, 0)
                    for index, shift in moved:
                        first = min(shift, end)
                        rows[index][first:end] = rows[index][: end - first]
                        rows[index][:first] = 0
            return GrowingSet(block, length)


class GrowingArray:
    """One value of a set.

    Attributes:
        group: the set, which the value keeps alive.
        index: its place there.
        shape: the shape of the value.
    """

    __slots__ = ("group", "index", "shape")

    def __init__(self, group: GrowingSet, index: int) -> None:
        self.group, self.index = group, index
        self.shape = group._block.values[index].shape(group.length)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the value, which its block may keep in another form."""
        return self.group._block.values[self.index].dtype

    @property
    def nbytes(self) -> int:
        """The bytes that the value takes, without the room for more."""
        return int(self._kept.nbytes)

    def array(self) -> Array:
        """The value as an array of its own."""
        form = self.group._block.values[self.index].form
        turned = self._kept if form.row_format is None else form.row_format.decode(self._kept)
        return np.array(np.moveaxis(turned, 0, form.axis), self.dtype, order="C")

    @property
    def _kept(self) -> Array:
        return self.group.blocks[self.index][: self.group.length]


Held = Array | GrowingArray
"""The value of a variable: an array, or the object that a device which appends in place has made from it."""


def plain(value: Any) -> Any:
    """The value of a variable as an array; any other object is returned as it is."""
    return value.array() if isinstance(value, GrowingArray) else value


@dataclass(frozen=True, slots=True)
class _Value:
    """The constant properties of a value: its form, a shape, and the shape and type of what is kept for a position."""

    form: GrowingForm
    like: tuple[int, ...]
    dtype: np.dtype[Any]
    kept: tuple[int, ...]
    kept_dtype: np.dtype[Any]

    def shape(self, length: int) -> tuple[int, ...]:
        axis = self.form.axis
        return (*self.like[:axis], length, *self.like[axis + 1 :])

    def turned(self, axis: int) -> int:
        """Where a dimension of the value is in memory, whose first dimension is the one that grows."""
        return axis + 1 if axis < self.form.axis else axis

    def with_sequences(self, axis: int, count: int) -> _Value:
        """The value of a batch of `count` sequences, whose dimension is `axis`."""
        like, kept = list(self.like), list(self.kept)
        like[axis] = kept[self.turned(axis) - 1] = count
        return replace(self, like=tuple(like), kept=tuple(kept))

    @property
    def position_bytes(self) -> int:
        return math.prod(self.kept) * self.kept_dtype.itemsize


class _Block:
    """Memory, and the sets that lie in it; used by one thread at a time.

    When it is nearly full, a block of twice the room takes over what is written, a part with each extension, so that
    no extension copies all of it.
    """

    __slots__ = ("_copied", "_next", "_sets", "_used", "allocate", "arrays", "room", "values")

    def __init__(self, values: list[_Value], room: int, allocate: Allocate, used: int | None = None) -> None:
        """Memory for `room` positions, of which `used`, or all, are expected to be used."""
        self.values, self.room, self.allocate = values, room, allocate
        sizes = [room * value.position_bytes for value in values]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size + -size % _LINE)
        ranges = None
        if used is not None:
            ranges = [(at, at + used * value.position_bytes) for at, value in zip(starts, values, strict=False)]
        memory = allocate(starts[-1], ranges)
        self.arrays = [
            memory[start : start + size].view(value.kept_dtype).reshape(room, *value.kept)
            for start, size, value in zip(starts, sizes, values, strict=False)
        ]
        self._sets: list[ref[GrowingSet]] = []
        self._used = 0  # by the longest set so far, which may have been freed
        self._next: _Block | None = None
        self._copied = 0  # the positions that `_next` has

    @classmethod
    def of(cls, values: list[_Value], length: int, allocate: Allocate, *, has_room: bool = True) -> _Block:
        """A block for a length and further positions, or only for the length; its memory is used as it is written."""
        each = sum(value.position_bytes for value in values)
        bounds = [value.form.bound for value in values]
        bound = None if None in bounds else max((x for x in bounds if x is not None), default=None)
        double = max(2 * length, _MIN_ROOM)
        attempts: list[tuple[int, int | None]] = [(length, None)]
        if has_room:
            attempts.insert(0, (double, None))
            if length * each >= len(values) * _RESERVED_BYTES:
                reserved = _RESERVED_ROOM * length if bound is None else max(bound, length)
                attempts.insert(0, (reserved, length))
        for room, used in attempts:
            try:
                return cls(values, room, allocate, used)
            except (MemoryError, ValueError, OverflowError) as e:
                error = e
        raise OutOfMemoryError(
            f"not enough memory for {length} positions of {len(values)} variables, {each} bytes for each position; the "
            "request keeps the values that it had"
        ) from error

    def copy(self, other: _Block, begin: int, end: int) -> None:
        """Take positions of another block of the same values."""
        for new, old in zip(self.arrays, other.arrays, strict=True):
            new[begin:end] = old[begin:end]

    def prepare(self, known: int, length: int) -> None:
        """Copy a part of the positions of a set of `known` ones, which becomes `length` long, into the next block."""
        self._copied = min(self._copied, known)  # others may have been written since, behind a shorter set
        if length == known or 4 * length < 3 * self.room or self.room * self._position_bytes < _SMALL_BYTES:
            return
        if all(value.form.bound is not None and value.form.bound <= self.room for value in self.values):
            return  # it is never used up
        if self._next is None:
            try:
                made = _Block.of(self.values, self.room, self.allocate)
            except OutOfMemoryError:
                return  # an error only when the room is used up
            self._next, self._copied = made if made.room > self.room else None, 0
        if self._next is not None:
            # Of what is to be copied until the room is used up, as much as the set grows of the room that is left.
            share = -(-(self.room - self._copied) * (length - known) // (self.room - known))
            end = min(known, self._copied + share)
            self._next.copy(self, self._copied, end)
            self._copied = max(self._copied, end)

    def successor(self, known: int, length: int) -> _Block:
        """A block for `length` positions that has the `known` ones of a set. Raises `OutOfMemoryError`."""
        made, begin = self._next, min(self._copied, known)
        if made is None or made.room < length:
            made, begin = _Block.of(self.values, length, self.allocate), 0
        made.copy(self, begin, known)
        self.forget_next()
        return made

    def copies(self, place: int, length: int) -> list[tuple[Array, int]]:
        """Where a value of `length` positions is: the memory, and how many positions it has, here and in the next
        block.
        """
        found = [(self.arrays[place], length)]
        if self._next is not None:
            self._copied = min(self._copied, length)
            found.append((self._next.arrays[place], self._copied))
        return found

    def forget_next(self) -> None:
        """Begin anew with the next block, whose content is used, or no longer right."""
        self._next, self._copied = None, 0

    @property
    def _position_bytes(self) -> int:
        return sum(value.position_bytes for value in self.values)

    def add(self, made: GrowingSet) -> None:
        """Record a set for as long as it exists."""
        if len(self._sets) >= _PRUNED:
            self._sets = [known for known in self._sets if known() is not None]
        self._sets.append(ref(made))
        self._used = max(self._used, made.length)

    def is_taken(self, length: int) -> bool:
        """Whether a set uses positions from `length` on."""
        if self._used > length:
            self._used = max((found.length for found in self.live()), default=0)
        return self._used > length

    def live(self) -> list[GrowingSet]:
        """The sets that exist."""
        return [found for known in self._sets if (found := known()) is not None]


def _kept(array: Array, form: GrowingForm) -> Array:
    """An array whose first dimension grows, as its elements are kept."""
    return array if form.row_format is None else form.row_format.encode(array)


def _ordinary(nbytes: int, _: Ranges | None) -> Array:
    return np.empty(nbytes, np.uint8)
