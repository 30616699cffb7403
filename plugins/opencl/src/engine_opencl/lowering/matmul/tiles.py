"""Products for GPUs: tiles in local memory or, for few rows or columns, a single read of the long operand."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.startup import dataclass
from engine_opencl.devices.device import EMULATED
from engine_opencl.elements import c_type
from engine_opencl.expressions import HELPERS, for_type, functions_for
from engine_opencl.lowering.matmul.packing import batch_code
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.matmul.tile_candidates import (
    Candidate,
    DirectProduct,
    MatrixTile,
    Narrow,
    Tile,
    candidates_of,
    long_side,
    widest,
)
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import ending, kernel_source, strides_of

_BAND: Final = 8
"""Rows of tiles that are processed together."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A product, its epilogue and its buffers."""

    p: Product
    epilogue: Epilogue
    x: Buffer
    y: Buffer
    result: Buffer
    bias: Buffer | None
    residual: Buffer | None

    @property
    def added(self) -> list[Buffer]:
        """The summands of the result that are present: the bias, then the residual."""
        return [each for each in (self.bias, self.residual) if each is not None]

    def ending(self) -> dict[str, object]:
        """Definitions of the epilogue of all kernels."""
        return ending(for_type(self.epilogue.code(), c_type(self.p.real)), self.bias, self.residual)

    def site(self) -> str:
        """The key of the problem, for `LaunchPlanBuilder.choose`."""
        p = self.p
        ending = hashlib.sha256(repr(sorted(self.ending().items())).encode()).hexdigest()[:8]
        constant = "".join(name for name, each in (("A", self.x), ("B", self.y)) if each.weight is not None)
        batch = f" batch {p.batch} {p.a_batch} {p.b_batch}" if p.batch else ""
        return f"product {p.m}x{p.n}x{p.k} {p.a} {p.b}{batch} {p.real} constant [{constant}] epilogue {ending}"


def launch_tiles(b: LaunchPlanBuilder, o: Operands) -> None:
    """Launch a product with the chosen candidate."""
    b.choose(o.site(), candidates_of(o.p, b.facts), lambda b, candidate: _launch(b, o, candidate))


def _launch(b: LaunchPlanBuilder, o: Operands, candidate: Candidate) -> None:
    if isinstance(candidate, Tile):
        _launch_tile(b, o, candidate)
    elif isinstance(candidate, MatrixTile):
        _launch_matrix_tile(b, o, candidate)
    elif isinstance(candidate, Narrow):
        _launch_narrow(b, o, candidate)
    else:
        launch_direct(b, o, candidate)


def launch_direct(b: LaunchPlanBuilder, o: Operands, candidate: DirectProduct) -> None:
    """Launch a product of any type by a kernel without local memory."""
    p = o.p
    source = HELPERS + functions_for(c_type(p.real)) + kernel_source(
        "gemm",
        p.real,
        M=p.m, N=p.n, K=p.k, ROWS=candidate.rows,
        A_ROW=p.a[0], A_COL=p.a[1], B_ROW=p.b[0], B_COL=p.b[1],
        BATCH=batch_code(p.batch, a=p.a_batch, b=p.b_batch), **o.ending(),
    )  # fmt: skip
    size = (p.n, -(-p.m // candidate.rows), math.prod(p.batch))
    b.launch(source, "gemm", [o.x, o.y, o.result, *o.added], size)


def _launch_narrow(b: LaunchPlanBuilder, o: Operands, n: Narrow) -> None:
    p = o.p
    side = long_side(p)
    rows_are_short = p.m <= p.n
    step, k_step = side.short_steps
    source = HELPERS + kernel_source("vectors", p.real) + kernel_source(
        "narrow",
        p.real,
        ROWS_ARE_SHORT=int(rows_are_short), SHORT=side.short, LONG=side.length, K=p.k, ALONG_K=int(n.along_k),
        LANES=n.lanes, LINES=n.lines, WIDTH=n.width, LONG_STEP=side.step, LONG_K=side.k_step,
        SHORT_STEP=step, SHORT_K=k_step, SHORT_IS_VECTOR=int(
            k_step == 1 and widest(p.k, step, *side.short_batch) >= n.width
        ),
        BATCH=batch_code(p.batch, a=side.batch, b=side.short_batch), **o.ending(),
    )  # fmt: skip
    long, short = (o.y, o.x) if rows_are_short else (o.x, o.y)
    groups = -(-side.length // n.count) * math.prod(p.batch)
    local = n.local_bytes(side.short)
    b.launch(source, "narrow", [long, short, o.result, *o.added], (groups * n.items,), (n.items,), local)


def _launch_tile(b: LaunchPlanBuilder, o: Operands, t: Tile) -> None:
    p = o.p
    left = _arranged(b, Operand(o.x, p.m, p.k, *p.a, p.batch, p.a_batch))
    right = _arranged(b, Operand(o.y, p.n, p.k, p.b[1], p.b[0], p.batch, p.b_batch))
    batches = math.prod(p.batch)
    arithmetic = "#define HALF_PRODUCTS 1\n" if t.in_half else ""
    source = arithmetic + HELPERS + kernel_source("vectors", p.real) + kernel_source(
        "tiles",
        p.real,
        M=p.m, N=p.n, K=p.k, TM=t.m, TN=t.n, TK=t.k, ROW_ITEMS=t.row_items, COL_ITEMS=t.col_items,
        BUFFERS=t.buffers, SPLITS=t.splits, SPLIT_STEPS=t.steps(p), BAND=_BAND, BATCHES=batches,
        A_ROW=left.step, A_COL=left.k_step, A_ALONG_K=int(left.along_k), A_WIDTH=left.width(t.m * t.k // t.items),
        B_ROW=right.k_step, B_COL=right.step, B_ALONG_K=int(right.along_k), B_WIDTH=right.width(t.n * t.k // t.items),
        BATCH=batch_code(p.batch, a=left.batch_steps, b=right.batch_steps), **o.ending(),
    )  # fmt: skip
    size = (t.tiles(p) * t.splits * t.items,)
    if t.splits == 1:
        b.launch(source, "tiles", [left.buffer, right.buffer, o.result, *o.added], size, (t.items,), t.local_bytes)
        return
    _launch_splits(b, o, t, source, "tiles", [left.buffer, right.buffer], size, t.local_bytes)


def _launch_matrix_tile(b: LaunchPlanBuilder, o: Operands, t: MatrixTile) -> None:
    p, batches = o.p, math.prod(o.p.batch)
    left = _arranged(b, Operand(o.x, p.m, p.k, *p.a, p.batch, p.a_batch), 8)
    right = _arranged(b, Operand(o.y, p.n, p.k, p.b[1], p.b[0], p.batch, p.b_batch), 8)
    local = t.local_bytes_on(b.facts)
    unit = kernel_source(
        "matrix_unit", p.real,
        EMULATED=int(b.facts.matrix_unit == EMULATED), TM=t.m, TN=t.n, TK=t.k, WARPS_M=t.row_warps,
        WARPS_N=t.col_warps, A_ALONG_K=int(left.along_k), B_ALONG_K=int(right.along_k),
    )  # fmt: skip
    source = HELPERS + unit + kernel_source(
        "matrix_tiles", p.real,
        M=p.m, N=p.n, K=p.k, STAGES=t.stages, SPLITS=t.splits, SPLIT_STEPS=t.steps(p), BAND=_BAND, BATCHES=batches,
        A_ROW=left.step, A_COL=left.k_step, A_WIDTH=left.copy_width(), B_ROW=right.k_step, B_COL=right.step,
        B_WIDTH=right.copy_width(), BATCH=batch_code(p.batch, a=left.batch_steps, b=right.batch_steps), **o.ending(),
    )  # fmt: skip
    size = (t.tiles(p) * t.splits * t.items,)
    if t.splits == 1:
        b.launch(source, "matrix_tiles", [left.buffer, right.buffer, o.result, *o.added], size, (t.items,), local)
        return
    _launch_splits(b, o, t, source, "matrix_tiles", [left.buffer, right.buffer], size, local)


def _launch_splits(
    b: LaunchPlanBuilder,
    o: Operands,
    t: Tile | MatrixTile,
    source: str,
    kernel: str,
    operands: list[Buffer],
    size: tuple[int, ...],
    local_bytes: int,
) -> None:
    """Launch groups that share steps, and a kernel that adds their sums."""
    p, batches = o.p, math.prod(o.p.batch)
    sums = b.temporary(t.splits * batches * p.m * p.n * 4)
    b.launch(source, kernel, [*operands, sums], size, (t.items,), local_bytes)
    total = batches * p.m * p.n
    ending = kernel_source("add_splits", p.real, M=p.m, N=p.n, SPLITS=t.splits, TOTAL=f"{total}ul", **o.ending())
    b.launch(HELPERS + ending, "add_splits", [sums, o.result, *o.added], (total,))


@dataclass(frozen=True, slots=True)
class Operand:
    """Matrices [LENGTH, K] in a buffer, one for each place of `batch`, by strides in elements.

    Attributes:
        padding: zeros after each row of neighbours along the length.
    """

    buffer: Buffer
    length: int
    k: int
    step: int
    k_step: int
    batch: tuple[int, ...]
    batch_steps: tuple[int, ...]
    padding: int = 0

    @property
    def along_k(self) -> bool:
        """Whether neighbouring elements are along K."""
        return self.k_step == 1 and self.step != 1

    def width(self, most: int) -> int:
        """The number of elements per load, at most 4."""
        most = min(most, 4)
        if self.along_k:
            return widest(self.k, self.step, *self.batch_steps, most=most)
        if self.step != 1:
            return 1
        return widest(self.length + self.padding, self.k_step, *self.batch_steps, most=most)

    def copy_width(self) -> int:
        """The number of elements per copy to local memory; the last of a row may be partial."""
        if self.along_k:
            return widest(self.step, *self.batch_steps, most=8)
        return widest(self.k_step, *self.batch_steps, most=8) if self.step == 1 else 1


def _arranged(b: LaunchPlanBuilder, x: Operand, width: int = 4) -> Operand:
    """A constant with neighbours along its length for loads of `width`; other operands unchanged."""
    is_wide = x.width(4) == 4 if width == 4 else x.copy_width() == width
    if x.buffer.weight is None or (not x.along_k and is_wide):
        return x
    make = b.weights[x.buffer.weight]
    pitch = -(-x.length // width) * width
    places = tuple(1 if step == 0 else n for n, step in zip(x.batch, x.batch_steps, strict=True))
    layout = (x.length, x.k, x.step, x.k_step, places, x.batch_steps)

    def arranged() -> NDArray[Any]:
        data = np.ascontiguousarray(make()).reshape(-1)
        steps = tuple(data.itemsize * step for step in (*x.batch_steps, x.k_step, x.step))
        full = np.zeros((*places, x.k, pitch), data.dtype)
        full[..., : x.length] = np.lib.stride_tricks.as_strided(data, (*places, x.k, x.length), steps)
        return full

    buffer = b.weight(("along its length", pitch, x.buffer.weight, layout), arranged)
    own = strides_of((*places, x.k, pitch))[:-2]
    steps = tuple(0 if n == 1 else step for n, step in zip(places, own, strict=True))
    return Operand(buffer, x.length, x.k, 1, pitch, x.batch, steps, pitch - x.length)
