"""Convolutions whose groups have too few channels for products of tiles."""

from __future__ import annotations

from engine.startup import dataclass
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.conv.problem import Convolution, arranged_weights
from engine_opencl.lowering.tables import table
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source

_LANES = 64
_BUSY_ITEMS = 256
"""Work items of a compute unit."""


@dataclass(frozen=True, slots=True)
class Direct:
    """No tiles: an item computes several channels at `wide` positions, and reads the input from global memory."""

    wide: int

    def __str__(self) -> str:
        return f"direct {self.wide}"

    def launch(self, b: LaunchPlanBuilder, c: Convolution) -> None:
        """Launch the convolution; every convolution is supported."""
        order, channels = c.order(1), _channels(c)
        lanes, blocks = min(_LANES, b.facts.max_work_group), -(-c.outputs // channels)
        defines = c.defines(order) | {"CHANNELS": channels, "BLOCKS": blocks, "WIDE": self.wide, "LANES": lanes}
        source = kernel_source("window", c.element_type, **defines) + kernel_source("conv", c.element_type)
        arguments = [c.x, arranged_weights(b, c, order, channels), table(b, order.taps), table(b, order.phases)]
        size = (-(-c.columns // (lanes * self.wide)) * lanes, blocks * c.groups, len(c.parts))
        b.launch(HELPERS + source, "conv", [*arguments, *c.added, c.result], size, (lanes, 1, 1))


def directs_of(facts: DeviceFacts, c: Convolution) -> list[Direct]:
    """Numbers of positions per item: the largest that leaves enough items for the device first, then others."""
    items = c.columns * -(-c.outputs // _channels(c)) * c.groups * len(c.parts)
    wanted = _BUSY_ITEMS * facts.compute_units
    wide = next(n for n in (4, 2, 1) if n == 1 or items // n >= wanted)
    return [Direct(wide), *(Direct(n) for n in (4, 2, 1) if n != wide)]


def _channels(c: Convolution) -> int:
    """Channels that an item computes, chosen to minimize padding beyond the last channel."""
    return min((8, 4, 2, 1), key=lambda size: (-(-c.outputs // size) * (size + 1), size))
