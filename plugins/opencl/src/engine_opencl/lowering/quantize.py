"""QuantizeLinear and DequantizeLinear, per tensor or along an axis, and DynamicQuantizeLinear."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Final

import numpy as np

from engine.ir.element_type import bf16, f16, i8, i32, u8
from engine.lowering import Refusal, RefusalCause
from engine.ops.quantize import QuantizeSpec
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS, c_type
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.reduce import reduce_axes
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import element_access, kernel_source

_ROUNDED: Final = {f16: "rounded_to_half", bf16: "rounded_to_bfloat"}


class _LinearLowering(OpLowering[QuantizeSpec]):
    """Base of both."""

    def check(self, spec: QuantizeSpec) -> Refusal | None:
        node = spec.node
        if spec.block_size:
            return Refusal(RefusalCause.ATTRIBUTE, f"block_size is {spec.block_size}; expected 0")
        is_forward = node.op_type == "QuantizeLinear"
        real, whole = (0, node.output(0)) if is_forward else (1, node.input_value(0))
        allowed = {u8, i8} if is_forward else {u8, i8, i32}
        values = [node.input_value(real), node.input_value(1)] + ([] if is_forward else [node.output(0)])
        return check_types(values) or check_types((whole,), allowed)

    def lower(self, spec: QuantizeSpec, b: LaunchPlanBuilder) -> None:
        node = spec.node
        x, scale, y = node.input_value(0), node.input_value(1), node.output(0)
        shape = b.shape(x)
        channels, inner = math.prod(b.shape(scale)), 1
        if channels > 1:
            inner = math.prod(shape[spec.axis + 1 :])
        zero = node.input_value(2) if node.has_input(2) else None
        point = "" if zero is None else f", __global const {c_type(zero.element_type)}* restrict zero"
        access = "".join(element_access(v.element_type, name) for v, name in ((x, "X"), (scale, "SCALE"), (y, "Y")))
        source = (
            f"{HELPERS}{access}__kernel void quantization(__global const stored_X* restrict x, "
            f"__global const stored_SCALE* restrict scale{point}, __global stored_Y* restrict y) {{\n"
            f"  const ulong i = get_global_id(0);\n  const ulong c = i / {max(inner, 1)}ul % {max(channels, 1)}ul;\n"
            f"  const float s = load_SCALE(scale, c);\n  {self.code(spec, '' if zero is None else 'zero[c]')}\n}}\n"
        )
        given = [b.input(value) for value in (x, scale, zero) if value is not None]
        b.launch(source, "quantization", [*given, b.output(y)], (math.prod(shape),))

    @abstractmethod
    def code(self, spec: QuantizeSpec, zero: str) -> str:
        """A statement that sets `y` at `i` from `x` at `i` and the scale `s`; `zero` is empty without a zero point."""


@lowers("QuantizeLinear", spec=QuantizeSpec)
class QuantizeLowering(_LinearLowering):
    """Rounds half to even, adds the zero point and saturates; NaN maps to the zero point.

    Quotients have the type given by `precision`, or otherwise the scale's: rounded to f16 or bf16, they may become
    ties.
    """

    def check(self, spec: QuantizeSpec) -> Refusal | None:
        if spec.precision not in (None, *FLOATS):
            return Refusal(RefusalCause.ATTRIBUTE, f"precision is {spec.precision}; expected f32, f16 or bf16")
        return super().check(spec)

    def code(self, spec: QuantizeSpec, zero: str) -> str:
        low, high = (0, 255) if spec.output().element_type is u8 else (-128, 127)
        quotient = "load_X(x, i) / s"
        if rounded := _ROUNDED.get(spec.precision or spec.node.input_value(1).element_type):
            quotient = f"{rounded}({rounded}(load_X(x, i)) / {rounded}(s))"
        return (
            f"const float q = rint({quotient});\n"
            f"  y[i] = (int)clamp((isnan(q) ? 0.0f : q) + (float)({zero or 0}), {low}.0f, {high}.0f);"
        )


@lowers("DequantizeLinear", spec=QuantizeSpec)
class DequantizeLowering(_LinearLowering):
    """(x - zero point) * scale."""

    def code(self, spec: QuantizeSpec, zero: str) -> str:
        return f"store_Y(y, i, (float)(x[i] - ({zero or 0})) * s);"


@lowers("DynamicQuantizeLinear")
class DynamicQuantizeLowering(OpLowering[OperatorSpec]):
    """Minimum and maximum of the tensor, then one kernel."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0), node.output(1))) or check_types(node.outputs[::2], {u8})

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
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
