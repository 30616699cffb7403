"""Attention whose past is a state of fixed size, and the convolution before it: LinearAttention, CausalConvWithState.

ONNX 27 has operators of these names with fewer forms. What they lack is computed around them: heads of queries or keys
that several heads of values share, dilated filters, and channels along the last axes.
"""

from __future__ import annotations

from typing import Final

from engine import ops
from engine.ir import Output, PartialShape
from engine.onnx.contrib.call import FLOATS, ContribCall, contrib
from engine.onnx.upgrades.emit import emit, i64s, rank_of, scalar_like
from engine.ops.linear_attention import CORRECTING, DECAYING

_RULES: Final = ("linear", "gated", "delta", "gated_delta")
_ACTIVATIONS: Final = ("none", "silu", "swish")


@contrib(
    "LinearAttention",
    "query key value past_state? decay? beta?",
    "chunk_size kv_num_heads q_num_heads scale state_window update_rule",
    outputs="output present_state",
)
def _linear_attention(call: ContribCall) -> list[Output]:
    """The operator of ONNX, whose keys have as many heads as the values, and whose queries have a multiple of them."""
    call.without_attributes(state_window=0)
    queries, values = call.heads("q_num_heads"), call.heads("kv_num_heads")
    rule = _one_of(call, "update_rule", "gated_delta", _RULES)
    call.typed(0, FLOATS)
    for index in (0, 1, 2):
        call.ranked(index, 3)
        call.real(index)
    if queries % values and values % queries:
        call.invalid(
            f"attribute `q_num_heads` is {queries}; expected a multiple or a divisor of kv_num_heads, {values}"
        )
    size = call.length(0, 2) // queries
    if not size or call.length(0, 2) != queries * size:
        call.invalid(f"{call.described(0)} has shape {call.input(0).shape}; expected {queries} heads in its rows")
    if call.length(2, 2) % values:
        call.invalid(f"{call.described(2)} has shape {call.input(2).shape}; expected {values} heads in its rows")
    keys = call.length(1, 2) // size
    if not keys or call.length(1, 2) != keys * size or values % keys:
        call.invalid(
            f"{call.described(1)} has shape {call.input(1).shape}; expected heads of {size} elements, as many as the "
            f"values have, {values}, or a divisor of it"
        )
    state = None
    if call.has_input(3):
        call.ranked(3, 4)
        state = call.typed(3, FLOATS)
        expected = (values, size, call.length(2, 2) // values)
        if state.shape.rank.is_static and not PartialShape(state.shape.dims[1:]).accepts(expected):
            lengths = ", ".join(map(str, expected))
            call.invalid(f"{call.described(3)} has shape {state.shape}; expected [batch, {lengths}]")
    decay = _gate(call, 4, rule, rule in DECAYING, (values, values * size))
    beta = _gate(call, 5, rule, rule in CORRECTING, (1, values))
    query = _repeated(call.input(0), queries, size, max(values // queries, 1))
    key = _repeated(call.input(1), keys, size, values // keys)
    attributes = {
        "q_num_heads": max(queries, values),
        "kv_num_heads": values,
        "scale": call.number("scale", 0.0),
        "update_rule": rule,
        "chunk_size": call.integer("chunk_size", 64),
    }
    inputs = [query, key, call.input(2), state, decay, beta]
    return list(ops.create("LinearAttention", inputs, attributes, num_outputs=2).outputs)


def _gate(call: ContribCall, index: int, rule: str, is_needed: bool, widths: tuple[int, int]) -> Output | None:
    """Input `index`; None if the rule does not read it, even if it is given."""
    if not is_needed:
        return None
    if not call.has_input(index):
        call.invalid(f"input {index} is missing, which the update rule {rule!r} needs")
    call.ranked(index, 3)
    if call.length(index, 2) not in widths:
        found = call.input(index).shape
        call.invalid(f"{call.described(index)} has shape {found}; expected rows of {widths[0]} or {widths[1]}")
    return call.real(index)


def _repeated(x: Output, heads: int, size: int, times: int) -> Output:
    """Each of the heads in the rows [H * D] of `x`, several times: [B, T, H * times * D]."""
    if times == 1:
        return x
    split = emit("Reshape", x, i64s([0, 0, heads, 1, size]))
    return emit("Reshape", emit("Expand", split, i64s([1, 1, 1, times, 1])), i64s([0, 0, heads * times * size]))


@contrib(
    "CausalConvWithState",
    "input weight bias? past_state?",
    "activation channels_last dilation input_channel_offset input_channels ndim state_channels_last state_length "
    "state_update_capacity state_window",
    outputs="output present_state state_update",
)
def _causal_conv(call: ContribCall) -> list[Output | None]:
    """The operator of ONNX, whose filters are not dilated and whose channels are the second axis."""
    call.without_attributes(
        input_channel_offset=0, input_channels=0, ndim=1, state_channels_last=-1, state_length=0,
        state_update_capacity=0, state_window=0,
    )  # fmt: skip
    activation = _one_of(call, "activation", "none", _ACTIVATIONS)
    dilation = call.integer("dilation", 1)
    if dilation < 1:
        call.invalid(f"attribute `dilation` is {dilation}; expected 1 or more")
    x = call.typed(0, FLOATS)
    weight = call.ranked(1, 3)
    call.real(1)
    channels, width = call.length(1, 0), call.length(1, 2)
    if not weight.shape[1].accepts(1) or width < 1:
        call.invalid(f"{call.described(1)} has shape {weight.shape}; expected [channels, 1, 1 or more]")
    bias = None
    if call.has_input(2):
        call.ranked(2, 1)
        bias = call.real(2)
        if bias.shape.rank.is_static and not bias.shape[0].accepts(channels):
            call.invalid(f"{call.described(2)} has shape {bias.shape}; expected [{channels}], one for each channel")
    past = call.real(3) if call.has_input(3) else None
    is_last = bool(call.choice("channels_last", 0, (0, 1)))
    if is_last:
        _check_last(call, 0, None, channels)
        if past is not None:
            _check_last(call, 3, (width - 1) * dilation, channels)
    else:
        call.ranked(0, 3)
        _check_first(call, 0, channels, None)
        if past is not None:
            call.ranked(3, 3)
            _check_first(call, 3, channels, (width - 1) * dilation)
    data = _channels_first(x, channels) if is_last else x
    state = past if past is None or not is_last else _channels_first(past, channels)
    y, present = _convolved(data, weight, bias, state, channels, width, dilation, activation)
    if is_last:
        lengths = emit("Shape", x, start=2)
        y, present = (_channels_last(each, lengths) for each in (y, present))
    return [y, present, None]


def _convolved(
    x: Output,
    weight: Output,
    bias: Output | None,
    past: Output | None,
    channels: int,
    width: int,
    dilation: int,
    activation: str,
) -> tuple[Output, Output]:
    """The result and the next state, with channels first."""
    length = (width - 1) * dilation
    if dilation == 1 or width == 1:
        inputs = [x, weight, bias, past]
        outputs = ops.create("CausalConvWithState", inputs, {"activation": activation}, num_outputs=2).outputs
        return outputs[0], outputs[1]
    if past is None:
        shape = emit("Concat", emit("Shape", x, start=0, end=1), i64s([channels, length]), axis=0)
        past = emit("Expand", scalar_like(0.0, x), shape)
    whole = emit("Concat", past, x, axis=2)
    y = emit("Conv", whole, weight, bias, group=channels, dilations=[dilation])
    end = emit("Slice", whole, i64s([-length]), i64s([(1 << 63) - 1]), i64s([2]))
    return y if activation == "none" else emit("Swish", y), end


def _channels_first(x: Output, channels: int) -> Output:
    """[B, S, d1, ...] as [B, C, S]."""
    rows = x if rank_of(x) == 3 else emit("Reshape", x, i64s([0, 0, channels]))
    return emit("Transpose", rows, perm=(0, 2, 1))


def _channels_last(x: Output, lengths: Output) -> Output:
    """[B, C, S] as [B, S, d1, ...], of which `lengths` are those behind S."""
    rows = emit("Transpose", x, perm=(0, 2, 1))
    if lengths.shape.is_static and lengths.shape.size() == 1:
        return rows
    return emit("Reshape", rows, emit("Concat", i64s([0, 0]), lengths, axis=0))


def _check_first(call: ContribCall, index: int, channels: int, length: int | None) -> None:
    shape = call.input(index).shape
    if shape.rank.is_static and not (shape[1].accepts(channels) and (length is None or shape[2].accepts(length))):
        expected = "..." if length is None else str(length)
        call.invalid(f"{call.described(index)} has shape {shape}; expected [batch, {channels}, {expected}]")


def _check_last(call: ContribCall, index: int, length: int | None, channels: int) -> None:
    shape = call.input(index).shape
    if not shape.rank.is_static:
        call.unsupported(f"the rank of {call.described(index)} is unknown", "state its shape in the model's value_info")
    product: int | None = 1
    for dim in shape.dims[2:]:
        product = product * dim.get_length() if product is not None and dim.is_static else None
    fits = len(shape) > 2 and product in (None, channels) and (length is None or shape[1].accepts(length))
    if not fits:
        expected = "..." if length is None else str(length)
        call.invalid(f"{call.described(index)} has shape {shape}; expected [batch, {expected}] and {channels} channels")


def _one_of(call: ContribCall, name: str, default: str, allowed: tuple[str, ...]) -> str:
    """A STRING attribute that has one of the values `allowed`. Raises `ModelError`."""
    value = call.text(name, default)
    if value not in allowed:
        call.invalid(f"attribute `{name}` is {value!r}; expected {' or '.join(map(repr, allowed))}")
    return value
