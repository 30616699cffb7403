"""Lowers the convolutions of 8-bit integers."""

from __future__ import annotations

import math

from engine.lowering import Refusal
from engine.ops.conv import ConvSpec
from engine_opencl.lowering.conv.conv import check_spatial_rank
from engine_opencl.lowering.conv.parts import window_defines
from engine_opencl.lowering.quantized_operands import TILE, QuantizedLowering, operands_of
from engine_opencl.lowering.registry import lowers
from engine_opencl.plan_builder import LaunchPlanBuilder


@lowers("ConvInteger", "QLinearConv", spec=ConvSpec)
class IntegerConvLowering(QuantizedLowering[ConvSpec]):
    """One to three spatial axes, groups, and per-tensor or per-channel weight zero points and scales."""

    def check(self, spec: ConvSpec) -> Refusal | None:
        return super().check(spec) or check_spatial_rank(spec.node.input_value(0))

    def lower(self, spec: ConvSpec, b: LaunchPlanBuilder) -> None:
        given, y = operands_of(spec.node), spec.output()
        x, weights = b.shape(given.a), b.shape(given.b)
        g, groups = spec.at(x, weights).with_axes(3), spec.group
        own = weights[0] // groups
        channels = min(TILE, own)
        blocks = -(-own // channels)
        defines: dict[str, object] = {
            "GROUPS": groups, "GM": own, "C": weights[1], "CHANNELS": channels, "BLOCKS": blocks, **window_defines(g),
        }  # fmt: skip
        source = given.source("integer_conv", b, y, **defines)
        arguments = [b.input(given.a), b.input(given.b), *given.buffers(b), b.output(y)]
        b.launch(source, "integer_conv", arguments, (math.prod(g.outputs), groups * blocks, x[0]))
