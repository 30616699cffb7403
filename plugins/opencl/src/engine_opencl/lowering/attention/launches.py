"""The launches of an attention: two products that read heads in place, and a softmax between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from engine.ir import ElementType, Output
from engine.ir.element_type import boolean, f32
from engine.ops.attention import Heads
from engine.startup import dataclass
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.elements import load_code, store_code, stored_c_type, stored_type
from engine_opencl.lowering.elementwise import literal
from engine_opencl.lowering.matmul.matmul import launch_product
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.matmul.tile_candidates import SPARE_LOCAL_BYTES, widest
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, kernel_text, strides_of


@dataclass(frozen=True, slots=True)
class AttentionOperand:
    """Q, K or V on the device, and its layout; `is_shared` if its buffer also has the others."""

    buffer: Buffer
    heads: Heads
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Softmax:
    """The computation between the two products.

    Attributes:
        before, after: how many keys before and after its own position a query attends to; -1 for all.
        offset: the position of the first query among the keys.
        lengths: the number of valid keys of each batch, [batch] i64; queries are then at the last positions.
        is_mask_cut: keys beyond the mask are forbidden; otherwise, the mask is broadcast.
        blind_is_zero, nan_is_zero: rows without allowed keys, or NaN probabilities, give zeros.
        shown: the output for the scores, and the stage at which they are written.
    """

    scale: float
    softcap: float = 0.0
    before: int = -1
    after: int = -1
    offset: int = 0
    mask: Output | None = None
    is_mask_cut: bool = True
    lengths: Output | None = None
    blind_is_zero: bool = True
    nan_is_zero: bool = False
    shown: tuple[Output, int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the scores need no change before the softmax, and are not an output."""
        bounds = (self.before, self.after) == (-1, -1)
        return bounds and not self.softcap and self.mask is None and self.lengths is None and self.shown is None


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(q k^T * scale + bias) v, written to `final`, the memory of `y`, with the layout `result`."""

    y: Output
    result: Heads
    final: Buffer
    q: AttentionOperand
    k: AttentionOperand
    v: AttentionOperand
    softmax: Softmax


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The parameters of `kernels/attention_tiles.cl`: queries of a group, and keys of a tile."""

    rows: int
    cols: int

    def __str__(self) -> str:
        return f"attention {self.rows}x{self.cols}"

    def local_bytes(self, size: int, width: int, blind_is_zero: bool) -> int:
        """Bytes of local memory for queries and keys of `size` elements, and values of `width`.

        Rows that see no key are recorded only if they give zeros.
        """
        pitch = self.rows + 4
        notes = self.rows if blind_is_zero else 0
        return 4 * (size * (pitch + self.cols + 1) + self.cols * (width + pitch) + 4 * self.rows + pitch + notes)


BY_PRODUCTS: Final = "products"
"""The candidate with a launch for each step, which stores all scores."""
_MIN_QUERIES: Final = 9
"""With fewer queries, tiles of them are mostly empty: products of few rows read K and V once."""
_TILES: Final = tuple(AttentionTile(*each) for each in ((32, 32), (16, 32), (32, 16), (16, 16)))


def attention_tiles(facts: DeviceFacts, q: Heads, k: Heads, v: Heads, softmax: Softmax) -> list[AttentionTile]:
    """The tiles that the device can run for an attention, the best first; none if separate products are better."""
    if facts.kind == "cpu" or softmax.shown is not None or q.rows < _MIN_QUERIES or 0 in (*q.shape, *k.shape, *v.shape):
        return []
    fitting = [
        tile
        for tile in _TILES
        if tile.local_bytes(q.size, v.size, softmax.blind_is_zero) + SPARE_LOCAL_BYTES <= facts.local_bytes
        and 4 * tile.rows <= facts.max_work_group
    ]

    def is_idle(tile: AttentionTile) -> bool:
        return q.batch * q.heads * -(-q.rows // tile.rows) < facts.compute_units

    return sorted(fitting, key=lambda tile: is_idle(tile) and tile.rows > _TILES[-1].rows)


def attend(
    y: Output,
    result: Heads,
    b: LaunchPlanBuilder,
    q: AttentionOperand,
    k: AttentionOperand,
    v: AttentionOperand,
    softmax: Softmax,
) -> None:
    """Launch softmax(q k^T * scale + bias) v, written to `y` with the layout `result`.

    If K and V have fewer heads, each serves several heads of Q.
    """
    a = Attention(y, result, b.output(y), q, k, v, softmax)
    tiles = attention_tiles(b.facts, q.heads, k.heads, v.heads, softmax)
    if not tiles:
        _by_products(b, a)
        return
    mask = "none" if softmax.mask is None else f"{softmax.mask.element_type} {b.shape(softmax.mask)}"
    window = f"{softmax.before} {softmax.after} {softmax.offset} {softmax.lengths is not None} {bool(softmax.softcap)}"
    key = f"attention {y.element_type} q {q.heads} k {k.heads} v {v.heads} y {result} mask {mask} window {window}"

    def launch(b: LaunchPlanBuilder, candidate: AttentionTile | str) -> None:
        if isinstance(candidate, AttentionTile):
            _launch_tiles(b, a, candidate)
        else:
            _by_products(b, a)

    candidates: list[AttentionTile | str] = [*tiles, BY_PRODUCTS]
    b.choose(key, candidates, launch)


def _launch_tiles(b: LaunchPlanBuilder, a: Attention, tile: AttentionTile) -> None:
    q, k, v, softmax = a.q, a.k, a.v, a.softmax
    batch, heads, queries, size = q.heads.shape
    tiles = -(-queries // tile.rows)
    layouts = {"Q": q.heads, "K": k.heads, "V": v.heads, "Y": a.result}
    strides = {
        f"{name}_{axis}": step for name, each in layouts.items() for axis, step in zip("BHR", each.strides, strict=True)
    }
    starts = {f"{name}_START": each.start for name, each in layouts.items()}
    operands = (q.heads, k.heads, v.heads)
    width = widest(size, v.heads.size, *(step for each in operands for step in (each.start, *each.strides)))
    scores, arguments = _scores_source(b, softmax, k.heads.rows, heads, queries, 0)
    source = scores + kernel_source("vectors", a.y.element_type) + kernel_source(
        "attention_tiles", a.y.element_type,
        WIDTH=width, ROWS=tile.rows, COLS=tile.cols, TILES=tiles, D=size, E=v.heads.size,
        SHARED=heads // k.heads.heads, SCALE=literal(softmax.scale), **strides, **starts,
    )  # fmt: skip
    groups, items = batch * heads * tiles, 4 * tile.rows
    arguments = [q.buffer, k.buffer, v.buffer, a.final, *arguments]
    local = tile.local_bytes(size, v.heads.size, softmax.blind_is_zero)
    b.launch(source, "attention_tiles", arguments, (groups * items,), (items,), local)


def _by_products(b: LaunchPlanBuilder, a: Attention) -> None:
    """Launch each step.

    Intermediate values are f32: scores rounded to f16 or bf16 would add more error than rounding the result.
    """
    y, result, final, q, k, v, softmax = a.y, a.result, a.final, a.q, a.k, a.v, a.softmax
    is_narrow = y.element_type is not f32
    q, k, v = (_apart(b, y, x) for x in (q, k, v))
    if is_narrow:
        q, k, v = (_widened(b, x, y.element_type) for x in (q, k, v))
    batch, heads, queries, size = q.heads.shape
    shared, keys = k.heads.heads, k.heads.rows
    group = heads // max(shared, 1)
    groups = (batch, shared, group)
    scores = b.temporary(batch * heads * queries * keys * 4)
    q_strides, k_strides, v_strides = q.heads.strides, k.heads.strides, v.heads.strides
    steps = q_strides[0], q_strides[1] * group, q_strides[1]
    shared_steps = (*k_strides[:2], 0)
    product = Product(queries, keys, size, groups, steps, shared_steps, (q_strides[2], 1), (1, k_strides[2]))
    launch_product(b, product, Epilogue(alpha=softmax.scale), q.buffer, k.buffer, scores)
    if keys:
        _launch_softmax(b, softmax, scores, (batch, heads, queries, keys))
    matrix, width = queries * keys, v.heads.size
    whole = (batch, heads, queries, width)
    is_in_place = result.strides[2] == width and not is_narrow
    target = final if is_in_place else b.temporary(math.prod(whole) * 4)
    steps, shared_steps = (heads * matrix, group * matrix, matrix), (*v_strides[:2], 0)
    product = Product(queries, width, keys, groups, steps, shared_steps, (keys, 1), (v_strides[2], 1))
    launch_product(b, product, Epilogue(), scores, v.buffer, target)
    if is_narrow:
        target = _converted(b, target, f32, y.element_type, math.prod(whole), final if len(y.shape) == 4 else None)
    if target is not final:
        strided_copy(b, y, target, final, whole, strides_of(whole), 0, (*result.strides, 1), 0)


def _apart(b: LaunchPlanBuilder, like: Output, x: AttentionOperand) -> AttentionOperand:
    """An operand by itself: one that shares a tensor with others is copied, in the element type of `like`."""
    if not x.is_shared:
        return x
    shape = x.heads.shape
    target = b.temporary(math.prod(shape) * stored_type(like).itemsize)
    strided_copy(b, like, x.buffer, target, shape, (*x.heads.strides, 1), x.heads.start, strides_of(shape), 0)
    return AttentionOperand(target, Heads.of(shape, x.heads.heads))


def _widened(b: LaunchPlanBuilder, x: AttentionOperand, given: ElementType) -> AttentionOperand:
    return replace(x, buffer=_converted(b, x.buffer, given, f32, math.prod(x.heads.shape)))


def _converted(
    b: LaunchPlanBuilder,
    source: Buffer,
    given: ElementType,
    wanted: ElementType,
    count: int,
    target: Buffer | None = None,
) -> Buffer:
    """The same numbers in another type, in `target` or in new memory."""
    target = target or b.temporary(count * wanted.bits // 8)
    code = store_code(wanted, "y", "i", load_code(given, "x", "i"))
    text = (
        f"__kernel void convert(__global const {stored_c_type(given)}* restrict x, "
        f"__global {stored_c_type(wanted)}* restrict y) {{\n  const ulong i = get_global_id(0);\n  {code}\n}}\n"
    )
    b.launch(text, "convert", [source, target], (count,))
    return target


def _launch_softmax(b: LaunchPlanBuilder, softmax: Softmax, scores: Buffer, shape: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = shape
    is_cpu = b.facts.kind == "cpu"
    lanes = 32
    while lanes < min(keys, 256, b.facts.max_work_group):
        lanes *= 2
    if softmax.is_plain:
        # Only the place of a row in memory depends on them, which the range tells: all numbers share a source.
        source, arguments = _scores_source(b, softmax, keys, 1, "(int)get_global_size(QUERY_AXIS)", lanes)
    else:
        source, arguments = _scores_source(b, softmax, keys, heads, queries, lanes)
    source += kernel_text("attention_rows" if is_cpu else "attention_groups")
    if is_cpu:
        b.launch(source, "attention_softmax", [scores, *arguments], (queries, batch * heads))
    else:
        size, local = (lanes, queries, batch * heads), (lanes, 1, 1)
        b.launch(source, "attention_softmax", [scores, *arguments], size, local, 3 * 4 * lanes)


def _scores_source(
    b: LaunchPlanBuilder, softmax: Softmax, keys: int, heads: int, queries: int | str, lanes: int
) -> tuple[str, list[Given]]:
    """`attention_scores.cl` with its definitions, and the arguments that it adds to a kernel's own."""
    cap = literal(softmax.softcap)
    arguments: list[Given] = []
    defines: dict[str, object] = {}
    if softmax.mask is not None:
        arguments.append(b.input(softmax.mask))
        defines = _mask_defines(softmax.mask, b.shape(softmax.mask), keys, softmax.is_mask_cut)
    if softmax.lengths is not None:
        arguments.append(b.input(softmax.lengths))
    if softmax.shown is not None:
        shown, stage = softmax.shown
        arguments.append(b.output(shown))
        stored = store_code(shown.element_type, "shown", "(at)", "(value)")
        defines |= {"STAGE": stage, "SHOWN_T": stored_c_type(shown.element_type), "STORE_SHOWN(at, value)": stored}
    source = kernel_source(
        "attention_scores",
        HEADS=heads, QUERIES=queries, KEYS=keys, LANES=lanes, OFFSET=softmax.offset, BEFORE=softmax.before,
        AFTER=softmax.after, MASK=int(softmax.mask is not None), LENGTHS=int(softmax.lengths is not None),
        SHOWN=int(softmax.shown is not None),
        SOFTCAP=f"score = tanh(score / {cap}) * {cap};" if softmax.softcap else "",
        QUERY_AXIS=int(b.facts.kind != "cpu"), BLIND_IS_ZERO=int(softmax.blind_is_zero),
        NAN_IS_ZERO=int(softmax.nan_is_zero), IS_PLAIN=int(softmax.is_plain), **defines,
    )  # fmt: skip
    return source, arguments


def _mask_defines(mask: Output, shape: Sequence[int], keys: int, is_cut: bool) -> dict[str, object]:
    full = (*[1] * (4 - len(shape)), *shape)
    steps = [0 if n == 1 else step for n, step in zip(full, strides_of(full), strict=True)]
    is_bool = mask.element_type is boolean
    code = "((from)[at] ? 0.0f : -INFINITY)" if is_bool else load_code(mask.element_type, "(from)", "(at)")
    return {
        **{f"MASK_{name}": step for name, step in zip("BHQK", steps, strict=True)},
        "MASK_KEYS": full[-1] if is_cut else keys,
        "MASK_T": stored_c_type(mask.element_type),
        "MASK_BIAS(from, at)": code,
    }
