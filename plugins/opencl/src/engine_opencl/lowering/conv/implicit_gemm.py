"""Convolutions as implicit matrix products, without an im2col matrix, for GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from engine.startup import dataclass
from engine_opencl.devices.device import EMULATED, DeviceFacts
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.conv.problem import Convolution, arranged_weights
from engine_opencl.lowering.matmul.product import Product
from engine_opencl.lowering.matmul.tile_candidates import TILES, MatrixTile, Tile, cost, matrix_tiles_of, tiles_of
from engine_opencl.lowering.tables import table
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source


@dataclass(frozen=True, slots=True)
class Implicit:
    """A product by tiles, always with two buffers of local memory."""

    tile: Tile

    def __str__(self) -> str:
        return f"implicit {self.tile}"

    def launch(self, b: LaunchPlanBuilder, c: Convolution) -> None:
        """Launch a convolution by such tiles."""
        implicit_gemm(b, c, self.tile)


def is_taken(tile: Tile) -> bool:
    """Whether the kernel supports a product's tile: an item loads from one column, and has at least 4 rows."""
    return tile.buffers == 2 and tile.items % tile.n == 0 and tile.m // tile.row_items % 4 == 0


_TAKEN: Final = tuple(filter(is_taken, TILES))


def implicit_tiles(facts: DeviceFacts, c: Convolution) -> list[Implicit]:
    """The tiles that fit the device, the best first; empty for a small device."""
    return [Implicit(tile) for tile in tiles_of(_product(c), facts, _TAKEN)]


def implicit_cost(facts: DeviceFacts, c: Convolution, tile: Tile) -> float:
    """Like `tile_candidates.cost`, for the product that the convolution is equal to."""
    return cost(tile, _product(c), facts)


def _product(c: Convolution) -> Product:
    """The equivalent product, except for the source of the right matrix."""
    batches = c.groups * len(c.parts)
    return Product(c.outputs, c.columns, c.depth, (batches,), (0,), (0,), (c.depth, 1), (c.columns, 1))


@dataclass(frozen=True, slots=True)
class MatrixImplicit:
    """An implicit product in f16 or bf16 by matrix units."""

    tile: MatrixTile

    def __str__(self) -> str:
        return f"implicit {self.tile}"

    def launch(self, b: LaunchPlanBuilder, c: Convolution) -> None:
        """Launch a convolution of f16 or bf16 by such tiles."""
        t = self.tile
        unit = kernel_source(
            "matrix_unit", c.element_type,
            EMULATED=int(b.facts.matrix_unit == EMULATED), TM=t.m, TN=t.n, TK=t.k, WARPS_M=t.row_warps,
            WARPS_N=t.col_warps, A_ALONG_K=0, B_ALONG_K=0,
        )  # fmt: skip
        _launch(b, c, t, "matrix_conv", unit, {}, t.local_bytes_on(b.facts))


MATRIX_TILES: Final = (
    MatrixTile(128, 128, 32, 2, 4, 2),
    MatrixTile(64, 128, 32, 2, 4, 2),
    MatrixTile(128, 64, 32, 4, 2, 2),
    MatrixTile(64, 64, 32, 2, 2, 2),
    MatrixTile(32, 128, 32, 1, 4, 2),
    MatrixTile(32, 64, 32, 2, 2, 2),
)
"""A warp has 32 columns; an item copies 8 elements of the weights or more, and loads from one column."""


def matrix_implicit_tiles(facts: DeviceFacts, c: Convolution) -> list[MatrixImplicit]:
    """The tiles for matrix units, the best first; none if the device has no such units or the type is f32."""
    product = replace(_product(c), real=c.element_type)
    return [MatrixImplicit(tile) for tile in matrix_tiles_of(product, facts, MATRIX_TILES)]


def implicit_gemm(b: LaunchPlanBuilder, c: Convolution, tile: Tile) -> None:
    """Launch a convolution, or all phases of a transposed one."""
    defines: dict[str, object] = {
        "TILE_M": tile.m, "TILE_N": tile.n, "DEPTH": tile.k, "LANES_M": tile.row_items, "LANES_N": tile.col_items,
    }  # fmt: skip
    # Unlike in products, the lines of local memory have no padding.
    _launch(b, c, tile, "implicit_gemm", "", defines, 2 * tile.k * (tile.m + tile.n) * 4)


def _launch(
    b: LaunchPlanBuilder,
    c: Convolution,
    tile: Tile | MatrixTile,
    kernel: str,
    before: str,
    own: dict[str, object],
    local_bytes: int,
) -> None:
    """Launch a kernel of tiles, and with split steps the sum of their results."""
    order = c.order(tile.k)
    total = c.images * c.groups * c.outputs * math.prod(c.geometry.outputs)
    defines = c.defines(order) | own | {
        "SPLITS": tile.splits, "TOTAL": f"{total}ul", "BLOCKS": -(-c.outputs // tile.m),
        "BY_CHANNELS": int(order.by_channels),
    }  # fmt: skip
    source = before + kernel_source("window", c.element_type, **defines) + kernel_source(kernel, c.element_type)
    arguments = [c.x, arranged_weights(b, c, order, tile.m), table(b, order.taps), table(b, order.phases)]
    groups = -(-c.columns // tile.n) * -(-c.outputs // tile.m) * c.groups * len(c.parts) * tile.splits
    size, local = (groups * tile.items,), (tile.items,)
    if tile.splits == 1:
        b.launch(HELPERS + source, kernel, [*arguments, *c.added, c.result], size, local, local_bytes)
        return
    sums = b.temporary(4 * total * tile.splits)
    b.launch(source, kernel, [*arguments, sums], size, local, local_bytes)
    given = {name: defines[name] for name in ("M", "SPLITS", "TOTAL")}
    text = kernel_source("add_splits", c.element_type, N=defines["SIZE"], **given, **c.ending())
    b.launch(HELPERS + text, "add_splits", [sums, c.result, *c.added], (total,))
