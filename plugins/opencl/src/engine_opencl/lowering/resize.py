"""Resize: along one axis after the other, by tables of indices and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.ir import Output
from engine.lowering import Refusal, check_constant, require_elements
from engine.ops.resize import ResizedAxis, ResizeSpec
from engine_opencl.elements import COMPUTED, FLOATS, moved_scalar, stored_type
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.tables import table
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import element_access, kernel_source, moved_access


@lowers("Resize", spec=ResizeSpec)
class ResizeLowering(OpLowering[ResizeSpec]):
    """Nearest of any element type, linear and cubic of floating point; the region, scales and sizes are known."""

    values = (1, 2, 3)

    def computes_with(self, spec: ResizeSpec) -> Sequence[Output | None]:
        """See `OpLowering`: the nearest elements are copied."""
        return () if spec.mode == "nearest" else super().computes_with(spec)

    def check(self, spec: ResizeSpec) -> Refusal | None:
        allowed = COMPUTED if spec.mode == "nearest" else FLOATS
        return check_types((spec.input(0),), allowed) or check_constant(spec.node, *self.values)

    def lower(self, spec: ResizeSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        axes = spec.at(b.shape(x), *b.values(spec, 1, 2, 3)).axes
        if not axes:
            b.alias(y, x)
            return
        require_elements(spec.node, [axis.length for axis in axes], "an interpolation")
        shape, source = list(b.shape(x)), b.input(x)
        axes = tuple(sorted(axes, key=lambda each: each.scale))  # shrinking axes first, so that less is computed
        for axis in axes:
            shape[axis.axis] = axis.size
            target = b.output(y) if axis is axes[-1] else b.temporary(math.prod(shape) * stored_type(x).itemsize)
            if 0 not in shape:
                _resize_axis(spec, b, axis, source, target, shape)
            source = target


def _resize_axis(
    spec: ResizeSpec, b: LaunchPlanBuilder, axis: ResizedAxis, source: Buffer, target: Buffer, shape: Sequence[int]
) -> None:
    """Resize along one axis; `shape` is the resulting shape."""
    taps, element_type = axis.taps, spec.output().element_type
    inner, outer = math.prod(shape[axis.axis + 1 :]), math.prod(shape[: axis.axis])
    is_nearest, outside = spec.mode == "nearest", spec.extrapolation_value
    text = (moved_access if is_nearest else element_access)(element_type) + kernel_source(
        "resize", TAPS=taps.indices.shape[1], NEAREST=int(is_nearest)
    )
    typed = moved_scalar(element_type, outside) if is_nearest else np.float32(outside)
    buffers = [source, table(b, taps.indices), table(b, taps.weights.astype(np.float32)), target]
    b.launch(text, "resize", [*buffers, typed, np.uint64(axis.length)], (inner, axis.size, outer))
