"""ConvInteger: sums of i32, with a computed zero point of x, and any constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Constant, Output
from engine.ir.element_type import i8, i32
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.native import Attribute, Packing
from engine.ops.conv import ConvSpec
from engine_cpu.layout import Layout, LayoutOption, layout_bytes, padded_channels, static_shape
from engine_cpu.lowering.checks import check_spatial_rank, check_steps
from engine_cpu.lowering.conv_geometry import conv_geometry
from engine_cpu.lowering.elementwise_instructions import Opcode
from engine_cpu.lowering.elementwise_program import ElementwiseProgram
from engine_cpu.lowering.integer_groups import CHANNEL_BLOCK
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
        outputs, inputs = weights.shape.get_shape()[:2]
        if spec.group > 1 and (inputs % CHANNEL_BLOCK or outputs // spec.group % CHANNEL_BLOCK):
            return Refusal(
                RefusalCause.ATTRIBUTE,
                f"groups of {inputs} input and {outputs // spec.group} output channels; expected multiples of "
                f"{CHANNEL_BLOCK}",
            )
        return first_refusal(check_spatial_rank(x), check_steps(spec), check_integer_conv(spec, weights))

    def layouts(self, spec: ConvSpec) -> Sequence[LayoutOption]:
        """The result is in blocks, as is the input unless its convolution reads planes."""
        inputs = [Layout.PLAIN] * spec.node.num_inputs
        if not _is_planar(spec):
            inputs[0] = Layout.BLOCKED
        return (LayoutOption(tuple(inputs), (Layout.BLOCKED,)),)

    def lower(self, spec: ConvSpec, b: SegmentBuilder) -> None:
        """One convolution; two whose difference is taken if the weights less their zero points exceed i8."""
        output, nbytes = spec.output(), layout_bytes(b.shape(spec.output()), i32, Layout.BLOCKED)
        key = b.store.key(_weights(spec), "exceed i8")
        exceeds = b.store.get(key, _weights(spec), lambda: np.array([_part(spec, b, 1).any()]))
        target = b.output(output, Layout.BLOCKED)
        if not exceeds.reshape(-1)[0]:
            self._convolve(spec, b, 0, target)
            return
        sums = [b.temporary(nbytes), b.temporary(nbytes)]
        for part, buffer in enumerate(sums):
            self._convolve(spec, b, part, buffer)
        program = ElementwiseProgram()
        difference = program.op(Opcode.SUB, program.input(i32), program.input(i32))
        attributes = program.attributes([difference])
        b.step(spec.node, "elementwise", sums, [target], dims=[nbytes // 4], input_strides=[1, 1], **attributes)

    def _convolve(self, spec: ConvSpec, b: SegmentBuilder, part: int, target: int) -> None:
        node, x, sources = spec.node, spec.node.input_value(0), _weights(spec)
        geometry = conv_geometry(spec, b.shape(x), b.shape(spec.weights))
        window = geometry.attributes()
        is_planar = _is_planar(spec)
        kernel = "conv_planar_int8" if is_planar else "conv_blocked_int8"
        shape = b.shape(spec.weights)

        def packed() -> Packing:
            data = _part(spec, b, part)
            if is_planar:
                data = np.moveaxis(data.reshape(*data.shape[:2], -1, data.shape[-1]), 1, -1)
                data = np.pad(data, [(0, 0)] * 3 + [(0, PLANAR_CHANNELS - data.shape[-1])])
            return Packing(f"pack_{kernel}", [np.ascontiguousarray(data)], window, isa=b.isa)

        def sums() -> Array:
            data = _part(spec, b, part)
            return in_blocks(-data.sum(axis=tuple(range(1, data.ndim)), dtype=np.int32), np.int32)

        recipe = f"integers {part} {kernel} {'x'.join(map(str, shape))} {window.get('groups', 1)}"
        zero = spec.input(2)
        zero_point = b.constant(np.zeros(1, x.element_type.numpy)) if zero is None else b.input(zero)
        constant = b.weights(sources, f"integer sums {part}", sums)
        start = computed_start(node, b, x.element_type, zero_point, constant, shape[0])
        ones = b.constant(np.ones(padded_channels(shape[0]), np.float32))  # not used by results of i32
        layout = Layout.PLAIN if is_planar else Layout.BLOCKED
        source = unsigned_map(spec, layout, b)
        buffer, pairs_fit = packed_and_fit(sources, recipe, packed, b)
        inputs = [source, buffer, start, ones, zero_point]
        attributes: dict[str, Attribute] = {**window, "y": "i32", "x_zero_computed": 1}
        attributes |= {"x_signed": int(x.element_type is i8), "pairs_fit": pairs_fit}
        b.step(node, kernel, inputs, [target], **attributes)


def _is_planar(spec: ConvSpec) -> bool:
    dilations = spec.window(static_shape(spec.weights)[2:]).dilations
    return static_shape(spec.node.input_value(0))[1] <= PLANAR_CHANNELS and spec.group == 1 and dilations[-1] == 1


def _weights(spec: ConvSpec) -> list[Output]:
    """The constants that the weights are computed from."""
    return [value for value in (spec.input(1), spec.input(3)) if value is not None]


def _centered(spec: ConvSpec, b: SegmentBuilder) -> Array:
    """The weights less their zero points."""
    data, zero = b.value(spec.weights).astype(np.int16), spec.input(3)
    if zero is None:
        return data
    return data - b.value(zero).astype(np.int16).reshape(-1, *[1] * (data.ndim - 1))


def _part(spec: ConvSpec, b: SegmentBuilder, part: int) -> Array:
    """The weights less their zero points, limited to i8; or the part to subtract from the limited ones to get them."""
    whole = _centered(spec, b)
    limited = np.clip(whole, -128, 127)
    return (limited - whole if part else limited).astype(np.int8)
