"""Lowers Pad, in all its modes; the pads must be constant."""

from __future__ import annotations

import math

from engine.lowering import Refusal, check_constant, require_elements
from engine.ops.pad import PadSpec
from engine_opencl.elements import STORED, moved_c_type, moved_scalar
from engine_opencl.lowering.registry import MovingLowering, check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import strides_of


@lowers("Pad", spec=PadSpec)
class PadLowering(MovingLowering[PadSpec]):
    """Constant, edge, reflected or wrapped borders; negative pads crop."""

    values = (1, 2, 3)

    def check(self, spec: PadSpec) -> Refusal | None:
        return check_types((spec.input(0),), STORED) or check_constant(spec.node, *self.values)

    def lower(self, spec: PadSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        pads, value, axes = b.values(spec, 1, 2, 3)
        assert pads is not None
        shape = b.shape(x)
        lengths = spec.at(shape, pads, axes)
        if spec.mode != "constant":
            require_elements(spec.node, lengths.kept, "a border")
        lines = ["ulong r = i;", "long at = 0;", "int inside = 1;"]
        steps = strides_of(shape)
        for axis in range(len(shape) - 1, -1, -1):
            # Borders repeat the part of the axis left by negative pads: `kept` elements from `first` on.
            before, length = lengths.before[axis], max(lengths.shape[axis], 1)
            lines.append(f"{{ long k = (long)(r % {length}ul) - {max(before, 0)}; r /= {length}ul;")
            lines.append(_place(spec.mode, lengths.kept[axis]))
            lines.append(f"at += (k + {max(-before, 0)}) * {steps[axis]}; }}")
        body = "\n  ".join(lines)
        element = moved_c_type(y.element_type)
        source = (
            f"__kernel void pad(__global const {element}* x, __global {element}* y, const {element} fill) {{\n"
            f"  const ulong i = get_global_id(0);\n  {body}\n  y[i] = inside ? x[at] : fill;\n}}\n"
        )
        fill = 0 if value is None or not value.size else value.reshape(-1)[0]
        typed = moved_scalar(y.element_type, fill)
        b.launch(source, "pad", [b.input(x), b.output(y), typed], (math.prod(lengths.shape),))


def _place(mode: str, n: int) -> str:
    """Statements that map `k` into an axis of length n, or clear `inside`."""
    if mode == "constant":
        return f"inside &= k >= 0 && k < {n}; k = inside ? k : 0;"
    if mode == "edge":
        return f"k = k < 0 ? 0 : (k >= {n} ? {n - 1} : k);"
    if mode == "wrap":
        return f"k %= {max(n, 1)}; k = k < 0 ? k + {n} : k;"
    period = max(2 * (n - 1), 1)
    return f"k %= {period}; k = k < 0 ? k + {period} : k; k = k >= {n} ? {period} - k : k;"
