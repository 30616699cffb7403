"""GridSample: elements of an image at computed coordinates."""

from __future__ import annotations

import math

from engine.lowering import Refusal, RefusalCause, require_elements
from engine.ops.sample import GridSampleSpec
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source


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
