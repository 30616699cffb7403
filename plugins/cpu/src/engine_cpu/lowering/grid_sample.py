"""GridSample of maps with two axes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from engine.lowering import Refusal, RefusalCause
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_TAPS: Final = {"nearest": 1, "linear": 2, "cubic": 4}
_PADDING: Final = ("zeros", "border", "reflection")


@lowers("GridSample")
class GridSampleLowering(OpLowering[OperatorSpec]):
    """Nearest, linear and cubic, with any padding."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if refused := check_f32(node):
            return refused
        if len(node.input_value(0).shape) != 4:
            return Refusal(RefusalCause.SHAPE, f"input 0 is {node.input_value(0).type}; expected a map [N, C, H, W]")
        for name, known in (("mode", _TAPS), ("padding_mode", _PADDING)):
            if (given := attribute(node, name)) not in known:
                return Refusal(RefusalCause.ATTRIBUTE, f"{name} is {given!r}; expected one of {', '.join(known)}")
        return None

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, grid = node.input_value(0), node.input_value(1)
        batch, channels, *sizes = b.shape(x)
        b.step(
            node,
            "grid_sample_f32",
            [b.input(x), b.input(grid)],
            [b.output(node.output(0))],
            **{"in": sizes},
            batch=batch,
            channels=channels,
            points=math.prod(b.shape(grid)[1:3]),
            taps=_TAPS[attribute(node, "mode")],
            padding=attribute(node, "padding_mode"),
            aligns_corners=int(attribute(node, "align_corners")),
        )
