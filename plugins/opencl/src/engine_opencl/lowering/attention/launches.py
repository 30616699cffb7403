"""The launches of an attention: two products that read heads in place, and a softmax between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.ir import ElementType, Output
from engine.ir.element_type import boolean, f16, f32
from engine.ops.attention import Heads
from engine_opencl.elements import load_code, store_code, stored_c_type
from engine_opencl.lowering.elementwise import literal
from engine_opencl.lowering.matmul.matmul import launch_product
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.plan import Buffer, Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, kernel_text, strides_of


@dataclass(frozen=True, slots=True)
class Operand:
    """Q, K or V on the device, and its layout."""

    buffer: Buffer
    heads: Heads


@dataclass(frozen=True, slots=True)
class Softmax:
    """The computation between the two products.

    Attributes:
        before, after: how many keys before and after its own position a query attends to; -1 for all.
        offset: the position of the first query among the keys.
        lengths: the number of valid keys of each batch, [batch] i64; queries are then at the last positions.
        is_mask_cut: keys beyond the mask are forbidden; else the mask is broadcast. blind_is_zero, nan_is_zero: rows
        without allowed keys, or NaN probabilities, give zeros.
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


def attend(
    y: Output, result: Heads, b: LaunchPlanBuilder, q: Operand, k: Operand, v: Operand, softmax: Softmax
) -> None:
    """Launch softmax(q k^T * scale + bias) v, written to `y` with the layout `result`.

    If K and V have fewer heads, each serves several heads of Q.

    Intermediate values are f32: scores rounded to f16 would add more error than rounding the result.
    """
    is_half = y.element_type is f16
    if is_half:
        q, k, v = (replace(x, buffer=_converted(b, x.buffer, f16, f32, math.prod(x.heads.shape))) for x in (q, k, v))
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
    final = b.output(y)
    is_in_place = result.strides[2] == width and not is_half
    target = final if is_in_place else b.temporary(math.prod(whole) * 4)
    steps, shared_steps = (heads * matrix, group * matrix, matrix), (*v_strides[:2], 0)
    product = Product(queries, width, keys, groups, steps, shared_steps, (keys, 1), (v_strides[2], 1))
    launch_product(b, product, Epilogue(), scores, v.buffer, target)
    if is_half:
        target = _converted(b, target, f32, f16, math.prod(whole), final if len(y.shape) == 4 else None)
    if target is not final:
        strided_copy(b, y, target, final, whole, strides_of(whole), 0, (*result.strides, 1), 0)


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
    cap = literal(softmax.softcap)
    arguments: list[Given] = [scores]
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
        SOFTCAP=f"score = tanh(score / {cap}) * {cap};" if softmax.softcap else "", QUERY_AXIS=int(not is_cpu),
        BLIND_IS_ZERO=int(softmax.blind_is_zero), NAN_IS_ZERO=int(softmax.nan_is_zero),
        IS_PLAIN=int(softmax.is_plain), **defines,
    )  # fmt: skip
    source += kernel_text("attention_rows" if is_cpu else "attention_groups")
    if is_cpu:
        b.launch(source, "attention_softmax", arguments, (queries, batch * heads))
    else:
        b.launch(source, "attention_softmax", arguments, (lanes, queries, batch * heads), (lanes, 1, 1))


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
