"""Softmax, LogSoftmax and Hardmax, over any axis."""

from __future__ import annotations

from engine.lowering import Refusal
from engine.native import Attribute
from engine.ops.axis_lengths import AxisLengths
from engine.ops.softmax import SoftmaxSpec
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder


@lowers("Softmax", "LogSoftmax", spec=SoftmaxSpec)
class SoftmaxLowering(OpLowering[SoftmaxSpec]):
    """One step over [outer, axis, inner]; the attribute `log` selects LogSoftmax."""

    def check(self, spec: SoftmaxSpec) -> Refusal | None:
        return check_f32(spec.node)

    def lower(self, spec: SoftmaxSpec, b: SegmentBuilder) -> None:
        is_log = spec.op_type == "LogSoftmax"
        step_along_axis(spec, b, "softmax_f32", spec.at(spec.input_shapes()), log=int(is_log))


@lowers("Hardmax", spec=SoftmaxSpec)
class HardmaxLowering(OpLowering[SoftmaxSpec]):
    """1 at the first maximum."""

    def check(self, spec: SoftmaxSpec) -> Refusal | None:
        return check_f32(spec.node)

    def lower(self, spec: SoftmaxSpec, b: SegmentBuilder) -> None:
        outer, axis, inner = spec.at(spec.input_shapes())
        source, target = b.input(spec.node.input_value(0)), b.output(spec.output())
        b.step(spec.node, "hardmax_f32", [source], [target], outer=outer, axis=axis, inner=inner)


def step_along_axis(
    spec: OperatorSpec, b: SegmentBuilder, kernel: str, lengths: AxisLengths, **attributes: Attribute
) -> None:
    """Append a step from input 0 to output 0, in place if nothing else reads the input."""
    x, (outer, axis, inner) = spec.node.input_value(0), lengths
    b.step(
        spec.node, kernel, [b.input(x)], [b.output(spec.output(), in_place_of=x)],
        outer=outer, axis=axis, inner=inner, **attributes,
    )  # fmt: skip
