"""The cache of a GroupQueryAttention with `sliding_window_cache`, which has the last keys of each sequence only.

The past is a buffer of C positions, at least as many as the window W. Its first `end` positions hold the last tokens,
in order. While there is room, new ones are appended. Otherwise the first ones leave, in blocks of C - W + 1, so that
what stays is never less than a window, and that `end` follows from the number of tokens alone.

A past of length 0 is also accepted, with which a sequence begins; the next one then has W positions.
"""

from __future__ import annotations

from engine.ir import Output
from engine.onnx.contrib.call import ContribCall
from engine.onnx.contrib.masks import length_of
from engine.onnx.upgrades.emit import emit, i64_scalar, i64s
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class WindowedCache:
    """The positions of past and new keys side by side, [B, HK, C + S, D].

    Attributes:
        window: W.
        capacity: C, an i64 scalar.
        before: how many tokens each sequence has had, [B].
        total: how many it has with the new ones, [B].
        new: S, an i64 scalar.
    """

    window: int
    capacity: Output
    before: Output
    total: Output
    new: Output

    @classmethod
    def of(cls, call: ContribCall, window: int | None, past: Output, before: Output, last: Output) -> WindowedCache:
        """The cache of a call. Raises `ModelError` and `UnsupportedError`."""
        if window is None:
            call.invalid("attribute `local_window_size` is -1; expected 1 or more, as `sliding_window_cache` is 1")
        if call.num_outputs <= 2:
            call.invalid("outputs present_key and present_value are omitted; `sliding_window_cache` requires them")
        if call.has_input(10):
            call.unsupported(
                f"{call.described(10)} is given with `sliding_window_cache`, whose keys have no columns of their own",
                "write the model with a whole cache",
            )
        length = past.shape[2] if past.shape.rank.is_static else None
        if length is not None and length.is_static and 0 < length.min < window:
            call.invalid(f"{call.described(3)} has shape {past.shape}; expected a window of {window} positions or more")
        total = emit("Add", last, i64_scalar(1))
        return cls(window, length_of(past, 2), before, total, length_of(call.input(0), 1))

    def visible(self, rows: Output) -> Output:
        """Which keys each query sees, [B, 1, S, C + S]; `rows` are 0 to S."""
        keys = emit("Range", i64_scalar(0), emit("Add", self.capacity, self.new), i64_scalar(1))
        end = emit("Unsqueeze", self._end(self.before), i64s([1]))  # [B, 1]
        # New keys count from `end` on; the elements of the buffer behind it are unused.
        new = emit("Add", emit("Sub", keys, self.capacity), end)
        is_new = emit("GreaterOrEqual", keys, self.capacity)
        nobody = emit("Where", is_new, new, i64_scalar(1 << 62))
        places = emit("Unsqueeze", emit("Where", emit("Less", keys, end), keys, nobody), i64s([1, 2]))
        own = emit("Unsqueeze", emit("Add", end, rows), i64s([1, 3]))
        since = emit("Sub", own, i64_scalar(self.window))
        return emit("And", emit("LessOrEqual", places, own), emit("Greater", places, since))

    def kept(self, values: Output, heads: int, size: int) -> Output:
        """The next past of past and new keys or values, [B, HK, C + S, D].

        A past without room for a window that lacks tokens is read out of range, which is an error.
        """
        end, length = self._end(self.before), emit("Add", self.capacity, self.new)
        count = emit("Sub", emit("Add", end, self.total), self.before)  # the old and new ones in the order of tokens
        first = emit("Unsqueeze", emit("Sub", count, self._end(self.total)), i64s([1]))
        places = emit("Add", emit("Range", i64_scalar(0), self._room(), i64_scalar(1)), first)
        last = emit("Unsqueeze", emit("Sub", count, i64_scalar(1)), i64s([1]))
        places = emit("Max", emit("Min", places, last), i64_scalar(0))  # those behind the end have no meaning
        end = emit("Unsqueeze", end, i64s([1]))
        moved = emit("Add", emit("Sub", places, end), self.capacity)
        places = emit("Unsqueeze", emit("Where", emit("Less", places, end), places, moved), i64s([1]))  # [B, 1, C]
        batch = length_of(values, 0)
        samples = emit("Unsqueeze", emit("Range", i64_scalar(0), batch, i64_scalar(1)), i64s([1, 2]))
        blocks = emit("Add", emit("Mul", samples, i64_scalar(heads)), emit("Unsqueeze", i64s(range(heads)), i64s([1])))
        rows = emit("Add", emit("Mul", blocks, length), places)
        lacks = emit("Unsqueeze", emit("Greater", end, self.capacity), i64s([2]))
        beyond = emit("Mul", emit("Mul", batch, i64_scalar(heads)), length)
        rows = emit("Where", lacks, beyond, rows)
        return emit("Gather", emit("Reshape", values, i64s([-1, size])), rows, axis=0)

    def _room(self) -> Output:
        """The positions of the next past."""
        return emit("Max", self.capacity, i64_scalar(self.window))

    def _end(self, tokens: Output) -> Output:
        """How many positions of the buffer have tokens, after this many tokens of a sequence."""
        room = self._room()
        block = emit("Sub", room, i64_scalar(self.window - 1))
        over = emit("Max", emit("Sub", tokens, room), i64_scalar(0))
        blocks = emit("Div", emit("Add", over, emit("Sub", block, i64_scalar(1))), block)
        return emit("Sub", tokens, emit("Mul", blocks, block))
