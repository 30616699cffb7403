"""GridSample of maps with two axes."""

from __future__ import annotations

import math

from engine.lowering import Refusal, RefusalCause, require_elements
from engine.ops.sample import GridSampleSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder


@lowers("GridSample", spec=GridSampleSpec)
class GridSampleLowering(OpLowering[GridSampleSpec]):
    """Nearest, linear and cubic, with any padding."""

    def check(self, spec: GridSampleSpec) -> Refusal | None:
        if refused := check_f32(spec.node):
            return refused
        x = spec.node.input_value(0)
        if len(x.shape) != 4:
            return Refusal(RefusalCause.RANK, f"input 0 is {x.type}; expected a map [N, C, H, W]")
        return None

    def lower(self, spec: GridSampleSpec, b: SegmentBuilder) -> None:
        x, grid = spec.node.input_value(0), spec.node.input_value(1)
        batch, channels, *sizes = b.shape(x)
        require_elements(spec.node, sizes, "a sample")
        b.step(
            spec.node,
            "grid_sample_f32",
            [b.input(x), b.input(grid)],
            [b.output(spec.output())],
            **{"in": sizes},
            batch=batch,
            channels=channels,
            points=math.prod(b.shape(grid)[1:3]),
            taps=spec.taps,
            padding=spec.padding_mode,
            aligns_corners=int(spec.align_corners),
        )
