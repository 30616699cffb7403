"""GridSample: elements of an image at computed places."""

from __future__ import annotations

import math
from typing import Final

from engine.lowering import Refusal, RefusalCause, require_elements
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import kernel_source

_TAPS: Final = {"nearest": 1, "linear": 2, "cubic": 4}
_PADDINGS: Final = ("zeros", "border", "reflection")


@lowers("GridSample")
class GridSampleLowering(OpLowering[OperatorSpec]):
    """Planes and volumes, in all modes and paddings."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        rank = len(node.input_value(0).shape) - 2
        if rank not in (2, 3):
            return Refusal(RefusalCause.ATTRIBUTE, f"{rank} axes of space; expected 2 or 3")
        mode, padding = attribute(node, "mode"), attribute(node, "padding_mode")
        if mode not in _TAPS or padding not in _PADDINGS:
            return Refusal(RefusalCause.ATTRIBUTE, f"mode is {mode!r}, padding_mode {padding!r}")
        return check_types((*node.input_values, *node.outputs))

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        n, channels, *space = b.shape(x)
        require_elements(node, space, "a sample")
        places = math.prod(b.shape(y)[2:])
        depth, height, width = (1, *space)[-3:]
        padding = attribute(node, "padding_mode")
        source = kernel_source(
            "grid_sample", y.element_type,
            RANK=len(space), D=depth, H=height, W=width, CHANNELS=channels, PLACES=f"{places}ul",
            TAPS=_TAPS[attribute(node, "mode")], ALIGN=int(bool(attribute(node, "align_corners"))),
            BORDER=int(padding == "border"), REFLECTION=int(padding == "reflection"),
        )  # fmt: skip
        buffers = [b.input(x), b.input(node.input_value(1)), b.output(y)]
        b.launch(source, "grid_sample", buffers, (places, n) if channels else (0,))
