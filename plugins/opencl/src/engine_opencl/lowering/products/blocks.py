"""Products and convolutions in the shape that suits CPUs: a work item has a block of the result.

Vectors are written out, since what a driver makes of neighbouring items differs from driver to driver. The block's part
of the right operand is copied next to the core while it is used, so that it may be read from anywhere: a row-major or
transposed matrix, or the input of a convolution as its taps see it, with the padding left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from engine.ir import ElementType
from engine.ir.element_type import f16, f32
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.products.packing import Matrices, batch_code, packed
from engine_opencl.plan import Buffer, PlanBuilder
from engine_opencl.source import element_access, kernel_source, lanes_access, lanes_source, strides_of

if TYPE_CHECKING:
    from engine_opencl.lowering.products.matmul import Epilogue

_DEPTH: Final = 256
"""Rows of the right operand that are copied at once: with the columns of an item they fill a cache of 32 KiB."""
_PANELS: Final = 16
"""Panels of rows that use a copy before it is thrown away."""
_ITEMS: Final = 8
"""Work items for each compute unit, so that none waits long for the last."""
MOST_TAPS: Final = 4 * _DEPTH
"""All taps of a channel are copied together, into memory that a driver takes from a thread's stack."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The right operand of a convolution: the channels of its input through taps.

    Attributes:
        inputs, outputs, strides: along the axes of space.
        taps: for each tap its distance in the input from where a result's window begins.
        first, step: where results are stored along each axis; shape: the lengths of what they are stored in.
        size: elements of the whole input.
        batch_steps: elements from one index to the next along each axis of the batch.
    """

    buffer: Buffer
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    strides: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    step: tuple[int, ...]
    shape: tuple[int, ...]
    size: int
    batch_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """What an item computes: `panels` times `rows` rows, `vectors` vectors of `width` columns in runs of `lanes`."""

    rows: int
    panels: int
    vectors: int
    width: int
    lanes: int


def block_of(facts: DeviceFacts, m: int, columns: Sequence[int], batches: int) -> Block:
    """The block for `m` rows and for columns in `columns[0]` runs of length `columns[1]`."""
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
    tiles = -(-segments * lanes // (vectors * width))
    panels = min(-(-m // rows), _PANELS)
    while panels > 4 and tiles * batches * -(-m // (rows * panels)) < _ITEMS * facts.compute_units:
        panels = -(-panels // 2)
    return Block(rows, panels, vectors, width, lanes)


def best_lanes(width: int, length: int) -> int:
    """How columns in runs of `length` are cut: short runs compute less in vain, long ones are copied faster."""
    return min((n for n in (16, 8, 4) if n <= width), key=lambda n: -(-length // n) * (n + 1))


def launch_blocks(
    b: PlanBuilder,
    a: Matrices,
    right: Matrices | Seen,
    result: Buffer,
    n: int,
    epilogue: Epilogue,
    bias: Buffer | None = None,
    residual: Buffer | None = None,
    *,
    bias_steps: Sequence[int] = (),
) -> None:
    """Launch C[batch] = A[batch] B[batch], each stored as `a.real`, with `a` as rows of [M, K] and C with rows of `n`.

    `bias_steps`: how far the rows of the bias move from one index to the next along each axis of `a.batch`.
    """
    if not a.length:
        return
    runs = (1, n) if isinstance(right, Matrices) else (math.prod(right.outputs[:-1]), right.outputs[-1])
    block = block_of(b.facts, a.length, runs, math.prod(a.batch))
    left, left_real, a_steps = _left(b, a, block)
    if isinstance(right, Matrices):
        y, right_real, y_steps, defines = _matrix(b, right, block, a.length)
    else:
        y, right_real, y_steps, defines = right.buffer, a.real, right.batch_steps, _seen(right, block)
    segments = runs[0] * -(-runs[1] // block.lanes)
    tiles = -(-segments * block.lanes // (block.vectors * block.width))
    taps = int(defines["TAPS"])  # type: ignore[call-overload]
    access = element_access(left_real, "LEFT") + element_access(right_real, "RIGHT")
    access += lanes_access(right_real, "RIGHT", block.lanes, "lanes")
    access += lanes_access(right_real, "RIGHT", block.width, "vector") + lanes_source(a.real, block.lanes)
    moves = {"a_start": a_steps, "b_start": y_steps, "bias_start": bias_steps or (0,) * len(a.batch)}
    source = HELPERS + access + kernel_source(
        "blocks",
        a.real,
        M=a.length, N=n, K=a.k, ROWS=block.rows, PANELS=block.panels, VECTORS=block.vectors, WIDTH=block.width,
        LANES=block.lanes, DEPTH=_depth(taps), A_PACKED=int(left is not a.buffer), A_ROW=a.step, A_COL=a.k_step,
        C_ROW=f"{n}ul", BATCH=batch_code(a.batch, **moves), EPILOGUE=epilogue.lanes_code(),
        BIAS=int(bias is not None), RESIDUAL=int(residual is not None), **{"C_STEP": 1, "B_DIRECT": 0, **defines},
    )  # fmt: skip
    arguments = [left, y, result, *(each for each in (bias, residual) if each is not None)]
    rows = -(-a.length // (block.rows * block.panels))
    b.launch(source, "blocks", arguments, (tiles, rows, math.prod(a.batch)), (1, 1, 1))


def _depth(taps: int) -> int:
    return max(_DEPTH // taps, 1) * taps if taps else _DEPTH


def _left(b: PlanBuilder, a: Matrices, block: Block) -> tuple[Buffer, ElementType, Sequence[int]]:
    """The left operand: as it is where the numbers for a row can be read one by one, else in panels."""
    if a.buffer.weight is None and a.real is not f16:
        return a.buffer, f32, a.batch_steps
    return _packed(b, a, block.rows)


def _matrix(
    b: PlanBuilder, y: Matrices, block: Block, m: int
) -> tuple[Buffer, ElementType, Sequence[int], dict[str, object]]:
    """A right operand that is a matrix, for `m` rows of the left one.

    Constants are brought into the order in which they are read. What only one panel uses is not copied either, where
    all items have whole vectors of it.
    """
    width = block.vectors * block.width
    if y.buffer.weight is not None:
        defines: dict[str, object] = {"B_DIRECT": 1, "B_ROW": width, "B_TILE": y.k * width}
        return *_packed(b, y, width), {"TAPS": 0, **defines}
    is_direct = m <= block.rows and y.step == 1 and y.length % width == 0
    defines = {"B_DIRECT": int(is_direct), "B_ROW": y.k_step, "B_COL": y.step, "B_TILE": width}
    return y.buffer, y.real, y.batch_steps, {"TAPS": 0, **defines}


def _packed(b: PlanBuilder, x: Matrices, width: int) -> tuple[Buffer, ElementType, Sequence[int]]:
    """Matrices in blocks of `width`, those of different places only once, and how far they are apart."""
    axes = [axis for axis, step in enumerate(x.batch_steps) if step]
    own = replace(x, batch=tuple(x.batch[i] for i in axes), batch_steps=tuple(x.batch_steps[i] for i in axes))
    size = -(-x.length // width) * width * x.k
    steps = [0] * len(x.batch)
    for axis, step in zip(axes, strides_of(own.batch), strict=True):
        steps[axis] = step * size
    return packed(b, own, width), own.packed_real, steps


def _seen(x: Seen, block: Block) -> dict[str, object]:
    (_, ch, cw), (fd, fh, fw), (td, th, tw) = x.shape, x.first, x.step
    places = list(zip(*x.taps, strict=True))
    defines: dict[str, object] = {
        "TAPS": len(x.taps), "B_SIZE": f"{x.size}l", "C_STEP": tw, "ROW_SEGMENTS": -(-x.outputs[2] // block.lanes),
        "COLUMN": f"(({fd} + od * {td}) * {ch} + {fh} + oh * {th}) * {cw} + {fw} + first * {tw}",
    }  # fmt: skip
    for axis, name in enumerate("DHW"):
        defines |= {
            f"I{name}": x.inputs[axis], f"O{name}": x.outputs[axis], f"S{name}": x.strides[axis],
            f"TAP_{name}": ", ".join(map(str, places[axis])),
        }  # fmt: skip
    return defines
