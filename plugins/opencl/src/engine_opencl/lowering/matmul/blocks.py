"""Products and convolutions for CPUs: a work item computes a block of the result.

Vectors are explicit, since vectorization over items differs between drivers. The block's part of the right operand is
copied to private memory, so that it may come from any source: a row-major or transposed matrix, or the input of a
convolution through its taps, without padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from engine.ir import ElementType
from engine.ir.element_type import f32
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.matmul.block_product import BlockProduct, WindowedInput
from engine_opencl.lowering.matmul.block_shapes import Block, blocks_of
from engine_opencl.lowering.matmul.packing import Matrices, batch_code, packed
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import element_access, ending, kernel_source, lanes_access, lanes_source, strides_of

MAX_TAPS: Final = 1024
"""The maximum number of taps: all taps of a channel are copied together into memory on a thread's stack."""

_PANELS: Final = 8
"""Panels for whose sums an item has memory at least: blocks of fewer panels then share a source."""


def launch_blocks(b: LaunchPlanBuilder, p: BlockProduct) -> None:
    """Launch a product with the chosen block shape."""
    if p.a.length:
        b.choose(p.site(), blocks_of(b.facts, p), lambda builder, block: launch_block(builder, p, block))


def launch_block(b: LaunchPlanBuilder, p: BlockProduct, block: Block) -> None:
    """Launch a product in which each item computes a block of this shape."""
    a, right, n = p.a, p.right, p.n
    left, left_real, a_steps = _left(b, a, block)
    if isinstance(right, Matrices):
        y, right_real, y_steps, defines = _matrix(b, right, block, a.length)
        pitch = right.step if right.k_step == 1 else right.k_step
    else:
        y, right_real, y_steps, defines = right.buffer, a.real, right.batch_steps, _windowed_input(right, block)
        pitch = 0
    taps = int(defines["TAPS"])  # type: ignore[call-overload]
    depth = max(block.depth(a.length, a.k) // max(taps, 1), 1) * max(taps, 1)
    is_split = depth < a.k
    access = element_access(left_real, "LEFT") + element_access(right_real, "RIGHT")
    access += lanes_access(right_real, "RIGHT", block.lanes, "lanes")
    access += lanes_access(right_real, "RIGHT", block.width, "vector") + lanes_source(a.real, block.lanes)
    axes = [axis for axis, length in enumerate(a.batch) if length > 1]
    steps = {"a_start": a_steps, "b_start": y_steps, "bias_start": p.bias_steps or (0,) * len(a.batch)}
    if len(axes) > 1:
        batch, moves = batch_code(a.batch, **steps), [0, 0, 0]
    else:
        batch = "a_start = r * A_STEP; b_start = r * B_STEP; bias_start = r * BIAS_STEP;"
        moves = [sum(each[axis] for axis in axes) for each in steps.values()]
    source = HELPERS + access + kernel_source(
        "blocks",
        a.real,
        ROWS=block.rows, SUM_PANELS=max(block.panels, _PANELS) if is_split else 1, IS_SPLIT=int(is_split),
        VECTORS=block.vectors, WIDTH=block.width, LANES=block.lanes, DEPTH=depth,
        A_PACKED=int(left is not a.buffer), A_COL=a.k_step, BATCH=batch,
        **ending(p.epilogue.lanes_code(), p.bias, p.residual),
        **{"C_STEP": 1, "B_DIRECT": 0, **defines},
    )  # fmt: skip
    buffers = [left, y, p.result, *(each for each in (p.bias, p.residual) if each is not None)]
    arguments: list[Given] = [*buffers, a.length, n, a.k, a.step, pitch, block.panels, *map(np.uint64, moves)]
    rows = -(-a.length // (block.rows * block.panels))
    b.launch(source, "blocks", arguments, (block.tiles(p.runs), rows, math.prod(a.batch)), (1, 1, 1))


def _left(b: LaunchPlanBuilder, a: Matrices, block: Block) -> tuple[Buffer, ElementType, Sequence[int]]:
    """The left operand: in place if elements of a row can be read one by one, otherwise packed in panels."""
    if a.buffer.weight is None and a.real is f32:
        return a.buffer, f32, a.batch_steps
    return _packed(b, a, block.rows)


def _matrix(
    b: LaunchPlanBuilder, y: Matrices, block: Block, m: int
) -> tuple[Buffer, ElementType, Sequence[int], dict[str, object]]:
    """A right operand that is a matrix, for `m` rows of the left one.

    Constants are packed in read order. An operand used by only one panel is not copied if all items read whole vectors.
    """
    width = block.vectors * block.width
    if y.buffer.weight is not None:
        defines: dict[str, object] = {"B_DIRECT": 1, "B_ROW": width, "B_TILE": f"K * {width}ul"}
        return *_packed(b, y, width), {"TAPS": 0, **defines}
    is_direct = m <= block.rows and y.step == 1 and y.length % width == 0
    row, column = (1, "B_PITCH") if y.k_step == 1 else ("B_PITCH", 1) if y.step == 1 else (y.k_step, y.step)
    defines = {"B_DIRECT": int(is_direct), "B_ROW": row, "B_COL": column, "B_TILE": width}
    return y.buffer, y.real, y.batch_steps, {"TAPS": 0, **defines}


def _packed(b: LaunchPlanBuilder, x: Matrices, width: int) -> tuple[Buffer, ElementType, Sequence[int]]:
    """Matrices packed in blocks of `width`, each distinct one once, and their strides."""
    axes = [axis for axis, step in enumerate(x.batch_steps) if step]
    own = replace(x, batch=tuple(x.batch[i] for i in axes), batch_steps=tuple(x.batch_steps[i] for i in axes))
    size = -(-x.length // width) * width * x.k
    steps = [0] * len(x.batch)
    for axis, step in zip(axes, strides_of(own.batch), strict=True):
        steps[axis] = step * size
    return packed(b, own, width), own.packed_real, steps


def _windowed_input(x: WindowedInput, block: Block) -> dict[str, object]:
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
