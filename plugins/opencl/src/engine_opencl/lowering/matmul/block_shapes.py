"""The candidate block shapes for a product or convolution on a CPU, and the default."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from engine.startup import dataclass
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering.matmul.block_product import BlockProduct
from engine_opencl.lowering.matmul.packing import Matrices

_PANELS: Final = 16
"""Row panels that use a copy before it is discarded."""
_ITEMS: Final = 8
"""Work items per compute unit, so that none waits long for the last."""
_MIN_WORK: Final = 1 << 20
"""Multiply-adds from which the shape matters: less work takes less time than a launch."""
_MIN_ROWS: Final = 4
"""With fewer rows, all shapes are bound by reading the right operand."""
_MAX_CONSTANT: Final = 64 << 20
"""Maximum bytes of a constant that is packed for several shapes at once while they are measured."""
_LARGE: Final = 1 << 18
"""Elements of the left operand beyond per-core caches: one block then has all columns, to read it once."""
_OTHERS: Final = {16: ((4, 4), (6, 4), (8, 2)), 8: ((3, 4), (4, 3), (6, 2)), 4: ((4, 4), (6, 4), (8, 2))}
"""Rows and vectors worth measuring in addition to the default, by width: as many sums or more, in wider blocks."""
_DEPTH: Final = 256
"""Maximum steps along K for which the right operand is copied at once."""
_COPIED: Final = 32 * 1024 // 4
"""Maximum number of elements copied at once: they fill a cache of 32 KiB."""


@dataclass(frozen=True, slots=True)
class Block:
    """The block of an item: `panels` times `rows` rows, `vectors` vectors of `width` columns in runs of `lanes`."""

    rows: int
    panels: int
    vectors: int
    width: int
    lanes: int

    def __str__(self) -> str:
        return f"block {self.rows}x{self.vectors} of {self.width}, {self.panels} panels, runs of {self.lanes}"

    def depth(self, m: int, k: int) -> int:
        """The number of steps for which the right operand is copied at once, for `m` rows and `k` steps.

        All of them if that avoids storing partial sums; a copy that is used once need not stay in the first-level
        cache.
        """
        is_whole = m <= self.rows or k <= _DEPTH
        return _DEPTH if is_whole else min(_COPIED // (self.vectors * self.width), _DEPTH)

    def tiles(self, runs: tuple[int, int]) -> int:
        """The number of blocks side by side, with columns in `runs[0]` runs of length `runs[1]`."""
        return -(-runs[0] * -(-runs[1] // self.lanes) * self.lanes // (self.vectors * self.width))


def block_of(facts: DeviceFacts, m: int, columns: tuple[int, int], k: int, batches: int) -> Block:
    """The default block for `m` rows and columns in `columns[0]` runs of length `columns[1]`, by a heuristic."""
    width = facts.vector_width
    # CPUs with vectors of 8 have 16 vector registers, others 32.
    most = 6 if width == 8 else 8
    rows = min(range(min(m, most), 0, -1), key=lambda r: -(-m // r) * (r + 1))
    runs, length = columns
    lanes = width if runs == 1 else best_lanes(width, length)
    segments = runs * -(-length // lanes)
    vectors = max(2, min(8, most * 2 // rows))
    while vectors > 1 and segments * lanes < vectors * width * (1 if rows > 2 else 2 * facts.compute_units):
        vectors //= 2
    is_in_four = 2 * width < segments * lanes <= 4 * width
    if width == 16 and rows > 4 and is_in_four and m * k >= _LARGE:
        rows, vectors = 4, 4
    tiles = -(-segments * lanes // (vectors * width))
    panels = min(-(-m // rows), _PANELS)
    while panels > 4 and tiles * batches * -(-m // (rows * panels)) < _ITEMS * facts.compute_units:
        panels = -(-panels // 2)
    return Block(rows, panels, vectors, width, lanes)


def best_lanes(width: int, length: int) -> int:
    """The lanes for columns in runs of `length`: short runs waste less work, long ones are copied faster."""
    return min((n for n in (16, 8, 4) if n <= width), key=lambda n: _cut_cost(n, length))


def is_worth_measuring(p: BlockProduct) -> bool:
    """Whether there are kernels other than the default."""
    work = p.a.length * math.prod(p.runs) * p.a.k * math.prod(p.a.batch)
    return p.a.length >= _MIN_ROWS and work >= _MIN_WORK and _constant_bytes(p) <= _MAX_CONSTANT


def blocks_of(facts: DeviceFacts, p: BlockProduct) -> list[Block]:
    """The blocks worth measuring for a product, the default first."""
    m, runs, batches = p.a.length, p.runs, math.prod(p.a.batch)
    columns = math.prod(runs)
    default = block_of(facts, m, runs, p.a.k, batches)
    if not is_worth_measuring(p):
        return [default]
    others = [
        # The rows of an item are kept, so that equally many use a copy.
        replace(default, rows=rows, vectors=vectors, panels=-(-default.panels * default.rows // rows))
        for rows, vectors in _OTHERS[default.width]
        if (rows, vectors) != (default.rows, default.vectors) and rows <= m and vectors * default.width < 2 * columns
    ]
    if runs[0] > 1:
        # The cost of long runs also depends on the stride, which the heuristic ignores.
        lanes = [n for n in (16, 8, 4) if n <= default.width and n != default.lanes]
        cut = min(lanes, key=lambda n: _cut_cost(n, runs[1]), default=default.lanes)
        others.insert(1, replace(default, lanes=cut))
    return list(dict.fromkeys([default, *others]))


def _cut_cost(lanes: int, length: int) -> int:
    return -(-length // lanes) * (lanes + 1)


def _constant_bytes(p: BlockProduct) -> int:
    """The bytes of all constants, in f32."""
    constants = [x for x in (p.a, p.right) if x.buffer.weight is not None]
    return sum(4 * x.length * x.k * x.count for x in constants if isinstance(x, Matrices))
