"""Softmax, LogSoftmax and Hardmax, over any axis; and Softmax of rows, as 8-bit integers."""

from __future__ import annotations

from engine.ir.element_type import f32
from engine.lowering import Refusal, RefusalCause
from engine.native import Attribute
from engine.ops.axis_lengths import AxisLengths
from engine.ops.internal import INTERNAL_DOMAIN, QuantizedSoftmaxSpec
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
        attributes: dict[str, Attribute] = {"log": int(is_log)}
        if b.is_repeatable and spec.axis != len(b.shape(spec.node.input_value(0))) - 1:
            attributes["columns"] = 1  # also if there is one, as if there were many
        step_along_axis(spec, b, "softmax_f32", spec.at(spec.input_shapes()), **attributes)


@lowers("Hardmax", spec=SoftmaxSpec)
class HardmaxLowering(OpLowering[SoftmaxSpec]):
    """1 at the first maximum along the axis, 0 elsewhere."""

    def check(self, spec: SoftmaxSpec) -> Refusal | None:
        return check_f32(spec.node)

    def lower(self, spec: SoftmaxSpec, b: SegmentBuilder) -> None:
        outer, axis, inner = spec.at(spec.input_shapes())
        source, target = b.input(spec.node.input_value(0)), b.output(spec.output())
        b.step(spec.node, "hardmax_f32", [source], [target], outer=outer, axis=axis, inner=inner)


@lowers("QuantizedSoftmax", domain=INTERNAL_DOMAIN, spec=QuantizedSoftmaxSpec)
class QuantizedSoftmaxLowering(OpLowering[QuantizedSoftmaxSpec]):
    """Softmax of 8-bit codes along the last axis; other axes are refused."""

    def check(self, spec: QuantizedSoftmaxSpec) -> Refusal | None:
        x = spec.node.input_value(0)
        if x.shape.rank.is_dynamic or spec.axis != len(x.shape) - 1:
            return Refusal(RefusalCause.ATTRIBUTE, f"the axis is {spec.axis} of {x.shape}; expected the last one")
        return None

    def lower(self, spec: QuantizedSoftmaxSpec, b: SegmentBuilder) -> None:
        x = spec.node.input_value(0)
        x_scale, y_scale, zero_point = b.values(spec, 1, 3, 4)
        assert y_scale is not None
        assert zero_point is not None
        outer, axis, _ = spec.at(spec.input_shapes())
        source = b.input(x)
        target = b.output(spec.output(), in_place_of=None if x.element_type is f32 else x)
        b.step(
            spec.node, "softmax_bytes", [source], [target], outer=outer, axis=axis,
            x=x.element_type.name, y=spec.output().element_type.name,
            x_scale=1.0 if x_scale is None else x_scale.item(), y_scale=y_scale.item(), zero_point=zero_point.item(),
        )  # fmt: skip


def step_along_axis(
    spec: OperatorSpec, b: SegmentBuilder, kernel: str, lengths: AxisLengths, **attributes: Attribute
) -> None:
    """Append a step from input 0 to output 0, in place if nothing else reads the input."""
    x, (outer, axis, inner) = spec.node.input_value(0), lengths
    b.step(
        spec.node, kernel, [b.input(x)], [b.output(spec.output(), in_place_of=x)],
        outer=outer, axis=axis, inner=inner, **attributes,
    )  # fmt: skip
