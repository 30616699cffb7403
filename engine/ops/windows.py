"""Sliding windows of convolution and pooling: their attributes, and their geometry over an input.

All padding is resolved here: `WindowSpec` reads and checks the attributes, `Window` adds the kernel, and
`Window.at` returns the `WindowGeometry` over an input of known lengths, for evaluation and devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError, OperatorSpecError
from engine.ir import Dimension, Node, as_dimension
from engine.ops.rules import fail
from engine.ops.spec import OperatorSpec, check_choice, rank_of, refuse
from engine.ops.tensors import Array
from engine.startup import dataclass

Pads = tuple[tuple[int, int], ...]

_AUTO_PADS: Final = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class WindowGeometry:
    """A window over an input of known lengths; one entry for each spatial axis.

    Attributes:
        inputs: lengths of the input.
        outputs: lengths of the output; 0 if the window does not fit.
        kernel: positions of the window.
        strides: how far it moves.
        dilations: how far apart its positions are.
        pads_begin: positions added before the input; for a transposed convolution, positions of the full result
            that are removed before the output.
        pads_end: the same after the input; a last window of `ceil_mode` may extend beyond them. For a transposed
            convolution, negative if the output is longer than the full result.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]

    def reach(self, axis: int) -> int:
        """How many positions the window spans, gaps included."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def with_axes(self, count: int) -> WindowGeometry:
        """The same over `count` spatial axes; added leading axes have length 1."""
        missing = count - len(self.inputs)
        ones, zeros = (1,) * missing, (0,) * missing
        return WindowGeometry(
            ones + self.inputs, ones + self.outputs, ones + self.kernel, ones + self.strides, ones + self.dilations,
            zeros + self.pads_begin, zeros + self.pads_end,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """A window of `kernel` positions, `dilations` apart, that moves by `strides` over a padded input.

    Attributes:
        pads: how many positions are added before and behind the input, one pair for each axis; None if `auto_pad`
            decides by the input's length.
        ceil_mode: a last window that is cut off by the end counts, if it begins inside the input or the padding
            before it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads | None
    auto_pad: str = "NOTSET"
    ceil_mode: bool = False

    def at(self, lengths: Sequence[int]) -> WindowGeometry:
        """The geometry over an input of these lengths."""
        outputs = tuple(max(0, self.out_length(axis, length)) for axis, length in enumerate(lengths))
        pads = [self.pads_for(axis, length) for axis, length in enumerate(lengths)]
        begin, end = tuple(pair[0] for pair in pads), tuple(pair[1] for pair in pads)
        return WindowGeometry(tuple(lengths), outputs, self.kernel, self.strides, self.dilations, begin, end)

    def reach(self, axis: int) -> int:
        """How many positions the window spans, gaps included."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def pads_for(self, axis: int, length: int) -> tuple[int, int]:
        """The padding before and behind an axis of an input of `length`."""
        if self.pads is not None:
            return self.pads[axis]
        covered = (self.out_length(axis, length) - 1) * self.strides[axis] + self.reach(axis)
        return split_same(max(0, covered - length), self.auto_pad)

    def out_length(self, axis: int, length: int) -> int:
        """The number of positions of the window along an axis of `length`; less than 1 if it does not fit."""
        stride = self.strides[axis]
        if self.pads is None:
            return -(-length // stride)
        before, behind = self.pads[axis]
        room = length + before + behind - self.reach(axis)
        if not self.ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - 1 if (count - 1) * stride >= length + before else count

    def out_dim(self, axis: int, dim: Dimension) -> Dimension | None:
        """`out_length` for a length that may be unknown; None if the window fits no possible length."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(OperatorSpec):
    """The attributes of an operator that moves a window over [N, C, ...].

    Attributes:
        kernel_shape: the window's positions along each spatial axis; None if the weights' shape gives them.
        strides: one for each spatial axis; empty while their number is unknown and none are given.
        dilations: like `strides`.
        pads: before each spatial axis, then behind each: resolved, zeros for VALID; None if `auto_pad` is SAME_UPPER
            or SAME_LOWER, so that lengths decide; empty like `strides`.
        auto_pad: "NOTSET", "VALID", "SAME_UPPER" or "SAME_LOWER".
    """

    kernel_shape: tuple[int, ...] | None
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...] | None
    auto_pad: str

    @classmethod
    def resolve_window(cls, node: Node, given: dict[str, Any], data: Sequence[int] = (0,)) -> None:
        """`resolve` for the attributes of the window; `data` are the inputs that have its spatial axes.

        Attributes that the operator does not have get the value that they have by default elsewhere.
        """
        auto_pad = given["auto_pad"] = given.get("auto_pad") or "NOTSET"
        check_choice(node, "auto_pad", auto_pad, _AUTO_PADS)
        read = {name: tuple(given.get(name) or ()) for name in ("kernel_shape", "strides", "dilations", "pads")}
        axes = _spatial_axes(node, read["kernel_shape"], data)
        for name, values in read.items():
            if not values:
                continue
            sides = 2 if name == "pads" else 1
            axes = len(values) // sides if axes is None else axes
            low = 1 if name != "pads" else 0 if auto_pad == "NOTSET" else None  # other modes ignore the values
            _check_values(node, name, values, sides * axes, low)
        given["kernel_shape"] = read["kernel_shape"] or None
        for name in ("strides", "dilations"):
            given[name] = read[name] or (1,) * (axes or 0)
        pads = read["pads"] if auto_pad == "NOTSET" else ()
        given["pads"] = None if auto_pad.startswith("SAME") else pads or (0,) * (2 * (axes or 0))

    def window(self, kernel: Sequence[int], *, ceil_mode: bool = False) -> Window:
        """The window, whose kernel the weights or `kernel_shape` give."""
        axes = len(kernel)
        pads = None if self.pads is None else self.pads or (0,) * (2 * axes)
        ones = (1,) * axes
        return Window(
            tuple(kernel),
            self.strides or ones,
            self.dilations or ones,
            None if pads is None else tuple(zip(pads[:axes], pads[axes:], strict=True)),
            self.auto_pad,
            ceil_mode,
        )


def split_same(total: int, auto_pad: str) -> tuple[int, int]:
    """`total` positions before and behind an axis: SAME_UPPER has the odd one behind, other modes before."""
    less, more = total // 2, total - total // 2
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


def infer_spatial(node: Node, window: Window, spatial: Sequence[Dimension]) -> list[Dimension]:
    """The output's spatial dimensions. Raises `TypeInferenceError` if the window does not fit the input."""
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


def padded(x: Array, g: WindowGeometry, fill: Any) -> Array:
    """`x` [N, C, ...] with padding, and for windows that are cut off with more behind it.

    Raises `ModelError` if the window does not fit.
    """
    if min(g.outputs, default=1) < 1:
        raise ModelError(f"a window of {g.kernel} does not fit an input of shape {x.shape}")
    widths = []
    for axis, (length, out, before, behind) in enumerate(
        zip(g.inputs, g.outputs, g.pads_begin, g.pads_end, strict=True)
    ):
        needed = (out - 1) * g.strides[axis] + g.reach(axis)
        widths.append((before, max(behind, needed - length - before)))
    if not any(map(any, widths)):
        return x
    shape = (*x.shape[:2], *(a + length + b for (a, b), length in zip(widths, g.inputs, strict=True)))
    full = np.full(shape, fill, dtype=x.dtype)
    inside: Any = (..., *(slice(a, a + length) for (a, _), length in zip(widths, g.inputs, strict=True)))
    full[inside] = x
    return full


def offsets(g: WindowGeometry, counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Each position inside the window, with the slices of the padded input that it reads in `counts` windows."""
    for position in itertools.product(*map(range, g.kernel)):
        starts = [p * d for p, d in zip(position, g.dilations, strict=True)]
        yield (
            position,
            (
                ...,
                *(
                    slice(start, start + (count - 1) * stride + 1, stride)
                    for start, count, stride in zip(starts, counts, g.strides, strict=True)
                ),
            ),
        )


def counts(g: WindowGeometry, *, includes_padding: bool) -> Array:
    """How many positions of each window lie inside the input, or inside the input and its padding."""
    total = np.ones((), dtype=np.int64)
    for axis, (length, out, before, behind) in enumerate(
        zip(g.inputs, g.outputs, g.pads_begin, g.pads_end, strict=True)
    ):
        positions = np.arange(out)[:, None] * g.strides[axis] + np.arange(g.kernel[axis]) * g.dilations[axis] - before
        low, high = (-before, length + behind) if includes_padding else (0, length)
        inside = ((positions >= low) & (positions < high)).sum(axis=1)
        total = total[..., None] * inside
    return total


def _spatial_axes(node: Node, kernel: tuple[int, ...], data: Sequence[int]) -> int | None:
    """The number of spatial axes, from the first source that gives it: kernel_shape, then the ranks of inputs."""
    axes = len(kernel) or None
    source = f"kernel_shape {list(kernel)}"
    for index in data:
        rank = rank_of(node, index) if node.has_input(index) else None
        if rank is None:
            continue
        if rank < 3 or (axes is not None and rank != axes + 2):
            allowed = f"expected [N, C, ...] of rank {axes + 2} to fit {source}" if axes else "expected 3 or more"
            raise OperatorSpecError(f"{node}: input {index} has rank {rank}; {allowed}")
        if axes is None:
            axes, source = rank - 2, f"input {index} of rank {rank}"
    return axes


def _check_values(node: Node, name: str, values: tuple[int, ...], count: int, low: int | None) -> None:
    if len(values) != count or (low is not None and min(values) < low):
        refuse(node, name, list(values), f"{count} values" + ("" if low is None else f", {low} or more"))
