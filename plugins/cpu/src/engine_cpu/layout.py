"""The memory layouts of tensors on the CPU device."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from engine.ir import ElementType, Output
from engine.startup import dataclass

BLOCK = 16
"""Channels per block in a blocked map."""


class Layout(enum.Enum):
    """The memory layout of a tensor."""

    PLAIN = "plain"
    """Row-major, in the tensor's element type."""
    BLOCKED = "blocked"
    """Maps [N, C, ...] of f32, i32, u8 or i8 as [N, ceil(C / 16), ..., 16]; those beyond C are undefined."""
    PLAIN_BF16 = "plain_bf16"
    """An f32 tensor, stored row-major in bf16."""
    BLOCKED_BF16 = "blocked_bf16"
    """An f32 map, stored as BLOCKED in bf16."""

    @property
    def is_blocked(self) -> bool:
        """True for maps in blocks of channels."""
        return self in (Layout.BLOCKED, Layout.BLOCKED_BF16)

    @property
    def is_bf16(self) -> bool:
        """True if f32 values are stored in bf16."""
        return self in (Layout.PLAIN_BF16, Layout.BLOCKED_BF16)


@dataclass(frozen=True, slots=True)
class LayoutOption:
    """One way to run an item: the layouts in which it reads its inputs and writes its outputs.

    `inputs` has a layout for each input (any, for inputs that are omitted or never read by a step), `outputs` one for
    each output. `cost` is the cost in addition to the other options' cost, in bytes moved. `precision` restricts the
    option to networks of this precision, "f32" or "bf16"; empty for all.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    cost: float = 0.0
    precision: str = ""

    @classmethod
    def uniform(cls, layout: Layout, inputs: int, outputs: int = 1, cost: float = 0.0) -> LayoutOption:
        """Make an option in which all inputs and outputs have one layout; bf16 layouts imply bf16 arithmetic."""
        return cls((layout,) * inputs, (layout,) * outputs, cost, "bf16" if layout.is_bf16 else "")


def padded_channels(channels: int) -> int:
    """`channels` rounded up to whole blocks."""
    return -(-channels // BLOCK) * BLOCK


def item_size(element_type: ElementType, layout: Layout = Layout.PLAIN) -> int:
    """The size of one element in bytes: 2 in a bf16 layout, otherwise the element type's."""
    return 2 if layout.is_bf16 else int(element_type.numpy.itemsize)


def layout_bytes(shape: Sequence[int], element_type: ElementType, layout: Layout) -> int:
    """Bytes of a tensor of a static shape."""
    if layout.is_blocked:
        shape = (shape[0], padded_channels(shape[1]), *shape[2:])
    return math.prod(shape) * item_size(element_type, layout)


def static_shape(value: Output) -> tuple[int, ...]:
    """The shape of `value` as integers; raises an error if a length is unknown."""
    return tuple(value.shape.get_shape())
