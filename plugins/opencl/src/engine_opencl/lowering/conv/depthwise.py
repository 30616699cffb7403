"""Convolutions whose groups have one channel each."""

from __future__ import annotations

import math

from engine.ops.windows import WindowGeometry
from engine.startup import dataclass
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.conv.parts import window_defines
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source

_GROUP = 64
_MAX_UNROLLED = 256
"""The largest number of products per item for which loops are unrolled and weights kept in registers."""
_ITEMS_A_UNIT = 512
"""The minimum number of concurrent work items of a compute unit."""


@dataclass(frozen=True, slots=True)
class Strip:
    """An item computes this many results, one below the other."""

    length: int

    def __str__(self) -> str:
        return f"strips of {self.length}"

    def launch(self, b: LaunchPlanBuilder, c: Convolution) -> None:
        """Launch a convolution with one input channel per group."""
        depthwise(b, c, self.length)


def is_depthwise(c: Convolution) -> bool:
    """Whether `depthwise` supports `c`: one input channel per group, and not transposed."""
    return c.channels == 1 and not c.is_transposed


def depthwise(b: LaunchPlanBuilder, c: Convolution, strip: int) -> None:
    """Launch a depthwise convolution whose items compute `strip` results each, one below the other."""
    g = c.geometry
    maps, strips = c.images * c.groups * c.outputs, -(-g.outputs[1] // strip)
    items = maps * strips * g.outputs[0] * g.outputs[2]
    defines: dict[str, object] = {
        "C": c.groups, "M": c.groups * c.outputs, "GM": c.outputs, "STRIP": strip, "STRIPS": strips,
        "ITEMS": f"{items}ul", "UNROLLED": int(_is_unrolled(g, strip)),
    }  # fmt: skip
    defines |= window_defines(g) | c.ending()
    source = HELPERS + kernel_source("depthwise", c.element_type, **defines)
    group = min(_GROUP, b.facts.max_work_group)
    b.launch(source, "depthwise", [c.x, c.weights, *c.added, c.result], (-(-items // group) * group,), (group,))


def strips_of(facts: DeviceFacts, c: Convolution) -> list[Strip]:
    """Strips that may be fast, the most promising first.

    A longer strip reads fewer elements per result, but leaves fewer items for the device.
    """
    g = c.geometry
    places = c.images * c.groups * c.outputs * math.prod(g.outputs)
    wanted = _ITEMS_A_UNIT * facts.compute_units
    lengths = [n for n in (8, 4, 2) if n <= g.outputs[1] and _is_unrolled(g, n)] + [1]
    lengths.sort(key=lambda n: (n > 1 and places // n < wanted, _reads(g, n)))
    return [Strip(n) for n in lengths]


def _is_unrolled(g: WindowGeometry, strip: int) -> bool:
    return strip * g.kernel[1] * g.kernel[2] <= _MAX_UNROLLED


def _reads(g: WindowGeometry, strip: int) -> float:
    """Rows of the input that a result needs."""
    rows = {j * g.strides[1] + k * g.dilations[1] for j in range(strip) for k in range(g.kernel[1])}
    wasted = -(-g.outputs[1] // strip) * strip / g.outputs[1]
    return len(rows) / strip * wasted
