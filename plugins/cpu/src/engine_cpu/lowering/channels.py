"""Joining and splitting channels of blocked maps: by address if blocks stay whole, otherwise lane by lane."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.ir import Node
from engine.ir.element_type import ElementType, f32
from engine_cpu.layout import BLOCK, Layout, item_size, padded_channels
from engine_cpu.segment import SegmentBuilder

ChannelRange = tuple[int, int, int, int]
"""Source, first channel, step, number of channels."""


def select_channels(
    b: SegmentBuilder,
    node: Node,
    sources: Sequence[int],
    shapes: Sequence[Sequence[int]],
    ranges: Sequence[ChannelRange],
    target: int,
) -> None:
    """Append a step that makes a blocked map from channels of others; `shapes` are the sources' shapes."""
    b.step(
        node,
        "select_channels_f32",
        list(sources),
        [target],
        batch=shapes[0][0],
        pixels=math.prod(shapes[0][2:]),
        channels=[shape[1] for shape in shapes],
        ranges=[value for each in ranges for value in each],
    )


def channel_offset(
    shape: Sequence[int], channel: int, layout: Layout = Layout.BLOCKED, element_type: ElementType = f32
) -> int:
    """The byte offset of a channel that starts a block, in the first image of a blocked map."""
    return channel * math.prod(shape[2:]) * item_size(element_type, layout)


def image_bytes(shape: Sequence[int], layout: Layout = Layout.BLOCKED, element_type: ElementType = f32) -> int:
    """Bytes of one image of a blocked map."""
    return padded_channels(shape[1]) * math.prod(shape[2:]) * item_size(element_type, layout)


def starts_of(counts: Sequence[int]) -> list[int]:
    """The first channel of each of several consecutive runs of channels."""
    return [sum(counts[:index]) for index in range(len(counts))]


def whole_blocks(counts: Sequence[int]) -> int:
    """The number of leading runs that start and end at block boundaries; the last run may end within a block."""
    for index, count in enumerate(counts):
        if count % BLOCK != 0:
            return index + 1 if index == len(counts) - 1 else index
    return len(counts)
