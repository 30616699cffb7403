"""Average pooling, sums and products of 8-bit tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.ir import Output
from engine.ir.element_type import i8
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.native import Attribute
from engine.ops.internal import INTERNAL_DOMAIN, Codes, QuantizedBinarySpec
from engine.ops.internal.quantized_maps import codes_of
from engine.ops.pool import PoolSpec
from engine_cpu.layout import BLOCK, Layout, LayoutOption, padded_channels
from engine_cpu.lowering.checks import check_spatial_rank, check_steps
from engine_cpu.lowering.conv_geometry import window_attributes
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import is_byte_map
from engine_cpu.segment import SegmentBuilder


@lowers("QuantizedAveragePool", domain=INTERNAL_DOMAIN, spec=PoolSpec)
class QuantizedAveragePoolLowering(OpLowering[PoolSpec]):
    """Average pooling of 8-bit codes, on maps in blocks of channels."""

    def check(self, spec: PoolSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        if x.shape.rank.is_static and len(x.shape) > 1 and x.shape[1].is_static and x.shape[1].min == 0:
            return Refusal(RefusalCause.SHAPE, f"X has no channels: {x.shape}")
        return first_refusal(check_spatial_rank(x), check_steps(spec))

    def layouts(self, spec: PoolSpec) -> Sequence[LayoutOption]:
        return (LayoutOption.uniform(Layout.BLOCKED, spec.node.num_inputs),)

    def lower(self, spec: PoolSpec, b: SegmentBuilder) -> None:
        x, y = codes_of(spec.node)
        values = spec.node.input_value(0)
        batch, channels = b.shape(values)[:2]
        unit, attributes = _result(y, spec.output(), b)
        attributes |= window_attributes(spec.at(b.shape(values)).with_axes(2))
        attributes |= {
            "batch": batch,
            "in_channels": channels,
            "out_channels": channels,
            "count_include_pad": int(spec.count_include_pad),
            "scale": _number(x.scale, b) * unit,
            "x_zero_point": _zero_point(x, b),
            "x_signed": int(values.element_type is i8),
        }
        inputs = [b.input(values, Layout.BLOCKED)]
        b.step(spec.node, "average_pool_bytes", inputs, [b.output(spec.output(), Layout.BLOCKED)], **attributes)


@lowers("QuantizedBinary", domain=INTERNAL_DOMAIN, spec=QuantizedBinarySpec)
class QuantizedBinaryLowering(OpLowering[QuantizedBinarySpec]):
    """Tensors of one shape, in either layout of maps; or the second with a value for each channel."""

    def check(self, spec: QuantizedBinarySpec) -> Refusal | None:
        shape = spec.node.input_value(0).shape
        return Refusal(RefusalCause.RANK, f"A is {shape}") if shape.rank.is_dynamic else None

    def layouts(self, spec: QuantizedBinarySpec) -> Sequence[LayoutOption]:
        inputs = [Layout.PLAIN] * spec.node.num_inputs
        plain = LayoutOption(tuple(inputs), (Layout.PLAIN,))
        if not is_byte_map(spec.node.input_value(0)):
            return (plain,)
        inputs[0] = inputs[3] = Layout.BLOCKED
        return (plain, LayoutOption(tuple(inputs), (Layout.BLOCKED,)))

    def lower(self, spec: QuantizedBinarySpec, b: SegmentBuilder) -> None:
        first, second, y = codes_of(spec.node)
        values = spec.node.input_value(0), spec.node.input_value(3)
        layout, shape = b.option(spec.node).outputs[0], b.shape(values[0])
        unit, attributes = _result(y, spec.output(), b)
        scales = _number(first.scale, b), _number(second.scale, b)
        is_product = spec.operator == "Mul"
        is_repeated = b.shape(values[1]) != shape
        lanes = BLOCK if layout.is_blocked else 1
        channels = padded_channels(shape[1]) // BLOCK if layout.is_blocked else math.prod(shape[1:2])
        outer, pixels = math.prod(shape[:1]) * channels, math.prod(shape[2:])
        attributes |= {
            "outer": outer if is_repeated else 1,
            "pixels": pixels if is_repeated else outer * pixels,
            "lanes": lanes,
            "product": int(is_product),
            "b_repeated": int(is_repeated),
            "a_scale": scales[0] * unit * (scales[1] if is_product else 1),
            "b_scale": 1.0 if is_product else scales[1] * unit,
            "a_zero_point": _zero_point(first, b),
            "b_zero_point": _zero_point(second, b),
            "a_signed": int(values[0].element_type is i8),
            "b_signed": int(values[1].element_type is i8),
        }
        inputs = [b.input(value, layout) for value in values]
        output = b.output(spec.output(), layout, in_place_of=values[0])
        b.step(spec.node, "binary_bytes", inputs, [output], **attributes)


def _result(y: Codes, result: Output, b: SegmentBuilder) -> tuple[float, dict[str, Attribute]]:
    """The factor from real values to units of the result, and the attributes of its type."""
    if y.scale is None:
        return 1.0, {"y": "f32"}
    return 1 / _number(y.scale, b), {"y": result.element_type.name, "zero_point": int(_number(y.zero_point, b))}


def _zero_point(codes: Codes, b: SegmentBuilder) -> int:
    """A zero point as u8."""
    assert isinstance(codes.values, Output)
    return int(_number(codes.zero_point, b)) + (128 if codes.values.element_type is i8 else 0)


def _number(value: Any, b: SegmentBuilder) -> float:
    assert isinstance(value, Output)
    return float(b.value(value).item())
