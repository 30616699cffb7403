"""3x3 convolutions with Winograd's F(2x2, 3x3): 16 instead of 36 products for 4 results.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4.1. The weights are transformed
once, by the host in f64. Transformed inputs are up to 4 times as large (each adds 4 elements), transformed weights up
to 2.25 times, and a result adds 9 products: with u = 2^-24 the error of a result is at most (channels + 16) u |A'| (sum
over channels of |G| |w| |G'| * |B'| |x| |B|) |A|. For a result, these factors add to at most (1 * 2 + 1.5 * 2 + 1.5 *
2)^2 = 64, so the error is at most 64 (channels + 16) u (largest |x| of the tile, in all channels) (sum over channels of
the largest |w|).

That would let a large value change results that do not see it, and one that is not finite ruin them. `launch_repair`
therefore computes tiles directly whose largest value exceeds `RANGE` times the largest one that one of their results
sees, or `LARGEST`: in the bound, the former becomes the latter times `RANGE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir.element_type import f32
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.matmul.matmul import launch_product
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.matmul.tile_candidates import LAUNCH_COST, cost, moving_cost, tiles_of
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source

G: Final = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
"""The weight transform matrix."""
RANGE: Final = 1024.0
"""How often the largest value that a result sees may fit into the largest one of its tile."""
LARGEST: Final = 1e18
"""The largest value of a tile: products of larger ones with weights up to 1e15 might overflow before they cancel."""
_PARTS: Final = 8
"""Parts of the channels whose ranges are found side by side, of as many channels or more."""
_SHARE = 8
"""The maximum share of the device's memory and of its largest buffer for the transformed tensors."""


@dataclass(frozen=True, slots=True)
class Winograd:
    """F(2x2, 3x3)."""

    def __str__(self) -> str:
        return "winograd 2x2 3x3"

    def launch(self, b: LaunchPlanBuilder, c: Convolution) -> None:
        """Launch a convolution that `is_winograd`."""
        winograd(b, c)


def is_winograd(facts: DeviceFacts, c: Convolution) -> bool:
    """Whether it is a 3x3 convolution with constant weights and stride 1, and fits into the device's memory in f32.

    Never for ACCURACY.
    """
    g = c.geometry
    is_plain = not c.is_transposed and g.kernel == (1, 3, 3) and g.inputs[0] == g.outputs[0] == 1
    in_order = set(g.strides) == {1} and g.dilations[1:] == (1, 1)
    values = 4 * 16 * c.groups * (c.channels + c.outputs) * places_of(c)
    has_room = values * _SHARE <= min(facts.memory, facts.largest_buffer)
    return (
        is_plain
        and in_order
        and c.weights.weight is not None
        and c.element_type is f32
        and has_room
        and not facts.is_accurate
    )


def winograd_cost(facts: DeviceFacts, c: Convolution) -> float:
    """Like `tile_candidates.cost`, including the data that the transforms move."""
    product, places = product_of(c), places_of(c)
    # Both transformed tensors are stored and read; each tile of 16 elements covers 4 positions. Weights have 16
    # elements instead of 9. The repair reads the 4 positions of a tile once more.
    moved = 36 * places * (c.channels + c.outputs) + 4 * places * c.channels + 7 * c.channels * c.outputs
    products = min(cost(tile, product, facts) for tile in tiles_of(product, facts))
    return products + 4 * LAUNCH_COST + moving_cost(c.groups * moved, facts)


def winograd(b: LaunchPlanBuilder, c: Convolution) -> None:
    """Launch the transforms, and the products between them."""
    g, places, name = c.geometry, places_of(c), c.weights.weight
    channels, outputs = c.groups * c.channels, c.groups * c.outputs
    make = b.weights[name]
    u = b.weight(("winograd", name, c.groups), lambda: transformed(make(), c))
    v, s = b.temporary(4 * 16 * channels * places), b.temporary(4 * 16 * outputs * places)
    defines: dict[str, object] = {
        "C": channels, "M": outputs, "IH": g.inputs[1], "IW": g.inputs[2], "OH": g.outputs[1], "OW": g.outputs[2],
        "PH": g.pads_begin[1], "PW": g.pads_begin[2], "PLACES": places, "PLACES_H": -(-g.outputs[1] // 2),
        "PLACES_W": -(-g.outputs[2] // 2),
    }  # fmt: skip
    source = kernel_source("winograd_input", **defines, STEP=f"{channels * places}ul")
    b.launch(source, "winograd_input", [c.x, v], (places, channels))
    launch_product(b, product_of(c), Epilogue(), u, v, s)
    ending = {"BIAS": int(c.bias is not None), "RESIDUAL": int(c.residual is not None), "EPILOGUE": c.code}
    source = kernel_source("winograd_output", **defines, **ending, STEP=f"{outputs * places}ul")
    b.launch(HELPERS + source, "winograd_output", [s, *c.added, c.result], (places, outputs))
    launch_repair(b, c)


def launch_repair(b: LaunchPlanBuilder, c: Convolution) -> None:
    """Compute the tiles again for which the algorithm is not exact enough."""
    g, positions = c.geometry, c.images * c.map_size
    parts = _PARTS if c.channels >= _PARTS * _PARTS else 1
    ranges = b.temporary(4 * c.groups * parts * positions)
    defines: dict[str, object] = {
        "C": c.groups * c.channels, "M": c.groups * c.outputs, "GROUP_C": c.channels, "GROUP_M": c.outputs,
        "IH": g.inputs[1], "IW": g.inputs[2], "OH": g.outputs[1], "OW": g.outputs[2], "PH": g.pads_begin[1],
        "PW": g.pads_begin[2], "PLACES_H": -(-g.outputs[1] // 2), "PLACES_W": -(-g.outputs[2] // 2),
        "POSITIONS": f"{positions}ul", "PARTS": parts, "PART_CHANNELS": -(-c.channels // parts),
        "LARGEST": f"{LARGEST}f", "RANGE": f"{RANGE}f",
    }  # fmt: skip
    source = kernel_source("winograd_ranges", **defines)
    b.launch(source, "winograd_ranges", [c.x, ranges], (positions, c.groups * parts))
    ending = {"BIAS": int(c.bias is not None), "RESIDUAL": int(c.residual is not None), "EPILOGUE": c.code}
    source = HELPERS + kernel_source("winograd_repair", **defines, **ending)
    arguments = [ranges, c.x, c.weights, *c.added, c.result]
    b.launch(source, "winograd_repair", arguments, (places_of(c), c.groups))


def transformed(weights: NDArray[Any], c: Convolution) -> NDArray[np.float32]:
    """G w G' of each channel, as 16 matrices for each group."""
    kernels = weights.reshape(c.groups, c.outputs, c.channels, 3, 3).astype(np.float64)
    found = G @ kernels @ G.T
    matrices = found.reshape(c.groups, c.outputs, c.channels, 16).transpose(3, 0, 1, 2)
    return np.ascontiguousarray(matrices, np.float32)


def product_of(c: Convolution) -> Product:
    """The product for each of the 16 tile elements and each group, over all tiles."""
    places, channels, outputs = places_of(c), c.groups * c.channels, c.groups * c.outputs
    return Product(
        c.outputs, places, c.channels, (16, c.groups), (outputs * c.channels, c.outputs * c.channels),
        (channels * places, c.channels * places), (c.channels, 1), (places, 1),
    )  # fmt: skip


def places_of(c: Convolution) -> int:
    """The number of tiles of 2x2 results, over all images."""
    return c.images * -(-c.geometry.outputs[1] // 2) * -(-c.geometry.outputs[2] // 2)
