"""Matrix products of integers with a result in f32, and the attention that is computed from one."""

from __future__ import annotations

from typing import Any

from engine import ops
from engine.ir import Output, f32, i32, i64
from engine.onnx.contrib.call import BYTES, ContribCall, contrib
from engine.onnx.upgrades.emit import cast, emit, i64_scalar, i64s, rank_of, scalar_f32


@contrib("DynamicQuantizeMatMul", "A B b_scale b_zero_point? bias?")
def _dynamic_quantize_matmul(call: ContribCall) -> list[Output]:
    """A, quantized by its range, times B."""
    codes, scale, zero_point = ops.create("DynamicQuantizeLinear", [call.typed(0, {f32})]).outputs
    return [_product(call, (codes, scale, zero_point), b=1, b_scale=2, b_zero_point=3, bias=4)]


@contrib("MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point? b_zero_point? bias?")
def _matmul_integer_to_float(call: ContribCall) -> list[Output] | None:
    a = _quantized_input(call, 0, 2, 4)
    return [_product(call, a, b=1, b_scale=3, b_zero_point=5, bias=6)]


@contrib(
    "QAttention",
    "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
    "do_rotary mask_filter_value num_heads past_present_share_buffer scale unidirectional",
    outputs=2,
)
def _attention(call: ContribCall) -> list[Output] | None:
    """Self-attention whose queries, keys and values are one product; None if it rotates its input.

    Also None if it writes its keys and values into the buffer of the past ones.
    """
    heads, past = call.integer("num_heads"), call.optional(8)
    if call.integer("do_rotary", 0) or call.integer("past_present_share_buffer", 0):
        return None
    if past is not None and rank_of(call.typed(8, {f32})) not in (None, 5):
        call.invalid(f"{call.described(8)} has shape {past.shape}; expected [2, batch, heads, length, size of a head]")
    mask = _mask(call, past) if call.has_input(5) else None
    if call.has_input(5) and mask is None:
        return None
    operand = _quantized_input(call, 0, 3, 6)
    projected = _product(call, operand, b=1, b_scale=4, b_zero_point=7, bias=2)
    parts = ops.create("Split", [projected], {"axis": -1, "num_outputs": 3}, num_outputs=3).outputs
    old = [None if past is None else emit("Gather", past, i64_scalar(index), axis=0) for index in (0, 1)]
    attributes: dict[str, Any] = {
        "q_num_heads": heads,
        "kv_num_heads": heads,
        "is_causal": int(bool(call.integer("unidirectional", 0))),
    }
    if call.attributes.get("scale"):
        attributes["scale"] = call.number("scale")
    if call.num_outputs == 1 and past is None:
        return [emit("Attention", *parts, mask, **attributes)]
    result, *present = ops.create("Attention", [*parts, mask, *old], attributes, num_outputs=3).outputs
    return [result, emit("Concat", *(emit("Unsqueeze", each, i64s([0])) for each in present), axis=0)]


def _mask(call: ContribCall, past: Output | None) -> Output | None:
    """What a mask [B, T], or numbers of valid keys, [B], add to the scores: [B, 1, 1, T]; None for other masks.

    T is the number of keys: those of the past, and the new ones.
    """
    given, x = call.typed(5, {i32}), call.input(0)
    rank = rank_of(given)
    if rank_of(x) != 3 or rank not in (1, 2) or given.shape[0] != x.shape[0]:
        return None
    if rank == 2 and past is None and given.shape[1] != x.shape[1]:
        return None
    if rank == 1:
        length = emit("Squeeze", emit("Shape", x, start=1, end=2), i64s([0]))
        if past is not None:
            length = emit("Add", length, emit("Squeeze", emit("Shape", past, start=3, end=4), i64s([0])))
        positions = emit("Range", i64_scalar(0), length, i64_scalar(1))
        valid = emit("Less", positions, emit("Unsqueeze", cast(given, i64), i64s([1])))
    else:
        valid = emit("Greater", cast(given, i64), i64_scalar(0))
    added = emit("Where", valid, scalar_f32(0.0), scalar_f32(call.number("mask_filter_value", -10000.0)))
    return emit("Unsqueeze", added, i64s([1, 2]))


def _quantized_input(
    call: ContribCall, index: int, scale: int, zero_point: int
) -> tuple[Output, Output, Output | None]:
    """The left operand of a product with its scale and zero point."""
    call.single(scale)
    call.single(zero_point)
    return call.typed(index, BYTES), call.typed(scale, {f32}), call.zero_point(zero_point, of=index)


def _product(
    call: ContribCall, a: tuple[Output, Output, Output | None], *, b: int, b_scale: int, b_zero_point: int, bias: int
) -> Output:
    """The product of codes, in the form in which onnxruntime's tool writes it; the numbers are indices of inputs."""
    codes, scale, zero_point = a
    for index in (b_scale, b_zero_point):
        call.per_channel(index)
    right, right_zero_point = call.typed(b, BYTES), call.zero_point(b_zero_point, of=b)
    sums = emit("MatMulInteger", codes, right, zero_point, right_zero_point)
    value = emit("Mul", cast(sums, f32), emit("Mul", scale, call.typed(b_scale, {f32})))
    return emit("Add", value, call.typed(bias, {f32})) if call.has_input(bias) else value
