"""3x3 convolutions with Winograd's F(2x2, 3x3): 16 instead of 36 products for 4 results.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4.1. The weights are transformed
once, by the host in f64. Transformed inputs are up to 4 times as large (each adds 4 elements), transformed weights up
to 2.25 times, and a result adds 9 products: with u = 2^-24 the error of a result is at most (channels + 16) u |A'| (sum
over channels of |G| |w| |G'| * |B'| |x| |B|) |A|. For a result, these factors add to at most (1 * 2 + 1.5 * 2 + 1.5 *
2)^2 = 64, so the error is at most 64 (channels + 16) u (largest |x| of the tile, in all channels) (sum over channels of
the largest |w|).

Without further measures, a large value would change results that do not see it, and a non-finite one would destroy
them. `launch_repair` therefore computes results directly if the largest value of their tile exceeds `RANGE` times the
largest one that they see, or `LARGEST`: in the bound, the former becomes the latter times `RANGE`. Results that see
zeros only are zero.

Weights are judged when the kernel is chosen, by `has_even_filters`: a result at the border meets a part of the taps
only, but always one of four squares of 2x2. If the sum over channels of the largest |w| is at most `WEIGHT_RANGE` times
that over each square, the bound, times `WEIGHT_RANGE`, holds of the largest weights that a result meets. In trained
networks, the ratio is about 2. Result channels whose weights are all below `TINY` are not judged: a device may flush
their transformed weights to zero, each an error of 2^-126 at most, which adds channels * 36 * 2^-126 times the largest
|x| of the tile to the bound, as inputs and results have factors of 6 along each axis.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir.element_type import f32
from engine.startup import dataclass
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
WEIGHT_RANGE: Final = 16.0
"""How often the largest weights that a result meets may fit into the largest ones, as sums over channels."""
MAX_WEIGHT: Final = 1e15
"""The largest sum over channels of the largest weights."""
TINY: Final = 1e-35
"""Weights below which transformed ones may be denormal numbers."""
_PARTS: Final = 8
"""Parts of the channels whose ranges are found side by side, of as many channels or more."""
_GPU_MAPS: Final = 8
"""Maps in which an item of a GPU computes a tile directly."""
_SHARE = 8
"""The maximum share of the device's memory and of its largest buffer for the transformed tensors."""


@dataclass(frozen=True, slots=True)
class Winograd:
    """The algorithm F(2x2, 3x3): 2x2 results from 16 products instead of 36 (Lavin and Gray 2016)."""

    def __str__(self) -> str:
        return "winograd 2x2 3x3"

    def launch(self, b: LaunchPlanBuilder, c: Convolution) -> None:
        """Launch a convolution for which `is_winograd` is true."""
        winograd(b, c)


def is_winograd(facts: DeviceFacts, c: Convolution) -> bool:
    """Whether it is a 3x3 convolution of stride 1 with constant, even weights, and fits into the device's memory.

    In f32, with results that meet 2x2 taps or more; never for ACCURACY.
    """
    g = c.geometry
    is_plain = not c.is_transposed and g.kernel == (1, 3, 3) and g.inputs[0] == g.outputs[0] == 1
    in_order = set(g.strides) == {1} and g.dilations[1:] == (1, 1)
    has_squares = max(*g.pads_begin[1:], *g.pads_end[1:]) <= 1 and min(g.inputs[1:]) >= 2
    values = 4 * 16 * c.groups * (c.channels + c.outputs) * places_of(c)
    has_room = values * _SHARE <= min(facts.memory, facts.largest_buffer)
    return (
        is_plain
        and in_order
        and has_squares
        and c.filters is not None
        and c.element_type is f32
        and has_room
        and not facts.is_accurate
        and has_even_filters(c.filters(), c)
    )


def has_even_filters(weights: NDArray[Any], c: Convolution) -> bool:
    """Whether the transforms can hold the weights, and no square of taps needs more digits than they keep."""
    taps = np.abs(weights.reshape(c.groups * c.outputs, c.channels, 3, 3), dtype=np.float32)
    rows = np.maximum(taps[:, :, :-1], taps[:, :, 1:])
    squares = np.maximum(rows[..., :-1], rows[..., 1:])
    peaks = squares.max(axis=(2, 3), initial=0.0)
    largest, least = peaks.sum(axis=1, dtype=np.float64), squares.sum(axis=1, dtype=np.float64).min(axis=(1, 2))
    is_tiny = peaks.max(axis=1, initial=0.0) < TINY
    is_even = is_tiny | ((largest <= MAX_WEIGHT) & (largest <= WEIGHT_RANGE * least))  # not if any is NaN
    return bool(is_even.all() and not is_tiny.all())


def winograd_cost(facts: DeviceFacts, c: Convolution) -> float:
    """Like `tile_candidates.cost`, including the data that the transforms move."""
    product, places = product_of(c), places_of(c)
    # Both transformed tensors are stored and read; each tile of 16 elements covers 4 positions. Weights have 16
    # elements instead of 9. The repair reads the 4 positions of a tile once more.
    moved = 36 * places * (c.channels + c.outputs) + 4 * places * c.channels + 7 * c.channels * c.outputs
    products = min(cost(tile, product, facts) for tile in tiles_of(product, facts))
    return products + 5 * LAUNCH_COST + moving_cost(c.groups * moved, facts)


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
    source = kernel_source("winograd_output", **defines, **c.ending(), STEP=f"{outputs * places}ul")
    b.launch(HELPERS + source, "winograd_output", [s, *c.added, c.result], (places, outputs))
    launch_repair(b, c)


def launch_repair(b: LaunchPlanBuilder, c: Convolution) -> None:
    """Compute the results again for which the algorithm is not exact enough, and set those that see zeros only."""
    g, positions, places, name = c.geometry, c.images * c.map_size, places_of(c), c.weights.weight
    parts = _PARTS if c.channels >= _PARTS * _PARTS else 1
    ranges, marks = b.temporary(4 * c.groups * parts * positions), b.temporary(c.groups * places)
    defines: dict[str, object] = {
        "C": c.groups * c.channels, "M": c.groups * c.outputs, "GROUP_C": c.channels, "GROUP_M": c.outputs,
        "IH": g.inputs[1], "IW": g.inputs[2], "OH": g.outputs[1], "OW": g.outputs[2], "PH": g.pads_begin[1],
        "PW": g.pads_begin[2], "PLACES_H": -(-g.outputs[1] // 2), "PLACES_W": -(-g.outputs[2] // 2), "PLACES": places,
        "POSITIONS": f"{positions}ul", "PARTS": parts, "PART_CHANNELS": -(-c.channels // parts),
        "LARGEST": f"{LARGEST}f", "RANGE": f"{RANGE}f",
    }  # fmt: skip
    source = kernel_source("winograd_ranges", **defines)
    b.launch(source, "winograd_ranges", [c.x, ranges], (positions, c.groups * parts))
    b.launch(kernel_source("winograd_marks", **defines), "winograd_marks", [ranges, marks], (places, c.groups))
    # An item of a CPU processes a row of tiles, two at a time: the sums of one would wait for each other.
    on_cpu = b.facts.kind == "cpu"
    maps = min(16, b.facts.vector_width) if on_cpu else _GPU_MAPS
    map_parts, tiles = -(-c.outputs // maps), -(-g.outputs[2] // 2) if on_cpu else 1
    repair = c.ending() | {
        "MAPS": maps, "MAP_PARTS": map_parts, "TILES": tiles, "BESIDE": 2 if on_cpu else 1,
        "ONE_ITEM": "__attribute__((reqd_work_group_size(1, 1, 1)))" if on_cpu else "",
    }  # fmt: skip
    make = b.weights[name]
    weights = b.weight(("winograd repair", name, c.groups, maps), lambda: interleaved(make(), c, maps))
    source = HELPERS + kernel_source("winograd_repair", **defines, **repair)
    size, local = (places // tiles if tiles else 0, c.groups * map_parts), (1, 1) if on_cpu else ()
    b.launch(source, "winograd_repair", [marks, c.x, weights, *c.added, c.result], size, local)


def interleaved(weights: NDArray[Any], c: Convolution, maps: int) -> NDArray[np.float32]:
    """The weights of `maps` results side by side: [group][part][channel][9][maps], the last part padded with zeros."""
    kernels = weights.reshape(c.groups, c.outputs, c.channels, 9)
    padded = np.pad(kernels, ((0, 0), (0, -c.outputs % maps), (0, 0), (0, 0)))
    parts = padded.reshape(c.groups, -1, maps, c.channels, 9).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(parts, np.float32)


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
