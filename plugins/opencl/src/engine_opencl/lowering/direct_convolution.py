"""Convolutions whose groups have too few channels for products of tiles."""

from __future__ import annotations

from dataclasses import dataclass

from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.tables import table
from engine_opencl.lowering.windows import Convolution, arranged_weights
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import kernel_source


@dataclass(frozen=True, slots=True)
class Direct:
    """No tiles: items read the input from global memory."""

    def __str__(self) -> str:
        return "direct"

    def launch(self, b: PlanBuilder, c: Convolution) -> None:
        """Launch any convolution."""
        direct_convolution(b, c)


def direct_convolution(b: PlanBuilder, c: Convolution) -> None:
    """One work item computes some channels of one result's place. Takes every geometry."""
    order = c.order(1)
    channels = min((8, 4, 2, 1), key=lambda size: (-(-c.outputs // size) * (size + 1), size))
    blocks = -(-c.outputs // channels)
    defines = c.defines(order) | {"CHANNELS": channels, "BLOCKS": blocks}
    source = kernel_source("window", c.element_type, **defines) + kernel_source("conv", c.element_type)
    arguments = [c.x, arranged_weights(b, c, order, channels), table(b, order.taps), table(b, order.phases)]
    size = (c.columns, blocks * c.groups, len(c.parts))
    b.launch(HELPERS + source, "conv", [*arguments, *c.added, c.result], size)
