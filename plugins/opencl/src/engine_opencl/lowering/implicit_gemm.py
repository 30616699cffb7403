"""Convolutions as products without the matrix that they multiply by, for GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from engine_opencl.device import DeviceFacts
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.tables import table
from engine_opencl.lowering.windows import Convolution, arranged_weights
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import kernel_source

_BUSY_ITEMS = 256
"""Work items that a compute unit needs to hide what memory and arithmetic take to answer."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The work of a group: `rows` channels by `columns` places in steps of `depth`, by a grid of items.

    Attributes:
        splits: groups that share the depth of one tile, whose sums a further kernel adds.
    """

    rows: int
    columns: int
    depth: int
    lanes_m: int
    lanes_n: int
    splits: int = 1

    def __str__(self) -> str:
        shape = f"tiles {self.rows}x{self.columns}x{self.depth} by {self.lanes_m}x{self.lanes_n}"
        return shape if self.splits == 1 else f"{shape} in {self.splits}"

    @property
    def items(self) -> int:
        """Of a work group."""
        return self.lanes_m * self.lanes_n

    @property
    def local_bytes(self) -> int:
        """Two steps of both operands."""
        return 2 * 4 * self.depth * (self.rows + self.columns)

    def launch(self, b: PlanBuilder, c: Convolution) -> None:
        """Launch a convolution by such tiles."""
        implicit_gemm(b, c, self)


TILES = (
    Tile(128, 128, 8, 16, 16),
    Tile(64, 128, 8, 8, 16),
    Tile(128, 64, 8, 16, 8),
    Tile(64, 64, 16, 16, 16),
    Tile(64, 64, 8, 8, 8),
    Tile(32, 64, 8, 8, 8),
    Tile(32, 32, 8, 4, 8),
    Tile(16, 64, 8, 4, 16),
)
"""Items share what they read, the more the larger a tile is; small ones leave fewer groups, or rows, without work."""

_CACHE_COST = 8
"""Products that a unit computes while it gets one number from the cache that all units share."""
_SPLITS = (1, 2, 4, 8, 16)
_LEAST_STEPS = 8
"""Of a group that shares its tile's depth."""
MOVE_COST = 40
"""Products that a GPU computes while it brings one number to or from its memory: about half of what its data sheet has
of either, as products of tiles reach that part of its peak."""


def implicit_gemm(b: PlanBuilder, c: Convolution, tile: Tile) -> None:
    """Launch a convolution, or all phases of a transposed one."""
    order = c.order(tile.depth)
    total = c.images * c.groups * c.outputs * math.prod(c.geometry.outputs)
    defines = c.defines(order) | {
        "TILE_M": tile.rows, "TILE_N": tile.columns, "DEPTH": tile.depth, "LANES_M": tile.lanes_m,
        "LANES_N": tile.lanes_n, "SPLITS": tile.splits, "TOTAL": f"{total}ul",
        "BLOCKS": -(-c.outputs // tile.rows), "BY_CHANNELS": int(order.by_channels),
    }  # fmt: skip
    source = kernel_source("window", c.element_type, **defines) + kernel_source("implicit_gemm", c.element_type)
    arguments = [c.x, arranged_weights(b, c, order, tile.rows), table(b, order.taps), table(b, order.phases)]
    size = (
        -(-c.columns // tile.columns) * tile.lanes_n,
        -(-c.outputs // tile.rows) * tile.lanes_m,
        c.groups * len(c.parts) * tile.splits,
    )
    local = (tile.lanes_n, tile.lanes_m, 1)
    if tile.splits == 1:
        b.launch(HELPERS + source, "implicit_gemm", [*arguments, *c.added, c.result], size, local)
        return
    sums = b.temporary(4 * total * tile.splits)
    b.launch(source, "implicit_gemm", [*arguments, sums], size, local)
    ending = ("M", "SIZE", "SPLITS", "TOTAL", "BIAS", "RESIDUAL", "EPILOGUE")
    join = kernel_source("join", c.element_type, **{name: defines[name] for name in ending})
    b.launch(HELPERS + join, "join", [sums, *c.added, c.result], (total,))


def tiles_of(facts: DeviceFacts, c: Convolution) -> list[Tile]:
    """The tiles that the device has room for, those first that are likely to be fast; none where the GPU is tiny."""
    possible = [t for t in TILES if t.items <= facts.max_work_group and t.local_bytes <= facts.local_bytes]
    found = []
    for tile in possible:
        most = max(c.depth // (tile.depth * _LEAST_STEPS), 1)
        found.append(min((replace(tile, splits=n) for n in _SPLITS if n <= most), key=lambda t: tile_cost(facts, c, t)))
    return sorted(found, key=lambda tile: tile_cost(facts, c, tile))


def tile_cost(facts: DeviceFacts, c: Convolution, tile: Tile) -> float:
    """Roughly the time that the busiest compute unit takes, in products of one item after the other."""
    split, batches = tile.splits, c.groups * len(c.parts) * tile.splits
    products = product_cost(facts, tile, c.outputs, c.columns, c.depth / split, batches)
    joined = 0 if split == 1 else (split + 1) * c.groups * c.outputs * c.columns
    weights = c.groups * c.outputs * c.depth
    return products + MOVE_COST * (joined + weights) / max(facts.compute_units, 1)


def product_cost(facts: DeviceFacts, tile: Tile, rows: int, columns: int, depth: float, batches: int) -> float:
    """The same for a batch of products.

    Groups come in waves, the last of which may leave units idle. An item that computes an a x b part of a tile reads
    a + b numbers for a * b products from local memory, as does a group from the cache; few items cannot hide how long
    that takes.
    """
    groups = -(-rows // tile.rows) * -(-columns // tile.columns) * batches
    waves = -(-groups // max(facts.compute_units, 1))
    own_m, own_n = tile.rows // tile.lanes_m, tile.columns // tile.lanes_n
    busy = min(1.0, waves * tile.items / _BUSY_ITEMS)
    read = (own_m + own_n) / (own_m * own_n) + _CACHE_COST * (tile.rows + tile.columns) / (tile.rows * tile.columns)
    return waves * tile.rows * tile.columns * depth * (1 + read) / busy
