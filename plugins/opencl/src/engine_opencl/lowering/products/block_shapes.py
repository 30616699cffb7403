"""The shapes that there are for a product or convolution on a CPU, and which to begin with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from engine_opencl.devices.device import DeviceFacts
from engine_opencl.lowering.products.packing import Matrices

if TYPE_CHECKING:
    from engine_opencl.lowering.products.blocks import BlockProduct

_PANELS: Final = 16
"""Panels of rows that use a copy before it is thrown away."""
_ITEMS: Final = 8
"""Work items for each compute unit, so that none waits long for the last."""
_LEAST_WORK: Final = 1 << 20
"""Multiply-adds from which a shape can matter: less is over sooner than a launch."""
_LEAST_ROWS: Final = 4
"""With fewer rows, all shapes wait for the right operand."""
_MOST_CONSTANT: Final = 64 << 20
"""Bytes of a constant up to which it is brought into the order of several shapes at once, while they are measured."""
_OTHERS: Final = {16: ((4, 4), (6, 4), (8, 3)), 8: ((3, 4), (4, 3)), 4: ((4, 4), (6, 4))}
"""Rows and vectors that are worth a measurement beside the rule's, by width: as many sums, and wider or higher."""


@dataclass(frozen=True, slots=True)
class Block:
    """What an item computes: `panels` times `rows` rows, `vectors` vectors of `width` columns in runs of `lanes`."""

    rows: int
    panels: int
    vectors: int
    width: int
    lanes: int

    def __str__(self) -> str:
        return f"block {self.rows}x{self.vectors} of {self.width}, {self.panels} panels, runs of {self.lanes}"

    def tiles(self, runs: tuple[int, int]) -> int:
        """How many blocks lie beside each other, with columns in `runs[0]` runs of length `runs[1]`."""
        return -(-runs[0] * -(-runs[1] // self.lanes) * self.lanes // (self.vectors * self.width))


def block_of(facts: DeviceFacts, m: int, columns: tuple[int, int], batches: int) -> Block:
    """The block for `m` rows and for columns in `columns[0]` runs of length `columns[1]`, as far as a rule can tell."""
    width = facts.vector_width
    # CPUs with vectors of 8 have registers for 16 of them, others for 32.
    most = 6 if width == 8 else 8
    rows = min(range(min(m, most), 0, -1), key=lambda r: -(-m // r) * (r + 1))
    runs, length = columns
    lanes = width if runs == 1 else best_lanes(width, length)
    segments = runs * -(-length // lanes)
    vectors = max(2, min(8, most * 2 // rows))
    while vectors > 1 and segments * lanes < vectors * width * (1 if rows > 2 else 2 * facts.compute_units):
        vectors //= 2
    block = Block(rows, 1, vectors, width, lanes)
    return replace(block, panels=_panels(facts, block, m, columns, batches))


def best_lanes(width: int, length: int) -> int:
    """How columns in runs of `length` are cut: short runs compute less in vain, long ones are copied faster."""
    return min((n for n in (16, 8, 4) if n <= width), key=lambda n: _cut_cost(n, length))


def blocks_of(facts: DeviceFacts, p: BlockProduct) -> list[Block]:
    """What is worth a measurement for a product, the rule's first."""
    m, runs, batches = p.a.length, p.runs, math.prod(p.a.batch)
    columns = math.prod(runs)

    def with_panels(block: Block) -> Block:
        return replace(block, panels=_panels(facts, block, m, runs, batches))

    default = block_of(facts, m, runs, batches)
    if m < _LEAST_ROWS or m * columns * p.a.k * batches < _LEAST_WORK or _constant_bytes(p) > _MOST_CONSTANT:
        return [default]
    others = [
        with_panels(replace(default, rows=rows, vectors=vectors))
        for rows, vectors in _OTHERS[default.width]
        if (rows, vectors) != (default.rows, default.vectors) and rows <= m and vectors * default.width <= columns
    ]
    if runs[0] > 1:
        # What long runs cost depends on the stride, too, which the rule does not know.
        lanes = [n for n in (16, 8, 4) if n <= default.width and n != default.lanes]
        cut = min(lanes, key=lambda n: _cut_cost(n, runs[1]), default=default.lanes)
        others.insert(1, replace(default, lanes=cut))
    return list(dict.fromkeys([default, *others]))


def _panels(facts: DeviceFacts, block: Block, m: int, runs: tuple[int, int], batches: int) -> int:
    """How many panels of rows an item has, so that there are items enough."""
    panels = min(-(-m // block.rows), _PANELS)
    while panels > 4 and block.tiles(runs) * batches * -(-m // (block.rows * panels)) < _ITEMS * facts.compute_units:
        panels = -(-panels // 2)
    return panels


def _cut_cost(lanes: int, length: int) -> int:
    return -(-length // lanes) * (lanes + 1)


def _constant_bytes(p: BlockProduct) -> int:
    """Of all constants, in f32."""
    constants = [x for x in (p.a, p.right) if x.buffer.weight is not None]
    return sum(4 * x.length * x.k * x.count for x in constants if isinstance(x, Matrices))
