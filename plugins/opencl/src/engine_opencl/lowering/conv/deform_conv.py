"""DeformConv: a pointwise convolution of windows whose elements are interpolated at moved places."""

from __future__ import annotations

import math
from typing import Final

from engine.lowering import Refusal, RefusalCause, require_elements
from engine.ops.conv import DeformConvSpec
from engine.ops.windows import WindowGeometry
from engine_opencl.elements import stored_type
from engine_opencl.lowering.conv.conv import launch_conv
from engine_opencl.lowering.conv.parts import window_defines
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.matmul.product import Epilogue
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.strided import strided_copy
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source

_CHANNELS: Final = 32
"""Channels for which an item finds the pixels around a tap once."""
_SHARE: Final = 8
"""The maximum share of the device's memory and of its largest buffer for the windows of several images at a time."""


@lowers("DeformConv", spec=DeformConvSpec)
class DeformConvLowering(OpLowering[DeformConvSpec]):
    """Convolutions of maps with two axes."""

    def check(self, spec: DeformConvSpec) -> Refusal | None:
        node = spec.node
        if refused := check_types((*node.input_values, *node.outputs)):
            return refused
        x = node.input_value(0)
        if len(x.shape) != 4:
            return Refusal(RefusalCause.RANK, f"input 0 is {x.type}; expected a map [N, C, H, W]")
        return None

    def lower(self, spec: DeformConvSpec, b: LaunchPlanBuilder) -> None:
        x, y, weights, bias = spec.node.input_value(0), spec.output(), spec.node.input_value(1), spec.input(3)
        (images, channels, *lengths), (_, outputs, *_) = b.shape(x), b.shape(y)
        require_elements(spec.node, lengths, "a sample")
        result = b.output(y)
        if 0 in b.shape(y):
            return
        moved = _Moved(spec, b)
        count = moved.images_at_once()
        epilogue = Epilogue(bias=None if bias is None else (1, 0))
        for first in range(0, images, count):
            some, groups = min(count, images - first), spec.group
            part = result if some == images else b.temporary(moved.bytes_of(some * outputs))
            c = Convolution(
                some, groups, channels // groups * moved.taps, outputs // groups, moved.pointwise(), False,
                y.element_type, moved.columns(first, some), b.input(weights), None if bias is None else b.input(bias),
                None, part, epilogue.code(),
            )  # fmt: skip
            launch_conv(b, c, epilogue)
            if some < images:
                size = outputs * moved.places
                strided_copy(b, y, part, result, (some * size,), (1,), 0, (1,), first * size)


class _Moved:
    """The windows of a convolution, moved."""

    def __init__(self, spec: DeformConvSpec, b: LaunchPlanBuilder) -> None:
        self._spec, self._b = spec, b
        self._shape = b.shape(spec.node.input_value(0))
        self._geometry = spec.at(self._shape, b.shape(spec.node.input_value(1)))
        self.taps, self.places = math.prod(self._geometry.kernel), math.prod(self._geometry.outputs)

    def bytes_of(self, maps: int) -> int:
        """The memory for this many maps of the result's size."""
        return maps * self.places * stored_type(self._spec.output()).itemsize

    def images_at_once(self) -> int:
        """As many as the device has room for, at least one."""
        facts, each = self._b.facts, self.bytes_of(self._shape[1] * self.taps)
        return max(1, min(facts.memory, facts.largest_buffer) // _SHARE // max(each, 1))

    def pointwise(self) -> WindowGeometry:
        """The geometry of the convolution of the columns."""
        ones, outputs = (1,) * 3, (1, *self._geometry.outputs)
        return WindowGeometry(outputs, outputs, ones, ones, ones, (0,) * 3, (0,) * 3)

    def columns(self, first: int, count: int) -> Buffer:
        """[count, channels, taps, places] of the images from `first` on."""
        spec, b, node = self._spec, self._b, self._spec.node
        channels, groups, mask = self._shape[1], spec.offset_group, spec.input(4)
        columns = b.temporary(self.bytes_of(count * channels * self.taps))
        each = channels // groups
        blocks = -(-each // _CHANNELS)
        source = kernel_source(
            "deform_columns", spec.output().element_type,
            C=channels, GROUP_CHANNELS=each, CHANNELS=_CHANNELS, BLOCKS=blocks, OFFSET_GROUPS=groups, TAPS=self.taps,
            PLACES=f"{self.places}ul", MASK=int(mask is not None),
            **window_defines(self._geometry, "HW"),
        )  # fmt: skip
        given = [b.input(value) for value in (node.input_value(0), node.input_value(2), mask) if value is not None]
        b.launch(source, "deform_columns", [*given, columns, first], (self.places, groups * self.taps * blocks, count))
        return columns
