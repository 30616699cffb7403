"""GridSample and RoiAlign: elements of an image at computed coordinates."""

from __future__ import annotations

import math
from typing import Final

from engine.ir.element_type import i64
from engine.lowering import Refusal, RefusalCause, require_elements
from engine.ops.sample import GridSampleSpec, RoiAlignSpec
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source, kernel_text

_CHANNELS: Final = 16
"""Channels of a region for which an item of RoiAlign finds the samples once."""


@lowers("GridSample", spec=GridSampleSpec)
class GridSampleLowering(OpLowering[GridSampleSpec]):
    """Planes and volumes, in all modes and paddings."""

    def check(self, spec: GridSampleSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        if len(x.shape) not in (4, 5):
            return Refusal(RefusalCause.RANK, f"input 0 is {x.type}; expected 4 or 5 dimensions, [N, C, ...]")
        return check_types((*spec.node.input_values, spec.output()))

    def lower(self, spec: GridSampleSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        n, channels, *space = b.shape(x)
        require_elements(spec.node, space, "a sample")
        places = math.prod(b.shape(y)[2:])
        depth, height, width = (1, *space)[-3:]
        source = kernel_source(
            "grid_sample", y.element_type,
            RANK=len(space), D=depth, H=height, W=width, CHANNELS=channels, PLACES=f"{places}ul",
            TAPS=spec.taps, ALIGN=int(spec.align_corners),
            BORDER=int(spec.padding_mode == "border"), REFLECTION=int(spec.padding_mode == "reflection"),
        )  # fmt: skip
        buffers = [b.input(x), b.input(spec.node.input_value(1)), b.output(y)]
        b.launch(source, "grid_sample", buffers, (places, n) if channels else (0,))


@lowers("RoiAlign", spec=RoiAlignSpec)
class RoiAlignLowering(OpLowering[RoiAlignSpec]):
    """Averages and maxima; an image that does not exist fails the inference."""

    def check(self, spec: RoiAlignSpec) -> Refusal | None:
        x, regions, images = spec.node.input_values
        return check_types((x, regions, spec.output())) or check_types((images,), {i64})

    def lower(self, spec: RoiAlignSpec, b: LaunchPlanBuilder) -> None:
        x, regions, images = (spec.node.input_value(index) for index in range(3))
        y = spec.output()
        (batch, channels, height, width), (count, _, *cells) = b.shape(x), b.shape(y)
        blocks = -(-channels // _CHANNELS)
        source = kernel_text("rounded") + kernel_source(
            "roi_align", y.element_type,
            IMAGES=f"{batch}l", C=channels, H=height, W=width, CHANNELS=-(-channels // max(blocks, 1)),
            CELLS_H=cells[0], CELLS_W=cells[1], SAMPLES=spec.sampling_ratio, MAXIMUM=int(spec.mode == "max"),
            HALF_PIXEL=int(spec.coordinate_transformation_mode == "half_pixel"),
        )  # fmt: skip
        buffers = [b.input(x), b.input(regions), b.input(images), b.output(y)]
        faults = b.fault(batch, is_signed=False)
        b.launch(source, "roi_align", [*buffers, spec.spatial_scale, *faults], (math.prod(cells), blocks, count))
