"""ConvInteger: sums of i32, with a computed zero point of x, and any constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Constant, Output
from engine.ir.element_type import i8
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.native import Attribute, Packing
from engine.ops.conv import ConvSpec
from engine_cpu.layout import Layout, LayoutOption, padded_channels, static_shape
from engine_cpu.lowering.checks import check_spatial_rank, check_steps
from engine_cpu.lowering.conv_geometry import conv_geometry
from engine_cpu.lowering.integer_groups import computed_geometry, computed_weights
from engine_cpu.lowering.integer_limits import check_integer_conv
from engine_cpu.lowering.quantized import (
    PLANAR_CHANNELS,
    computed_start,
    in_blocks,
    packed_and_fit,
    unsigned_map,
)
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

Array = np.ndarray[Any, np.dtype[Any]]


@lowers("ConvInteger", spec=ConvSpec)
class ConvIntegerLowering(OpLowering[ConvSpec]):
    """The convolution of `QuantizedConv`, without its epilogue."""

    def check(self, spec: ConvSpec) -> Refusal | None:
        x, weights, x_zero, zero = (spec.input(index) for index in range(4))
        assert x is not None
        assert weights is not None
        if not isinstance(weights.node, Constant) or not isinstance(zero.node if zero else weights.node, Constant):
            return Refusal(RefusalCause.CONSTANT, "W or its zero point is computed; expected constants")
        if x_zero is not None and (not x_zero.shape.is_static or x_zero.shape.size() != 1):
            return Refusal(RefusalCause.SHAPE, f"the zero point of X is {x_zero.shape}; expected one number")
        outputs = weights.shape.get_shape()[0]
        if zero is not None and zero.shape.size() not in (1, outputs):
            return Refusal(RefusalCause.SHAPE, f"the zero point of W is {zero.shape}; expected one, or {outputs}")
        if spec.group > 1 and weights.shape.get_shape()[1] == 1:
            return Refusal(RefusalCause.ATTRIBUTE, "there is no integer kernel for depthwise convolutions to i32")
        return first_refusal(check_spatial_rank(x), check_steps(spec), check_integer_conv(spec, weights))

    def layouts(self, spec: ConvSpec) -> Sequence[LayoutOption]:
        """The result is in blocks, as is the input unless its convolution reads planes."""
        inputs = [Layout.PLAIN] * spec.node.num_inputs
        if not _is_planar(spec):
            inputs[0] = Layout.BLOCKED
        return (LayoutOption(tuple(inputs), (Layout.BLOCKED,)),)

    def lower(self, spec: ConvSpec, b: SegmentBuilder) -> None:
        node, x, sources = spec.node, spec.node.input_value(0), _weights(spec)
        given = conv_geometry(spec, b.shape(x), b.shape(spec.weights))
        geometry = computed_geometry(given)
        window = geometry.attributes()
        is_planar = _is_planar(spec)
        kernel = "conv_planar_int8" if is_planar else "conv_blocked_int8"
        shape, count = b.shape(spec.weights), b.shape(spec.weights)[0]

        def packed() -> Packing:
            data, points = _signed(spec, b)
            if geometry != given:
                data = computed_weights(data, points, given, geometry)
            if is_planar:
                data = np.moveaxis(data.reshape(*data.shape[:2], -1, data.shape[-1]), 1, -1)
                data = np.pad(data, [(0, 0)] * 3 + [(0, PLANAR_CHANNELS - data.shape[-1])])
            return Packing(f"pack_{kernel}", [np.ascontiguousarray(data)], window, isa=b.isa)

        def sums() -> Array:
            data, points = _signed(spec, b)
            total = data.sum(axis=tuple(range(1, data.ndim)), dtype=np.int32)
            return in_blocks(data.size // count * points.astype(np.int32) - total, np.int32)

        def factors() -> Array:
            return in_blocks(np.broadcast_to(-_signed(spec, b)[1].astype(np.int32), (count,)), np.int32)

        recipe = f"integers {kernel} {'x'.join(map(str, shape))} {geometry.groups} of {given.groups}"
        zero = spec.input(2)
        zero_point = b.constant(np.zeros(1, x.element_type.numpy)) if zero is None else b.input(zero)
        constant = b.weights(sources, "integer sums", sums)
        start = computed_start(node, b, x.element_type, zero_point, constant, count)
        ones = b.constant(np.ones(padded_channels(count), np.float32))  # not used by results of i32
        source = unsigned_map(spec, Layout.PLAIN if is_planar else Layout.BLOCKED, b)
        buffer, pairs_fit = packed_and_fit(sources, recipe, packed, b)
        inputs = [source, buffer, start, ones, zero_point]
        attributes: dict[str, Attribute] = {**window, "y": "i32", "x_zero_computed": 1}
        attributes |= {"x_signed": int(x.element_type is i8), "pairs_fit": pairs_fit}
        key = b.store.key(sources, "has zero points")
        if b.store.get(key, sources, lambda: np.array([_signed(spec, b)[1].any()])).reshape(-1)[0]:
            inputs.append(b.weights(sources, f"factors {count}", factors))
            attributes["w_zeros"] = 1
        b.step(node, kernel, inputs, [b.output(spec.output(), Layout.BLOCKED)], **attributes)


def _is_planar(spec: ConvSpec) -> bool:
    dilations = spec.window(static_shape(spec.weights)[2:]).dilations
    return static_shape(spec.node.input_value(0))[1] <= PLANAR_CHANNELS and spec.group == 1 and dilations[-1] == 1


def _weights(spec: ConvSpec) -> list[Output]:
    """The constants that the weights are computed from."""
    return [value for value in (spec.input(1), spec.input(3)) if value is not None]


def _signed(spec: ConvSpec, b: SegmentBuilder) -> tuple[Array, Array]:
    """The weights, and their zero points, one or one for each channel, as i8: u8 minus 128."""
    data, zero = b.value(spec.weights), spec.input(3)
    points = np.zeros((), data.dtype) if zero is None else b.value(zero)
    if data.dtype == np.int8:
        return data, points
    shifted = [(array.astype(np.int16) - 128).astype(np.int8) for array in (data, points)]
    return shifted[0], shifted[1]
