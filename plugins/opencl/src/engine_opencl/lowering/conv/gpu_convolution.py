"""Choice of the convolution kernel on a GPU."""

from __future__ import annotations

from typing import Protocol

from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering.conv.depthwise import is_depthwise, strips_of
from engine_opencl.lowering.conv.direct_convolution import directs_of
from engine_opencl.lowering.conv.implicit_gemm import implicit_cost, implicit_tiles, matrix_implicit_tiles
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.conv.winograd import Winograd, is_winograd, winograd_cost
from engine_opencl.plan_builder import LaunchPlanBuilder

_MIN_OUTPUTS = 8
"""Result channels per group from which a tile is worthwhile despite idle rows."""
_MAX_DIRECT_OUTPUTS = 32
"""Below this amount of work, kernels without tiles may be as fast."""
_MAX_TILES = 5
"""The maximum number of variants to compile and measure."""
_MAX_INDEX = 2**31 - 1


class Variant(Protocol):
    """One or more kernels with their parameters, identified by `str`."""

    def launch(self, b: LaunchPlanBuilder, c: Convolution) -> None:
        """Launch the kernel of this variant."""


def launch_convolution(b: LaunchPlanBuilder, c: Convolution) -> None:
    """Launch the variant measured to be fastest, or without a measurement the most promising one."""
    b.choose(_key(c), variants_of(b.facts, c), lambda builder, variant: variant.launch(builder, c))


def _key(c: Convolution) -> str:
    """Everything that affects which variant is fastest."""
    g, name = c.geometry, "ConvTranspose" if c.is_transposed else "Conv"
    weights = "constant" if c.weights.weight is not None else "computed"
    lengths = (
        ("x", g.inputs),
        ("y", g.outputs),
        ("k", g.kernel),
        ("s", g.strides),
        ("d", g.dilations),
        ("p", g.pads_begin),
    )
    shape = " ".join(f"{key}{'x'.join(map(str, each))}" for key, each in lengths)
    return f"{name} {c.element_type.name} n{c.images} g{c.groups} {c.channels}->{c.outputs} {shape} {weights} {c.code}"


def variants_of(facts: DeviceFacts, c: Convolution) -> list[Variant]:
    """The variants supported by the device, the most promising first."""
    if is_depthwise(c):
        return [*strips_of(facts, c)]
    tiles = implicit_tiles(facts, c)[:_MAX_TILES] if _suits_tiles(facts, c) else []
    variants: list[Variant] = [*tiles]
    if _suits_tiles(facts, c):
        variants = [*matrix_implicit_tiles(facts, c)[:_MAX_TILES], *tiles]
    if not tiles or c.outputs < _MAX_DIRECT_OUTPUTS:
        variants += directs_of(facts, c)
    if tiles and is_winograd(facts, c):
        variants.insert(0 if winograd_cost(facts, c) < implicit_cost(facts, c, tiles[0].tile) else 1, Winograd())
    return variants


def _suits_tiles(facts: DeviceFacts, c: Convolution) -> bool:
    is_indexed = c.channels * c.map_size <= _MAX_INDEX and 0 < c.columns <= _MAX_INDEX
    return facts.kind != "cpu" and c.outputs >= _MIN_OUTPUTS and c.depth > 0 and is_indexed
