"""The geometry of sliding windows, shared by the type rules and the evaluation of convolution and pooling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Dimension, Node, PartialShape, as_dimension
from engine.ops.registry import get_op
from engine.ops.rules import fail
from engine.ops.tensors import Array


@dataclass(frozen=True, slots=True)
class Window:
    """A window of `kernel` positions, `dilations` apart, that moves by `strides` over a padded input.

    Attributes:
        pads: how many positions are added before and after the input, one pair an axis; None where `auto_pad`
            decides by the input's length.
        ceil_mode: a last window that is cut off by the end counts, if it begins inside the input or the padding
            before it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...] | None
    auto_pad: str
    ceil_mode: bool

    @classmethod
    def make(
        cls,
        kernel: Sequence[int],
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
    ) -> Window:
        """From the attributes of an operator. Raises `ModelError` naming the one that does not fit."""
        rank = len(kernel)
        ones = (1,) * rank
        window_strides, window_dilations = tuple(strides or ones), tuple(dilations or ones)
        flat_pads = tuple(pads or (0,) * (2 * rank))
        for name, values, expected in (
            ("kernel_shape", tuple(kernel), rank),
            ("strides", window_strides, rank),
            ("dilations", window_dilations, rank),
            ("pads", flat_pads, 2 * rank),
        ):
            low = 0 if name == "pads" else 1
            if len(values) != expected or (min(values, default=low) < low and auto_pad in ("NOTSET", "")):
                raise ModelError(f"{name} {list(values)} must be {expected} values, {low} or more")
        if auto_pad not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
            raise ModelError(f"auto_pad {auto_pad!r} must be NOTSET, VALID, SAME_UPPER or SAME_LOWER")
        pairs = tuple(zip(flat_pads[:rank], flat_pads[rank:], strict=True))
        if auto_pad == "VALID":
            pairs = ((0, 0),) * rank
        by_length = auto_pad in ("SAME_UPPER", "SAME_LOWER")
        return cls(
            tuple(kernel), window_strides, window_dilations, None if by_length else pairs, auto_pad, bool(ceil_mode)
        )

    def reach(self, axis: int) -> int:
        """How many positions the window spans, gaps included."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def pads_for(self, lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The padding before and after each axis of an input of these lengths."""
        if self.pads is not None:
            return self.pads
        pairs = []
        for axis, length in enumerate(lengths):
            total = max(0, (self.out_length(axis, length) - 1) * self.strides[axis] + self.reach(axis) - length)
            less, more = total // 2, total - total // 2
            pairs.append((less, more) if self.auto_pad == "SAME_UPPER" else (more, less))
        return tuple(pairs)

    def out_length(self, axis: int, length: int) -> int:
        """How many positions the window takes along an axis of `length`; less than 1 where it does not fit."""
        stride = self.strides[axis]
        if self.pads is None:
            return -(-length // stride)
        before, after = self.pads[axis]
        room = length + before + after - self.reach(axis)
        if not self.ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - 1 if (count - 1) * stride >= length + before else count

    def out_dim(self, axis: int, dim: Dimension) -> Dimension | None:
        """`out_length` for a length that may be unknown; None where the window fits no possible length."""
        if self.strides[axis] == 1 and (
            self.pads is None or (sum(self.pads[axis]) == self.reach(axis) - 1 and not self.ceil_mode)
        ):
            return dim
        low = self.out_length(axis, dim.min)
        high = None if dim.max is None else self.out_length(axis, dim.max)
        if high is not None and high < 1 and dim.max:
            return None
        low = max(low, 0)
        if high is None:
            return Dimension.at_least(low)
        return as_dimension(low) if low == max(high, 0) else Dimension(low, high)


def infer_spatial(node: Node, window: Window, spatial: PartialShape) -> list[Dimension]:
    """The output's spatial dimensions. Raises `TypeInferenceError` where the window does not fit the input."""
    dims = []
    for axis, dim in enumerate(spatial):
        out = window.out_dim(axis, dim)
        if out is None:
            fail(
                node,
                f"a window of {window.reach(axis)} does not fit spatial dimension {axis} of length {dim}, "
                f"padding {window.pads[axis] if window.pads else 'automatic'}",
            )
        dims.append(out)
    return dims


def window_of(node: Node, kernel: Sequence[int]) -> Window:
    """The window that the attributes of `node` describe. Raises `TypeInferenceError`."""
    given = node.attributes
    has_ceil_mode = "ceil_mode" in get_op(node.op_type, node.domain).attributes
    try:
        return Window.make(
            kernel,
            given.get("strides"),
            given.get("dilations"),
            given.get("pads"),
            given.get("auto_pad", "NOTSET"),
            given.get("ceil_mode", 0) if has_ceil_mode else 0,
        )
    except ModelError as e:
        fail(node, str(e), e)


def padded(x: Array, window: Window, fill: Any) -> tuple[Array, tuple[int, ...]]:
    """`x` [N, C, ...] with the window's padding and, for cut-off last windows, more behind it; the output lengths."""
    lengths = x.shape[2:]
    outs = tuple(window.out_length(axis, length) for axis, length in enumerate(lengths))
    if min(outs, default=1) < 1:
        raise ModelError(f"a window of {window.kernel} does not fit an input of shape {x.shape}")
    pads = window.pads_for(lengths)
    widths = []
    for axis, (length, out, (before, after)) in enumerate(zip(lengths, outs, pads, strict=True)):
        needed = (out - 1) * window.strides[axis] + window.reach(axis)
        widths.append((before, max(after, needed - length - before)))
    if not any(map(any, widths)):
        return x, outs
    shape = (*x.shape[:2], *(a + length + b for (a, b), length in zip(widths, lengths, strict=True)))
    full = np.full(shape, fill, dtype=x.dtype)
    inside: Any = (..., *(slice(a, a + length) for (a, _), length in zip(widths, lengths, strict=True)))
    full[inside] = x
    return full, outs


def offsets(window: Window, outs: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Each position inside the window, with the slices of the padded input that it reads for all outputs at once."""
    for position in itertools.product(*map(range, window.kernel)):
        starts = [p * d for p, d in zip(position, window.dilations, strict=True)]
        yield (
            position,
            (
                ...,
                *(
                    slice(start, start + (out - 1) * stride + 1, stride)
                    for start, out, stride in zip(starts, outs, window.strides, strict=True)
                ),
            ),
        )


def counts(window: Window, lengths: Sequence[int], outs: Sequence[int], includes_padding: bool) -> Array:
    """How many positions of each window lie inside the input, or inside the input and its padding: shape `outs`."""
    pads = window.pads_for(lengths)
    total = np.ones((), dtype=np.int64)
    for axis, (length, out, (before, after)) in enumerate(zip(lengths, outs, pads, strict=True)):
        positions = (
            np.arange(out)[:, None] * window.strides[axis]
            + np.arange(window.kernel[axis]) * window.dilations[axis]
            - before
        )
        low, high = (-before, length + after) if includes_padding else (0, length)
        inside = ((positions >= low) & (positions < high)).sum(axis=1)
        total = total[..., None] * inside
    return total
