"""Interpolation at computed coordinates: GridSample and RoiAlign."""

from __future__ import annotations

import math

from engine.ir.element_type import i64
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal, require_elements
from engine.ops.sample import GridSampleSpec, RoiAlignSpec
from engine_cpu.lowering.checks import F32, check_f32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder


@lowers("GridSample", spec=GridSampleSpec)
class GridSampleLowering(OpLowering[GridSampleSpec]):
    """Nearest, linear and cubic, with any padding."""

    def check(self, spec: GridSampleSpec) -> Refusal | None:
        if refused := check_f32(spec.node):
            return refused
        x = spec.node.input_value(0)
        if len(x.shape) not in (4, 5):
            return Refusal(RefusalCause.RANK, f"input 0 is {x.type}; expected [N, C, H, W] or [N, C, D, H, W]")
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
            points=math.prod(b.shape(grid)[1:-1]),
            taps=spec.taps,
            padding=spec.padding_mode,
            aligns_corners=int(spec.align_corners),
        )


@lowers("RoiAlign", spec=RoiAlignSpec)
class RoiAlignLowering(OpLowering[RoiAlignSpec]):
    """Averages and maxima, with a given number of samples or one that follows from the region."""

    def check(self, spec: RoiAlignSpec) -> Refusal | None:
        x, regions, images = spec.node.input_values
        return first_refusal(check_types([x, regions, spec.output()], F32), check_types([images], {i64}))

    def lower(self, spec: RoiAlignSpec, b: SegmentBuilder) -> None:
        x, regions = spec.node.input_value(0), spec.node.input_value(1)
        batch, channels, *sizes = b.shape(x)
        if b.shape(regions)[0]:
            require_elements(spec.node, sizes, "a sample")
        b.step(
            spec.node,
            "roi_align_f32",
            [b.input(x), b.input(regions), b.input(spec.node.input_value(2))],
            [b.output(spec.output())],
            **{"in": sizes},
            images=batch,
            channels=channels,
            regions=b.shape(regions)[0],
            cells=[spec.output_height, spec.output_width],
            samples=spec.sampling_ratio,
            scale=spec.spatial_scale,
            max=int(spec.mode == "max"),
            half_pixel=int(spec.coordinate_transformation_mode == "half_pixel"),
        )
