"""Shared by 8-bit integer products and convolutions, with integer or requantized results."""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Node, Output
from engine.ir.element_type import f32, i8, i32, u8
from engine.lowering import Refusal, RefusalCause
from engine.ops.spec import SpecT
from engine.startup import dataclass
from engine_opencl.elements import c_type
from engine_opencl.lowering.registry import OpLowering, check_types
from engine_opencl.plan import Given
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import element_access, kernel_source, kernel_text

BYTES: Final = frozenset({u8, i8})
TILE: Final = 4
"""Results per item."""


@dataclass(frozen=True, slots=True)
class QuantizedOperands:
    """The inputs of one of these operators by role; an omitted zero point is None."""

    a: Output
    b: Output
    a_point: Output | None
    b_point: Output | None
    scales: tuple[Output, ...] = ()
    y_point: Output | None = None
    bias: Output | None = None

    @property
    def parameters(self) -> list[Output]:
        """Scales and zero points, per tensor or per row, column or channel."""
        given = (self.a_point, self.b_point, *self.scales, self.y_point)
        return [value for value in given if value is not None]

    def defines(self, b: LaunchPlanBuilder, y: Output) -> dict[str, object]:
        """Definitions of types, zero points and scales for kernels."""
        low, high = (0, 255) if y.element_type is u8 else (-128, 127)
        found: dict[str, object] = {
            "A": c_type(self.a.element_type), "B": c_type(self.b.element_type), "Y": c_type(y.element_type),
            "A_POINT": int(self.a_point is not None), "B_POINT": int(self.b_point is not None),
            "QUANTIZED": int(bool(self.scales)), "BIAS": int(self.bias is not None), "LOW": f"{low}.0f",
            "HIGH": f"{high}.0f",
        }  # fmt: skip
        named = {"A_POINT": self.a_point, "B_POINT": self.b_point}
        named |= dict(zip(("A_SCALE", "B_SCALE"), self.scales, strict=False))
        steps = {f"{name}_STEP": int(math.prod(b.shape(v)) > 1) for name, v in named.items() if v is not None}
        return found | steps

    def buffers(self, b: LaunchPlanBuilder) -> list[Given]:
        """The buffers of zero points, scales and bias, in kernel order."""
        given = (self.a_point, self.b_point, *self.scales, self.y_point, self.bias)
        return [b.input(value) for value in given if value is not None]

    def source(self, kernel: str, b: LaunchPlanBuilder, y: Output, **defines: object) -> str:
        """The source of `kernel`, preceded by the definitions for these operands and `defines`."""
        scale = self.scales[0].element_type if self.scales else f32
        text = kernel_source("integers", f32, **self.defines(b, y), **defines)
        return element_access(scale, "SCALE") + text + kernel_text(kernel)


def operands_of(node: Node) -> QuantizedOperands:
    """The inputs of MatMulInteger, ConvInteger, QLinearMatMul or QLinearConv by role."""
    given = [node.input_value(index) if node.has_input(index) else None for index in range(node.num_inputs)]
    if node.op_type.endswith("Integer"):
        a, b, a_point, b_point = (*given, None, None)[:4]
        assert a is not None
        assert b is not None
        return QuantizedOperands(a, b, a_point, b_point)
    a, a_scale, a_point, b, b_scale, b_point, y_scale, y_point, bias = (*given, None)[:9]
    assert a is not None
    assert b is not None
    scales = tuple(value for value in (a_scale, b_scale, y_scale) if value is not None)
    return QuantizedOperands(a, b, a_point, b_point, scales, y_point, bias)


class QuantizedLowering(OpLowering[SpecT]):
    """Base of the products and convolutions of 8-bit integers."""

    def check(self, spec: SpecT) -> Refusal | None:
        node = spec.node
        given = operands_of(node)
        whole = [
            value for value in (given.a, given.b, given.a_point, given.b_point, given.y_point) if value is not None
        ]
        results = {i32} if node.op_type.endswith("Integer") else BYTES
        refused = check_types(whole, BYTES) or check_types(given.scales) or check_types((given.bias,), {i32})
        if refused := refused or check_types(node.outputs, results):
            return refused
        for value in given.parameters:
            if len(value.shape) > 1:
                return Refusal(RefusalCause.RANK, f"{value.name} has {len(value.shape)} axes; expected 0 or 1")
        return None
