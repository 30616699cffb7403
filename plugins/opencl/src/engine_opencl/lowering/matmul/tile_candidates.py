"""The candidate kernels for a product on a GPU, and the default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from engine.ir.element_type import f16, f32
from engine.startup import dataclass
from engine_opencl.devices.device import EMULATED, DeviceFacts
from engine_opencl.lowering.matmul.product import Product

MAX_SHORT: Final = 8
"""Maximum rows or columns for which the long operand is read once, without tiles."""
_MAX_CANDIDATES: Final = 12
_MAX_MATRIX: Final = 9
SPARE_LOCAL_BYTES: Final = 128
"""Bytes that NVIDIA's driver (580.159) may add to the local memory of a kernel."""
_MAX_IN_HALF: Final = 4
_HOPELESS: Final = 4
"""Candidates whose cost exceeds the best by this factor are dropped."""
_MAX_DIRECT: Final = 1 << 24
"""Multiply-adds up to which local memory may cost more than it saves."""
_LANES: Final = 256
"""The approximate number of items that keeps a compute unit busy."""
_LINE: Final = 16
"""The approximate number of elements per memory transaction."""
LAUNCH_COST: Final = 5000
"""The cost of one more kernel launch, in units of `cost`."""
_SMALL_K: Final = 16
"""With fewer steps, adding partial sums takes longer than the steps."""


@dataclass(frozen=True, slots=True)
class DirectProduct:
    """An item computes several rows of a column, without local memory."""

    rows: int

    def __str__(self) -> str:
        return f"direct {self.rows}"


@dataclass(frozen=True, slots=True)
class Tile:
    """The parameters of `kernels/tiles.cl`.

    Attributes:
        m, n, k: rows and columns of C per group, and steps along K per tile.
        row_items, col_items: items of a group along rows and columns.
        buffers: tiles of each operand in local memory.
        splits: groups that share the steps along K of one tile.
        in_half: whether products are computed in half precision, and accumulated so for a few steps; see
            `kernels/real.cl`.
    """

    m: int
    n: int
    k: int
    row_items: int
    col_items: int
    buffers: int
    splits: int = 1
    in_half: bool = False

    def __str__(self) -> str:
        shape = f"tile {self.m}x{self.n}x{self.k} {self.row_items}x{self.col_items} b{self.buffers} s{self.splits}"
        return f"{shape} half" if self.in_half else shape

    @property
    def items(self) -> int:
        """The number of work items in a work group."""
        return self.row_items * self.col_items

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory per work group."""
        return self.buffers * self.k * (self.m + self.n + 8) * (2 if self.in_half else 4)

    def tiles(self, p: Product) -> int:
        """The number of tiles in C, over all batches."""
        return -(-p.m // self.m) * -(-p.n // self.n) * math.prod(p.batch)

    def steps(self, p: Product) -> int:
        """The number of steps along K of a group, a multiple of the tile's."""
        return -(-p.k // (self.splits * self.k)) * self.k


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """The parameters of `kernels/matrix_tiles.cl`.

    Attributes:
        m, n, k: rows and columns of C per group, and steps along K per tile.
        row_warps, col_warps: warps of a group along rows and columns.
        stages: tiles of each operand in local memory.
        splits: groups that share the steps along K of one tile.
    """

    m: int
    n: int
    k: int
    row_warps: int
    col_warps: int
    stages: int
    splits: int = 1

    def __str__(self) -> str:
        return f"matrix {self.m}x{self.n}x{self.k} {self.row_warps}x{self.col_warps} b{self.stages} s{self.splits}"

    @property
    def items(self) -> int:
        """The number of work items in a work group: 32 for each warp."""
        return 32 * self.row_warps * self.col_warps

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory per work group."""
        kept = 16 * self.row_warps * (self.n + 4 * self.col_warps) * 4
        return max(self.stages * self.k * (self.m + self.n) * 2, kept)

    def local_bytes_on(self, facts: DeviceFacts) -> int:
        """The same on a device, which may emulate the units in local memory."""
        return self.local_bytes + (24 * self.items if facts.matrix_unit == EMULATED else 0)

    def tiles(self, p: Product) -> int:
        """The number of tiles in C, over all batches."""
        return -(-p.m // self.m) * -(-p.n // self.n) * math.prod(p.batch)

    def steps(self, p: Product) -> int:
        """The number of steps along K of a group, a multiple of the tile's."""
        return -(-p.k // (self.splits * self.k)) * self.k


@dataclass(frozen=True, slots=True)
class Narrow:
    """The parameters of `kernels/narrow.cl`: `width` elements per load, `lanes` x `lines` items per group."""

    along_k: bool
    lanes: int
    lines: int
    width: int

    def __str__(self) -> str:
        return f"narrow {'k' if self.along_k else 'n'} {self.lanes}x{self.lines} w{self.width}"

    @property
    def items(self) -> int:
        """The number of work items in a work group."""
        return self.lanes * self.lines

    @property
    def count(self) -> int:
        """Elements of the long side that a group computes."""
        return self.lines if self.along_k else self.lanes * self.width

    def local_bytes(self, short: int) -> int:
        """Bytes of local memory per work group."""
        return short * (self.lanes if self.along_k else self.lines) * (self.count + 1) * 4


Candidate: TypeAlias = "DirectProduct | Tile | MatrixTile | Narrow"


@dataclass(frozen=True, slots=True)
class Long:
    """The long operand of a narrow product: `length` rows, `step` apart, of K elements, `k_step` apart."""

    length: int
    step: int
    k_step: int
    batch: tuple[int, ...]
    short: int
    short_steps: tuple[int, int]
    short_batch: tuple[int, ...]


def long_side(p: Product) -> Long:
    """The long operand of a product, and the other's strides."""
    if p.m <= p.n:
        return Long(p.n, p.b[1], p.b[0], p.b_batch, p.m, (p.a[0], p.a[1]), p.a_batch)
    return Long(p.m, p.a[0], p.a[1], p.a_batch, p.n, (p.b[1], p.b[0]), p.b_batch)


def widest(length: int, *steps: int, most: int = 4) -> int:
    """The largest number of neighbouring elements per load such that all loads are whole and aligned."""
    return next(
        width for width in (8, 4, 2, 1) if width <= most and all(each % width == 0 for each in (length, *steps))
    )


def candidates_of(p: Product, facts: DeviceFacts) -> list[Candidate]:
    """The candidates that the device can run for a product, the best by `cost` first."""
    direct = DirectProduct(8 if p.m >= 8 else p.m)
    if p.k == 0 or facts.kind == "cpu":
        return [direct]
    if min(p.m, p.n) <= MAX_SHORT:
        found: list[Candidate] = [*_narrow(p, facts)]
        is_small = p.k <= _SMALL_K or max(p.m, p.n) < _LINE
        found.insert(0 if is_small else 3, direct)
        return found
    tiles: list[Candidate] = [*matrix_tiles_of(p, facts)[:_MAX_MATRIX], *_in_half_too(tiles_of(p, facts), p, facts)]
    found = tiles[:_MAX_CANDIDATES]
    if not found or p.m * p.n * p.k * math.prod(p.batch) <= _MAX_DIRECT:
        found.insert(3, direct)
    return found


MATRIX_TILES: Final = (
    MatrixTile(128, 128, 32, 2, 2, 2),
    MatrixTile(128, 128, 32, 2, 4, 2),
    MatrixTile(128, 128, 16, 2, 2, 4),
    MatrixTile(128, 64, 32, 2, 2, 3),
    MatrixTile(64, 128, 32, 2, 2, 3),
    MatrixTile(64, 64, 32, 2, 2, 4),
    MatrixTile(64, 64, 64, 2, 2, 2),
    MatrixTile(64, 32, 64, 2, 2, 3),
    MatrixTile(32, 64, 64, 2, 2, 3),
    MatrixTile(32, 32, 64, 2, 2, 4),
    MatrixTile(32, 128, 32, 1, 4, 3),
    MatrixTile(16, 128, 64, 1, 4, 2),
)
"""Shapes for matrix units: each warp has at least 16 rows and 16 columns."""


def matrix_tiles_of(p: Product, facts: DeviceFacts, shapes: Sequence[MatrixTile] = MATRIX_TILES) -> list[MatrixTile]:
    """The shapes for a product of f16 or bf16 on a device with matrix units, the best by `matrix_cost` first."""
    if p.real is f32 or not facts.matrix_unit:
        return []
    tiles = []
    for t in shapes:
        if t.items > facts.max_work_group or t.local_bytes + SPARE_LOCAL_BYTES > facts.local_bytes:
            continue
        wanted = -(-2 * facts.compute_units // t.tiles(p))
        splits = 1 << max(min(wanted, p.k // (4 * t.k)), 1).bit_length() - 1
        tiles += [t, *(replace(t, splits=each) for each in (splits, splits // 2) if each > 1)]
    return sorted(tiles, key=lambda tile: matrix_cost(tile, p, facts))


_UNIT_RATE: Final = 800
"""Multiply-adds of f16 or bf16 per cycle and compute unit that matrix units sustain."""
_COPY_RATE: Final = 40
"""Bytes per cycle and compute unit that are copied to local memory."""
_DEVICE_RATE: Final = 16
"""Bytes per cycle and compute unit from and to the device's memory."""
_SPLIT_CYCLES: Final = 8000
"""The approximate number of cycles of another launch."""


def matrix_cost(t: MatrixTile, p: Product, facts: DeviceFacts) -> float:
    """The estimated number of cycles of a tile's kernel.

    The groups of a compute unit share its matrix units; a group alone does not keep them busy.
    """
    groups = t.tiles(p) * t.splits / facts.compute_units
    step = t.m * t.n / _UNIT_RATE + 2 * (t.m + t.n) / _COPY_RATE
    turns = 1.5 if groups <= 1 else groups + 0.5
    passed = t.steps(p) * step * turns
    if t.splits > 1:
        moved = (t.splits * 8 + 2) * p.m * p.n * math.prod(p.batch)
        passed += _SPLIT_CYCLES + moved / (_DEVICE_RATE * facts.compute_units)
    return passed


def _in_half_too(tiles: list[Tile], p: Product, facts: DeviceFacts) -> list[Tile]:
    """The best tiles, each followed by its half-precision variant if supported, which only measurement can judge."""
    if p.real is not f16 or not facts.has_half_products:
        return tiles
    pairs = [each for tile in tiles[:_MAX_IN_HALF] for each in (tile, replace(tile, in_half=True))]
    return [*pairs, *tiles[_MAX_IN_HALF:]]


TILES: Final = (
    Tile(128, 128, 16, 16, 16, 2),
    Tile(128, 128, 16, 16, 16, 1),
    Tile(128, 128, 8, 16, 16, 2),
    Tile(128, 64, 16, 16, 8, 2),
    Tile(64, 128, 16, 8, 16, 2),
    Tile(64, 128, 8, 8, 16, 2),
    Tile(64, 64, 16, 8, 8, 2),
    Tile(64, 64, 16, 16, 16, 2),
    Tile(64, 64, 16, 16, 16, 1),
    Tile(64, 64, 16, 8, 16, 1),
    Tile(32, 64, 16, 8, 16, 2),
    Tile(64, 32, 16, 16, 8, 2),
    Tile(32, 32, 32, 8, 8, 2),
    Tile(32, 128, 16, 4, 32, 2),
    Tile(16, 64, 32, 4, 16, 2),
    Tile(64, 16, 32, 16, 4, 2),
)
"""Tile shapes of powers of two; a group has at least as many items as the tile length, each at least 4 x 4 elements."""


def tiles_of(p: Product, facts: DeviceFacts, shapes: Sequence[Tile] = TILES) -> list[Tile]:
    """Each shape, also with split steps if its tiles do not fill the device; sorted by `cost`."""
    tiles = []
    for t in shapes:
        if t.items > facts.max_work_group or t.local_bytes > facts.local_bytes:
            continue
        wanted = -(-2 * facts.compute_units // t.tiles(p))
        splits = 1 << max(min(wanted, p.k // (8 * t.k)), 1).bit_length() - 1
        tiles += [t, *(replace(t, splits=each) for each in (splits, splits // 2) if each > 1)]
    costs = {tile: cost(tile, p, facts) for tile in tiles}
    least = min(costs.values(), default=0.0)
    tiles = sorted((tile for tile in tiles if costs[tile] <= _HOPELESS * least), key=costs.__getitem__)
    # The candidates measured first should differ in more than the way they fill their tiles.
    best = set({(tile.m, tile.n): tile for tile in reversed(tiles)}.values())
    return sorted(tiles, key=lambda tile: tile not in best)


def cost(t: Tile, p: Product, facts: DeviceFacts) -> float:
    """The estimated time of a tile's kernel, in multiply-adds of an item.

    A step of an item costs its multiply-adds, its reads of local memory, about twice as expensive, and its share of
    filling the tiles. Groups of a compute unit take turns if they have more items than it has lanes. Split steps cost
    writing and reading the sums, and a launch.
    """
    rows, cols = t.m // t.row_items, t.n // t.col_items
    step = rows * cols + 2 * (rows + cols) + 10 * (t.m + t.n) / t.items + (16 if t.buffers == 1 else 8) / t.k
    groups = t.tiles(p) * t.splits / facts.compute_units
    # The last groups leave some compute units idle.
    turns = 1.0 if groups <= 1 else groups + 0.5
    passed = t.steps(p) * step * max(turns * t.items / _LANES, 1.0)
    if t.splits > 1:
        passed += LAUNCH_COST + moving_cost((t.splits + 1) * p.m * p.n * math.prod(p.batch), facts)
    return passed


def moving_cost(count: int, facts: DeviceFacts) -> float:
    """The estimated time for moving this many elements to or from memory, in the same unit."""
    return count * 4 / (20 * facts.compute_units)


def _narrow(p: Product, facts: DeviceFacts) -> list[Narrow]:
    """Groups that read whole memory lines, enough to fill the device if the product is large enough."""
    side = long_side(p)
    along_k = side.k_step == 1 and side.step != 1
    length = p.k if along_k else side.length
    other = (side.step if along_k else side.k_step, *side.batch)
    width = widest(length, *other) if 1 in (side.step, side.k_step) else 1
    if along_k:
        shapes = [(32, 8), (64, 4), (16, 16), (8, 32), (128, 2), (256, 1)]
    else:
        shapes = [(32, 8), (16, 16), (32, 16), (64, 4), (8, 32), (16, 32)]
    widths = [each for each in (4, 2, 1) if each <= width]
    found = [Narrow(along_k, lanes, lines, each) for each in widths for lanes, lines in shapes]
    found = [n for n in found if n.items <= facts.max_work_group and n.local_bytes(side.short) <= facts.local_bytes]
    batches = math.prod(p.batch)

    def merit(n: Narrow) -> tuple[float, ...]:
        groups = -(-side.length // n.count) * batches
        idle_lanes = n.lanes * n.width > 2 * (p.k if along_k else side.length)
        is_broken = n.lanes * n.width < _LINE
        fill = max(2 * facts.compute_units / groups, 1.0)
        return (idle_lanes, is_broken, fill, -n.width, shapes.index((n.lanes, n.lines)))

    return sorted(found, key=merit)[:_MAX_CANDIDATES]
