"""Matrix products of integers with a result in f32."""

from __future__ import annotations

from engine import ops
from engine.ir import Output, f32
from engine.onnx.contrib.call import BYTES, ContribCall, contrib
from engine.onnx.upgrades.emit import cast, emit


@contrib("DynamicQuantizeMatMul", "A B b_scale b_zero_point? bias?")
def _dynamic_quantize_matmul(call: ContribCall) -> list[Output]:
    """A, quantized by its range, times B."""
    codes, scale, zero_point = ops.create("DynamicQuantizeLinear", [call.typed(0, {f32})]).outputs
    return [product_of_codes(call, (codes, scale, zero_point), b=1, b_scale=2, b_zero_point=3, bias=4)]


@contrib("MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point? b_zero_point? bias?")
def _matmul_integer_to_float(call: ContribCall) -> list[Output] | None:
    a = quantized_input(call, 0, 2, 4)
    return [product_of_codes(call, a, b=1, b_scale=3, b_zero_point=5, bias=6)]


def quantized_input(call: ContribCall, index: int, scale: int, zero_point: int) -> tuple[Output, Output, Output | None]:
    """The left operand of a product with its scale and zero point."""
    call.single(scale)
    call.single(zero_point)
    return call.typed(index, BYTES), call.typed(scale, {f32}), call.zero_point(zero_point, of=index)


def product_of_codes(
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
