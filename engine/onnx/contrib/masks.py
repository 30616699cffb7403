"""The forms in which onnxruntime's attentions take masks, as the summands that ONNX's Attention adds to the scores."""

from __future__ import annotations

from typing import Final

from engine.ir import Dimension, Output, i32, i64
from engine.onnx.contrib.call import ContribCall
from engine.onnx.upgrades.emit import cast, emit, i64_scalar, i64s, rank_of, scalar_like
from engine.startup import dataclass

MASK_FILTER: Final = -10000.0
"""The number added to the scores of masked keys, unless an attribute says otherwise."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The number of keys, including past ones: as an i64 scalar, and as a number if it is known."""

    value: Output
    count: int | None

    @classmethod
    def of(cls, *lengths: tuple[Output, int]) -> Keys:
        """The sum of lengths, each the length of an axis of a value."""
        numbers = [length_of(value, axis) for value, axis in lengths]
        value = numbers[0] if len(numbers) == 1 else emit("Add", *numbers)
        dims = [value.shape[axis] if value.shape.rank.is_static else None for value, axis in lengths]
        counts = [dim.get_length() for dim in dims if dim is not None and dim.is_static]
        return cls(value, sum(counts) if len(counts) == len(lengths) else None)


def added_mask(call: ContribCall, index: int, *, keys: Keys, like: Output, has_pairs: bool = False) -> Output | None:
    """The numbers that input `index` adds to the scores [B, H, S, T]; None if it masks nothing.

    It is [B, T] or [B, S, T] and 0 for keys that are masked, or [B], the number of valid keys. With `has_pairs`, it may
    be [2 * B], the ends of the valid keys and then their starts, or [B, 1] or [1, 1], which mask nothing.

    Args:
        keys: T.
        like: a value whose first axis has the length B, of the type of the scores.

    Raises `ModelError` for other shapes, and `UnsupportedError` for an unknown rank.
    """
    given = call.typed(index, {i32})
    rank = rank_of(given)
    if rank is None:
        call.unsupported(f"the rank of {call.described(index)} is unknown", "state its shape in the model's value_info")
    if rank == 4:
        call.unsupported(f"{call.described(index)} has rank 4, a mask of the longest length", "give the mask [B, S, T]")
    if rank not in (1, 2, 3):
        call.invalid(f"{call.described(index)} has shape {given.shape}; expected rank 1, 2 or 3")
    if rank == 2 and has_pairs and given.shape[1] == 1:
        return None
    if rank > 1 and keys.count is not None and not given.shape[-1].accepts(keys.count):
        call.invalid(f"{call.described(index)} has shape {given.shape}; expected {keys.count} keys along its last axis")
    valid = _in_range(call, index, given, keys, like, has_pairs) if rank == 1 else emit("Greater", given, _zero())
    number = call.number("mask_filter_value", MASK_FILTER)
    added = emit("Where", valid, scalar_like(0.0, like), scalar_like(number, like))
    return emit("Unsqueeze", added, i64s([1, 2] if rank < 3 else [1]))


def _in_range(call: ContribCall, index: int, given: Output, keys: Keys, like: Output, has_pairs: bool) -> Output:
    """Whether each key is valid, [B, T], by the numbers [B] or [2 * B] of input `index`."""
    length, batch = given.shape[0], like.shape[0]
    positions = emit("Range", i64_scalar(0), keys.value, i64_scalar(1))
    numbers = cast(given, i64)
    is_known = length.is_static and batch.is_static
    if is_same(length, batch) or not has_pairs:
        if is_known and length != batch:
            call.invalid(f"{call.described(index)} has shape {given.shape}; expected [{batch}], one for each sample")
        return emit("Less", positions, emit("Unsqueeze", numbers, i64s([1])))
    if is_known and length.get_length() != 2 * batch.get_length():
        expected = f"[{batch}] or [{2 * batch.get_length()}]"
        call.invalid(f"{call.described(index)} has shape {given.shape}; expected {expected} for a batch of {batch}")
    ends, starts = _rows(numbers, like)
    return emit("And", emit("Less", positions, ends), emit("GreaterOrEqual", positions, starts))


def _rows(numbers: Output, like: Output) -> list[Output]:
    """The ends and the starts of valid keys, [B, 1] each; the starts are 0 if there are only ends."""
    batch = emit("Shape", like, start=0, end=1)
    single = emit("Expand", i64_scalar(0), emit("Concat", i64s([1]), batch, axis=0))
    rows = emit("Concat", emit("Reshape", numbers, emit("Concat", i64s([-1]), batch, axis=0)), single, axis=0)
    return [emit("Unsqueeze", emit("Gather", rows, i64_scalar(row), axis=0), i64s([1])) for row in (0, 1)]


def _zero() -> Output:
    return cast(i64_scalar(0), i32)


def is_same(a: Dimension, b: Dimension) -> bool:
    """Whether two lengths are known to be equal."""
    return a == b and (a.is_static or a.symbol is not None)


def length_of(value: Output, axis: int) -> Output:
    """The length of an axis, an i64 scalar."""
    return emit("Squeeze", emit("Shape", value, start=axis, end=axis + 1), i64s([0]))


def merged(first: Output | None, second: Output | None) -> Output | None:
    """The sum of two masks, each of which may be missing."""
    if first is None or second is None:
        return second if first is None else first
    return emit("Add", first, second)
