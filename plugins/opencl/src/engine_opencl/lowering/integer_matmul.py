"""Products and convolutions of 8-bit integers: the sums themselves, or quantized once more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.ir import Node, Output
from engine.ir.element_type import f32, i8, i32, u8
from engine.lowering import Refusal, RefusalCause
from engine.ops.conv import ConvSpec
from engine.ops.spec import OperatorSpec, SpecT
from engine_opencl.elements import c_type
from engine_opencl.lowering.conv.conv import check_spatial_rank
from engine_opencl.lowering.conv.parts import window_defines
from engine_opencl.lowering.reduce import reduce_axes
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.tables import table
from engine_opencl.plan import Buffer, Given, PlanBuilder
from engine_opencl.source import element_access, kernel_source, kernel_text

BYTES: Final = frozenset({u8, i8})
_TILE: Final = 4
"""Results of an item."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The inputs of one of these operators by their parts; a zero point is None where it is not given."""

    a: Output
    b: Output
    a_point: Output | None
    b_point: Output | None
    scales: tuple[Output, ...] = ()
    y_point: Output | None = None
    bias: Output | None = None

    @property
    def parameters(self) -> list[Output]:
        """Scales and zero points, of which there is one, or one a row, column or channel."""
        given = (self.a_point, self.b_point, *self.scales, self.y_point)
        return [value for value in given if value is not None]

    def defines(self, b: PlanBuilder, y: Output) -> dict[str, object]:
        """What the kernels want to know of types, zero points and scales."""
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

    def buffers(self, b: PlanBuilder) -> list[Given]:
        """Where the kernels find zero points, scales and bias, in their order."""
        given = (self.a_point, self.b_point, *self.scales, self.y_point, self.bias)
        return [b.input(value) for value in given if value is not None]

    def source(self, kernel: str, b: PlanBuilder, y: Output, **defines: object) -> str:
        """The text of a kernel."""
        scale = self.scales[0].element_type if self.scales else f32
        text = kernel_source("integers", f32, **self.defines(b, y), **defines)
        return element_access(scale, "SCALE") + text + kernel_text(kernel)


def operands_of(node: Node) -> Operands:
    """The parts of the inputs of MatMulInteger, ConvInteger, QLinearMatMul or QLinearConv."""
    given = [node.input_value(index) if node.has_input(index) else None for index in range(node.num_inputs)]
    if node.op_type.endswith("Integer"):
        a, b, a_point, b_point = (*given, None, None)[:4]
        assert a is not None
        assert b is not None
        return Operands(a, b, a_point, b_point)
    a, a_scale, a_point, b, b_scale, b_point, y_scale, y_point, bias = (*given, None)[:9]
    assert a is not None
    assert b is not None
    scales = tuple(value for value in (a_scale, b_scale, y_scale) if value is not None)
    return Operands(a, b, a_point, b_point, scales, y_point, bias)


class IntegerLowering(OpLowering[SpecT]):
    """What products and convolutions have in common."""

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
                return Refusal(RefusalCause.ATTRIBUTE, f"{value.name} has {len(value.shape)} axes; expected 0 or 1")
        return None


@lowers("MatMulInteger", "QLinearMatMul")
class IntegerProductLowering(IntegerLowering[OperatorSpec]):
    """Batches of matrices, with a zero point and a scale each, or one a row of the left one, a column of the right."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        for index in (0, 1 if node.op_type == "MatMulInteger" else 3):
            rank = len(node.input_value(index).shape)
            if rank < 2:
                return Refusal(RefusalCause.ATTRIBUTE, f"input {index} has {rank} axes; expected 2 or more")
        return super().check(spec)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        given, y = operands_of(node), node.output(0)
        left, right, result = b.shape(given.a), b.shape(given.b), b.shape(y)
        m, n, k = left[-2], right[-1], left[-1]
        batch = result[:-2]
        places = [
            np.broadcast_to(np.arange(math.prod(shape[:-2])).reshape(shape[:-2]), batch).reshape(-1)
            for shape in (left, right)
        ]
        pairs = table(b, np.stack(places, axis=1).astype(np.int32))
        source = given.source("integer_gemm", b, y, M=m, N=n, K=k, ROWS=_TILE)
        arguments = [b.input(given.a), b.input(given.b), pairs, *given.buffers(b), b.output(y)]
        b.launch(source, "integer_gemm", arguments, (n, -(-m // _TILE), math.prod(batch)))


@lowers("ConvInteger", "QLinearConv", spec=ConvSpec)
class IntegerConvLowering(IntegerLowering[ConvSpec]):
    """One to three axes of space, groups, a zero point and a scale of the weights for all channels or for each."""

    def check(self, spec: ConvSpec) -> Refusal | None:
        return super().check(spec) or check_spatial_rank(spec.node.input_value(0))

    def lower(self, spec: ConvSpec, b: PlanBuilder) -> None:
        given, y = operands_of(spec.node), spec.output()
        x, weights = b.shape(given.a), b.shape(given.b)
        g, groups = spec.at(x, weights).with_axes(3), spec.group
        own = weights[0] // groups
        channels = min(_TILE, own)
        blocks = -(-own // channels)
        defines: dict[str, object] = {
            "GROUPS": groups, "GM": own, "C": weights[1], "CHANNELS": channels, "BLOCKS": blocks, **window_defines(g),
        }  # fmt: skip
        source = given.source("integer_conv", b, y, **defines)
        arguments = [b.input(given.a), b.input(given.b), *given.buffers(b), b.output(y)]
        b.launch(source, "integer_conv", arguments, (math.prod(g.outputs), groups * blocks, x[0]))


@lowers("DynamicQuantizeLinear")
class DynamicQuantizeLowering(OpLowering[OperatorSpec]):
    """The extremes of the tensor, then one kernel."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0), node.output(1))) or check_types(node.outputs[::2], {u8})

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x = node.input_value(0)
        shape = b.shape(x)
        extremes: list[Buffer] = []
        for op_type in ("ReduceMin", "ReduceMax"):
            extremes.append(b.temporary(np.dtype(x.element_type.numpy).itemsize))
            reduce_axes(b, op_type, x.element_type, b.input(x), extremes[-1], shape, range(len(shape)))
        count = math.prod(shape)
        source = kernel_source("dynamic_quantize", x.element_type, COUNT=f"{count}ul")
        outputs = [b.output(value) for value in node.outputs]
        b.launch(source, "dynamic_quantize", [b.input(x), *extremes, *outputs], (max(count, 1),))
