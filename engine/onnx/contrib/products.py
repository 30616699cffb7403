"""Products and convolutions of f32 with transpositions, sums and activations that onnxruntime joins to them."""

from __future__ import annotations

from typing import Final

from engine.ir import Output
from engine.onnx.contrib.activations import activated
from engine.onnx.contrib.call import REALS, ContribCall, contrib
from engine.onnx.upgrades.emit import emit, rank_of, scalar_like

_CONV: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_GEMM: Final = ("alpha", "beta", "transA", "transB")


@contrib("TransposeMatMul", "A B", "alpha transA transB transBatchA transBatchB", outputs="Y")
@contrib("FusedMatMul", "A B", "alpha transA transB transBatchA transBatchB", outputs="Y")
def _matmul(call: ContribCall) -> list[Output]:
    """MatMul of operands whose last two axes, or whose first and following axes, are exchanged.

    TransposeMatMul is its former name.
    """
    call.typed(0, REALS)
    call.real(1)
    value = emit("MatMul", _turned(call, 0, "A"), _turned(call, 1, "B"))
    alpha = call.number("alpha", 1.0)
    return [value if alpha == 1 else emit("Mul", value, scalar_like(alpha, value))]


def _turned(call: ContribCall, index: int, letter: str) -> Output:
    """Operand `index` as MatMul takes it; vectors are not transposed."""
    value = call.input(index)
    is_turned = call.choice(f"trans{letter}", 0, (0, 1))
    is_batch_turned = call.choice(f"transBatch{letter}", 0, (0, 1))
    if not is_turned and not is_batch_turned:
        return value
    rank = rank_of(value)
    if rank is None:
        call.unsupported(f"the rank of {call.described(index)} is unknown, and it is transposed", "state its shape")
    if rank < 2:
        return value
    order = list(range(rank))
    if is_batch_turned:  # [rows, batches, columns]
        order = [*order[1:-1], order[0], order[-1]]
    if is_turned:
        order[-2:] = order[:-3:-1]
    return emit("Transpose", value, perm=order)


@contrib(
    "FusedGemm",
    "A B C?",
    f"{' '.join(_GEMM)} activation activation_alpha activation_beta activation_gamma",
    outputs="Y",
)
def _gemm(call: ContribCall) -> list[Output]:
    operands = [call.typed(0, REALS), call.real(1), call.real(2) if call.has_input(2) else None]
    value = emit("Gemm", *operands, **{name: call.attributes[name] for name in _GEMM if name in call.attributes})
    names = [name for name in ("alpha", "beta", "gamma") if f"activation_{name}" in call.attributes]
    return [activated(call, value, {name: call.number(f"activation_{name}") for name in names})]


@contrib("FusedConv", "X W B? Z?", f"{' '.join(_CONV)} activation activation_params", outputs="Y")
def _conv(call: ContribCall) -> list[Output]:
    """A convolution, then the sum with Z, then the activation."""
    operands = [call.typed(0, REALS), call.real(1), call.real(2) if call.has_input(2) else None]
    value = emit("Conv", *operands, **{name: call.attributes[name] for name in _CONV if name in call.attributes})
    if call.has_input(3):
        value = emit("Add", value, call.real(3))
    return [activated(call, value, call.numbers("activation_params"))]
