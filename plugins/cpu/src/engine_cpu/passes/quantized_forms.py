"""Which convolutions and products between quantizations have kernels that multiply integers."""

from __future__ import annotations

from engine.ir import Node, i8, u8
from engine.ops.conv import ConvSpec
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine.ops.spec import spec_of
from engine_cpu.lowering.checks import check_spatial_rank, check_steps
from engine_cpu.lowering.quantized import check_integer_conv, check_integer_product


def stays_in_f32(node: Node) -> bool:
    """Whether a node that `QuantizedFusion` asks about is computed in f32: there is no integer kernel for it."""
    spec = spec_of(node)
    if isinstance(spec, GemmSpec):
        return spec.transA
    if not isinstance(spec, ConvSpec | MatMulSpec) or node.op_type.startswith("Quantized"):
        return False
    weights = node.input_value(1)
    if not weights.shape.is_static:
        return True
    if isinstance(spec, MatMulSpec):
        return check_integer_product(spec, weights) is not None
    if check_spatial_rank(node.input_value(0)) or check_steps(spec):
        return True
    return check_integer_conv(spec, weights) is not None


def stays_in_place(node: Node) -> bool:
    """Whether quantization does not move past a node: there are kernels only for 8-bit integers.

    Args:
        node: a QuantizeLinear, or an operator that reads the result of a DequantizeLinear.
    """
    codes = node.output(0) if node.op_type == "QuantizeLinear" else node.input_value(0).node.input_value(0)
    return codes.element_type not in (u8, i8)
