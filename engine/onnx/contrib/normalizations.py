"""Normalizations over the last axis, with the sums that onnxruntime's optimizers join to them."""

from __future__ import annotations

from typing import Final

from engine.ir import Constant, Output, i32
from engine.onnx.contrib.call import REALS, ContribCall, contrib
from engine.onnx.upgrades.emit import cast, emit, i64_scalar, i64s, rank_of

_SKIP_OUTPUTS: Final = "output mean inv_std_var input_skip_bias_sum"
_SKIP_EPSILON: Final = 1e-12
_EPSILON: Final = 1e-5


@contrib("SimplifiedLayerNormalization", "X scale", "axis epsilon stash_type", outputs="Y inv_std_var", domain="")
def _simplified(call: ContribCall) -> list[Output | None]:
    """The one operator here whose domain is ONNX's, which does not have it."""
    attributes = {
        "axis": call.integer("axis", -1),
        "epsilon": call.number("epsilon", _EPSILON),
        "stash_type": call.integer("stash_type", 1),
    }
    return [emit("RMSNormalization", call.typed(0, REALS), call.typed(1, REALS), **attributes), None]


@contrib("SkipLayerNormalization", "input skip gamma beta? bias?", "epsilon", _SKIP_OUTPUTS)
def _skip(call: ContribCall) -> list[Output | None]:
    total = _sum(call, bias=4)
    inputs = [total, _row(call, 2), _row(call, 3) if call.has_input(3) else None]
    return _with_sum(call, "LayerNormalization", inputs, total)


@contrib("SkipSimplifiedLayerNormalization", "input skip gamma bias?", "epsilon", _SKIP_OUTPUTS)
def _skip_simplified(call: ContribCall) -> list[Output | None]:
    total = _sum(call, bias=3)
    return _with_sum(call, "RMSNormalization", [total, _row(call, 2)], total)


def _sum(call: ContribCall, bias: int) -> Output:
    """The input, the skip, which may be the same for each sample, and the bias, if there is one."""
    x, skip = call.typed(0, REALS), call.real(1)
    call.ranked(0, 2, 3)
    call.ranked(1, 2, 3)
    if (rank_of(skip) or 0) > (rank_of(x) or 3):
        call.invalid(f"{call.described(1)} has shape {skip.shape}; expected at most the rank of {call.described(0)}")
    total = emit("Add", x, skip)
    return emit("Add", total, _row(call, bias)) if call.has_input(bias) else total


def _with_sum(call: ContribCall, op_type: str, inputs: list[Output | None], total: Output) -> list[Output | None]:
    attributes = {"axis": -1, "epsilon": call.number("epsilon", _SKIP_EPSILON)}
    return [emit(op_type, *inputs, **attributes), None, None, total]


def _row(call: ContribCall, index: int) -> Output:
    """Input `index`, a vector with a number for each position of the last axis."""
    call.ranked(index, 1)
    return call.real(index)


@contrib(
    "EmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
    "epsilon mask_index_type",
    outputs="output mask_index embedding_sum",
)
def _embed(call: ContribCall) -> list[Output | None]:
    """The sum of the embeddings of words, positions and segments, normalized, and the number of words that count."""
    call.choice("mask_index_type", int(call.has_input(7)), (0, 1))
    tables = [_table(call, index) if call.has_input(index) else None for index in (2, 3, 4)]
    positions = _ids(call, 8) if call.has_input(8) else None
    y, total = _embedded(call, tables, [_like_table(call, index) for index in (5, 6)], positions)
    return [y, _count(call), total]


@contrib(
    "QEmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? "
    "word_embedding_scale position_embedding_scale segment_embedding_scale? gamma_scale beta_scale "
    "word_embedding_zero_point position_embedding_zero_point segment_embedding_zero_point? gamma_zero_point "
    "beta_zero_point",
    "epsilon",
    outputs="output mask_index",
)
def _embed_codes(call: ContribCall) -> list[Output | None]:
    """The same, with tables and parameters of 8 bits."""
    tables = [call.dequantized(2 + i, parameters=(8 + i, 13 + i)) if call.has_input(2 + i) else None for i in range(5)]
    y, _ = _embedded(call, tables[:3], [each for each in tables[3:] if each is not None], None)
    return [y, _count(call)]


def _embedded(
    call: ContribCall, tables: list[Output | None], parameters: list[Output], positions: Output | None
) -> tuple[Output, Output]:
    """The normalized sum of rows of `tables`, of words, positions and segments, and the sum."""
    words, places, segments = tables
    assert words is not None
    assert places is not None
    ids = _ids(call, 0)
    if call.has_input(1) != (segments is not None):
        call.invalid("segment_ids and segment_embedding must both be given, or both be omitted")
    if positions is None:  # 0, 1, 2, ..., for all samples
        length = emit("Squeeze", emit("Shape", ids, start=1, end=2), i64s([0]))
        positions = emit("Range", i64_scalar(0), length, i64_scalar(1))
    total = emit("Add", emit("Gather", words, ids, axis=0), emit("Gather", places, positions, axis=0))
    if segments is not None:
        total = emit("Add", total, emit("Gather", segments, _ids(call, 1), axis=0))
    epsilon = call.number("epsilon", _SKIP_EPSILON)
    return emit("LayerNormalization", total, *parameters, axis=-1, epsilon=epsilon), total


def _count(call: ContribCall) -> Output:
    """The number of words of each sample that the mask keeps, [B]; 0 without a mask."""
    if call.has_input(7):
        kept = cast(emit("Equal", _ids(call, 7), Constant(1, i32).output(0)), i32)
        return emit("ReduceSum", kept, i64s([1]), keepdims=0)
    return cast(emit("ConstantOfShape", emit("Shape", call.input(0), start=0, end=1)), i32)


def _ids(call: ContribCall, index: int) -> Output:
    call.ranked(index, 2)
    return call.typed(index, {i32})


def _table(call: ContribCall, index: int) -> Output:
    call.ranked(index, 2)
    return call.real(index, like=2)


def _like_table(call: ContribCall, index: int) -> Output:
    call.ranked(index, 1)
    return call.real(index, like=2)
