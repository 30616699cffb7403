"""Strided arrays and the step that copies between them, used by most operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import ElementType, f32, i8, u8
from engine.lowering import Refusal, RefusalCause, check_types
from engine.native import Attribute
from engine.startup import dataclass
from engine_cpu.cache_formats import F32
from engine_cpu.in_place import InPlace
from engine_cpu.layout import BLOCK, Layout, item_size, padded_channels
from engine_cpu.segment import SegmentBuilder

MAX_DIMS: Final = 12
"""The maximum number of dimensions of the copy kernels."""


@dataclass(frozen=True, slots=True)
class Strided:
    """Some elements of a buffer as an array; strides and the offset are in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def row_major(cls, shape: Sequence[int]) -> Strided:
        """All elements of a buffer in their order."""
        strides = [1] * len(shape)
        for axis in range(len(shape) - 1, 0, -1):
            strides[axis - 1] = strides[axis] * shape[axis]
        return cls(tuple(shape), tuple(strides))

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are contiguous, or there are none."""
        if 0 in self.shape:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def permute(self, order: Sequence[int]) -> Strided:
        """The same elements with the axes in another order: axis `order[i]` becomes axis i."""
        return Strided(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def split(self, axis: int, *sizes: int) -> Strided:
        """One axis as several, the last of which moves fastest."""
        stride = self.strides[axis]
        inner = [stride * math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        return Strided(
            (*self.shape[:axis], *sizes, *self.shape[axis + 1 :]),
            (*self.strides[:axis], *inner, *self.strides[axis + 1 :]),
            self.offset,
        )

    def slice(self, axis: int, start: int, count: int, step: int = 1) -> Strided:
        """Elements start, start + step, ... of one axis."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + (start * strides[axis] if count and 0 not in shape else 0)
        shape[axis] = count
        strides[axis] *= step if count > 1 else 1
        return Strided(tuple(shape), tuple(strides), offset)

    def grid(self, axis: int, start: int, sizes: Sequence[int], steps: Sequence[int]) -> Strided:
        """Elements start + i * steps[0] + j * steps[1] + ... of one axis, as axes of these sizes."""
        stride = self.strides[axis]
        return Strided(
            (*self.shape[:axis], *sizes, *self.shape[axis + 1 :]),
            (*self.strides[:axis], *(stride * step for step in steps), *self.strides[axis + 1 :]),
            self.offset + (start * stride if 0 not in self.shape else 0),
        )

    def broadcast(self, shape: Sequence[int]) -> Strided:
        """The view broadcast to `shape`, by strides of 0 along repeated axes."""
        missing = len(shape) - len(self.shape)
        sizes, strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        repeated = tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
        return Strided(tuple(shape), repeated, self.offset)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of elements of one buffer to elements of another, of equal shapes."""

    source: int
    elements: Strided
    target: int
    places: Strided


def append_step(b: SegmentBuilder, node: Node, state: InPlace, source: int, elements: Strided) -> int:
    """Append a step that writes new positions behind the past of a variable in place; returns its buffer.

    `elements` are the elements of `source`, with the dimensions of the variable; a row's elements must be adjacent.
    """
    buffer = b.append(state)
    if state.format is F32:
        places = Strided(state.shape, state.strides).slice(state.axis, state.past_length, state.count)
        copy_step(b, node, 4, [Copy(source, elements, buffer, places)])
        return buffer
    batch, *_, size = state.shape
    parts, part = (state.shape[1], 1) if state.axis == 2 else (1, 0)
    kept, given = state.strides, elements.strides
    attributes: dict[str, Attribute] = {
        "batch": batch, "parts": parts, "rows": state.shape[state.axis], "steps": state.count, "row_bytes": 4 * size,
        "cache": [state.format.element_bytes * stride for stride in (kept[0], part * kept[1], kept[state.axis])],
        "update": [4 * stride for stride in (given[0], part * given[1], given[state.axis])],
        "positions": 0, "expected": state.past_length, "format": state.format.name,
    }  # fmt: skip
    b.step(node, "tensor_scatter", [buffer, source], [buffer], **attributes)
    return buffer


def copy_step(b: SegmentBuilder, node: Node, element_bytes: int, copies: Sequence[Copy]) -> None:
    """Append a step that does the copies, whose targets must not overlap."""
    sources = list(dict.fromkeys(copy.source for copy in copies))
    targets = list(dict.fromkeys(copy.target for copy in copies))
    rank = max(len(copy.elements.shape) for copy in copies)
    shape: list[int] = []
    source_strides: list[int] = []
    destination_strides: list[int] = []
    operands: list[int] = []
    for copy in copies:
        missing = rank - len(copy.elements.shape)
        shape += [1] * missing + list(copy.elements.shape)
        source_strides += [0] * missing + list(copy.elements.strides)
        destination_strides += [0] * missing + list(copy.places.strides)
        operands += [sources.index(copy.source), targets.index(copy.target), copy.elements.offset, copy.places.offset]
    b.step(
        node,
        "strided_copy",
        sources,
        targets,
        element_bytes=element_bytes,
        shape=shape,
        source_strides=source_strides,
        destination_strides=destination_strides,
        operands=operands,
    )


def copy_all(node: Node, b: SegmentBuilder, elements: Strided) -> None:
    """Append a step that makes output 0 these elements of input 0, in their order."""
    x, y = node.input_value(0), node.output(0)
    places = Strided.row_major(elements.shape)
    copy_step(b, node, item_size(x.element_type), [Copy(b.input(x), elements, b.output(y), places)])


def physical(shape: Sequence[int], layout: Layout) -> Strided:
    """A tensor in memory; a blocked map is [N, blocks, ..., 16], so other axes keep their position."""
    if not layout.is_blocked:
        return Strided.row_major(shape)
    return Strided.row_major((shape[0], padded_channels(shape[1]) // BLOCK, *shape[2:], BLOCK))


def channel_parts(shape: Sequence[int], layout: Layout) -> list[tuple[int, int, Strided]]:
    """The elements of a blocked map as arrays [N, blocks, 16, ...], each with its first channel and their number.

    One array covers the whole blocks, and one the remaining channels.
    """
    rank, whole = len(shape), shape[1] // BLOCK
    blocks = physical(shape, layout).permute((0, 1, rank, *range(2, rank)))
    parts = [(0, whole * BLOCK, blocks.slice(1, 0, whole))] if whole else []
    if rest := shape[1] % BLOCK:
        parts.append((whole * BLOCK, rest, blocks.slice(1, whole, 1).slice(2, 0, rest)))
    return parts


def is_movable(element_type: ElementType) -> bool:
    """True for types that the kernels can move: elements of 1, 2, 4 or 8 bytes."""
    return element_type.numpy.kind != "O" and item_size(element_type) in (1, 2, 4, 8)


def check_movable(*values: Output | None, max_dims: int = MAX_DIMS // 2) -> Refusal | None:
    """A refusal if a value has elements that the kernels cannot move, or too many dimensions."""
    for value in values:
        if value is None:
            continue
        element_type = value.element_type
        if refused := check_types([value], {element_type}):
            return refused
        if not is_movable(element_type):
            return Refusal(
                RefusalCause.ELEMENT_TYPE, f"{value.name} is {value.type}; expected elements of 1, 2, 4 or 8 bytes"
            )
        if len(value.shape) > max_dims:
            return Refusal(
                RefusalCause.RANK, f"{value.name} has {len(value.shape)} dimensions; expected at most {max_dims}"
            )
    return None


def is_map(value: Output) -> bool:
    """True for f32 tensors [N, C, ...] with at least one spatial axis."""
    return value.element_type is f32 and len(value.shape) > 2


def is_byte_map(value: Output) -> bool:
    """Like `is_map`, for 8-bit integers."""
    return value.element_type in (i8, u8) and len(value.shape) > 2
