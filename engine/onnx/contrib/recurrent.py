"""Recurrent layers with quantized weights, as dynamic quantization writes them."""

from __future__ import annotations

from engine import ops
from engine.ir import Output, f32
from engine.onnx.contrib.call import BYTES, ContribCall, contrib
from engine.onnx.upgrades.emit import cast, emit, i64s, rank_of

_SCALES = (8, 10)
"""The inputs that are the scales of W and R; each zero point is the next."""


@contrib(
    "DynamicQuantizeLSTM",
    "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
    "activation_alpha activation_beta activations clip direction hidden_size input_forget",
    outputs="Y Y_h Y_c",
)
def _lstm(call: ContribCall) -> list[Output]:
    """LSTM of f32, with the real values of the weights.

    onnxruntime also rounds X and the state of each step to 8 bits, from which its results differ by about 1 %.
    """
    weights = [_weights(call, index, scale) for index, scale in zip((1, 2), _SCALES, strict=True)]
    inputs = [call.typed(0, {f32}), *weights, *(call.optional(index) for index in range(3, 8))]
    return list(ops.create("LSTM", inputs, dict(call.attributes), num_outputs=call.num_outputs).outputs)


def _weights(call: ContribCall, index: int, scale: int) -> Output:
    """The real values of weights [directions, inputs, columns], in LSTM's order: [directions, columns, inputs]."""
    codes, factors = call.typed(index, BYTES), call.typed(scale, {f32})
    zero_point = call.zero_point(scale + 1, of=index)
    assert zero_point is not None
    real = emit("Sub", cast(codes, f32), cast(_along_columns(call, scale + 1, zero_point), f32))
    return emit("Transpose", emit("Mul", real, _along_columns(call, scale, factors)), perm=(0, 2, 1))


def _along_columns(call: ContribCall, index: int, value: Output) -> Output:
    """Numbers for each direction, [D], or each of its columns, [D, N], as [D, 1, 1] or [D, 1, N]."""
    rank = rank_of(value)
    if rank is None:
        call.unsupported(f"the rank of {call.described(index)} is unknown", "make it a constant")
    if rank not in (1, 2):
        call.invalid(f"{call.described(index)} has rank {rank}; expected one number for each direction or column")
    return emit("Unsqueeze", value, i64s([1, 2] if rank == 1 else [1]))
