"""Reductions over any axes, also of maps in blocks of channels; ArgMax and ArgMin; running sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from engine.ir import Constant
from engine.ir.element_type import boolean, f32, f64, i8, i32, i64, u8, u32, u64
from engine.lowering import Refusal, check_types, first_refusal
from engine.ops.reduce import ArgReduceSpec, CumulativeSpec, ReduceSpec
from engine_cpu.layout import BLOCK, Layout, LayoutOption, padded_channels, static_shape
from engine_cpu.lowering.checks import check_values
from engine_cpu.lowering.pool import global_pool_step
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

# The kernel's names.
_OPS: Final = {
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceSumSquare": "sum_square", "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}  # fmt: skip
_NUMBERS: Final = frozenset({f32, i32, i64})
_ACCUMULATED: Final = frozenset({f32, f64, i32, i64, u32, u64})
_EXTREMES: Final = frozenset({"ReduceMax", "ReduceMin"})
_ROOTS: Final = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})


@lowers(*_OPS, spec=ReduceSpec)
class ReductionLowering(OpLowering[ReduceSpec]):
    """One step, for the values of the axes."""

    values = (1,)

    def check(self, spec: ReduceSpec) -> Refusal | None:
        allowed = {f32, f64} if spec.op_type in _ROOTS else {f32, f64, i32, i64, u32, u64}
        if spec.op_type in _EXTREMES:
            allowed |= {u8, i8, boolean}
        return first_refusal(check_values(spec.node, self.values), check_types([spec.data], allowed))

    def layouts(self, spec: ReduceSpec) -> Sequence[LayoutOption]:
        """Plain; and blocked, for reductions over all pixels of maps."""
        count, x = spec.node.num_inputs, spec.data
        plain = LayoutOption.uniform(Layout.PLAIN, count)
        rank = len(x.shape)
        if x.element_type is not f32 or rank < 3 or _axes(spec) != tuple(range(2, rank)):
            return (plain,)
        rest = (Layout.PLAIN,) * (count - 1)
        options = [plain]
        if spec.keepdims:
            options.append(LayoutOption((Layout.BLOCKED, *rest), (Layout.BLOCKED,)))
            if spec.op_type == "ReduceMean" and math.prod(static_shape(x)[2:]) > 0:  # a pooling of nothing is 0
                options.append(LayoutOption((Layout.BLOCKED_BF16, *rest), (Layout.BLOCKED_BF16,), precision="bf16"))
        if x.shape[1].get_length() % BLOCK == 0:  # the result has the same bytes in either layout
            options.append(LayoutOption((Layout.BLOCKED, *rest), (Layout.PLAIN,)))
        return options

    def lower(self, spec: ReduceSpec, b: SegmentBuilder) -> None:
        option = b.option(spec.node)
        shape, axes = b.shape(spec.data), _axes(spec)
        if option.inputs[0] is Layout.BLOCKED_BF16:
            global_pool_step(spec.node, b)
            return
        if option.inputs[0] is Layout.BLOCKED:
            batch, channels, *pixels = shape
            shape = (batch * padded_channels(channels) // BLOCK, *pixels, BLOCK)
            axes = tuple(range(1, 1 + len(pixels)))
        b.step(
            spec.node,
            "reduce",
            [b.input(spec.data, option.inputs[0])],
            [b.output(spec.output(), option.outputs[0])],
            op=_OPS[spec.op_type],
            type=spec.data.element_type.name,
            shape=shape,
            axes=list(axes),
        )


def _axes(spec: ReduceSpec) -> tuple[int, ...]:
    named = spec.input(1)
    if named is None:
        return spec.at(len(spec.data.shape), None)
    assert isinstance(named.node, Constant), named
    return spec.at(len(spec.data.shape), named.node.data)


@lowers("ArgMax", "ArgMin", spec=ArgReduceSpec)
class ArgReduceLowering(OpLowering[ArgReduceSpec]):
    """Positions of extremes; a NaN is the extreme."""

    def check(self, spec: ArgReduceSpec) -> Refusal | None:
        return check_types([spec.data], _NUMBERS | {u8, i8})

    def lower(self, spec: ArgReduceSpec, b: SegmentBuilder) -> None:
        outer, length, inner = spec.at(b.shape(spec.data))
        b.step(
            spec.node,
            "arg_reduce",
            [b.input(spec.data)],
            [b.output(spec.output())],
            type=spec.data.element_type.name,
            min=int(spec.op_type == "ArgMin"),
            last=int(spec.select_last_index),
            outer=outer,
            axis=length,
            inner=inner,
        )


@lowers("CumSum", "CumProd", spec=CumulativeSpec)
class CumulativeLowering(OpLowering[CumulativeSpec]):
    """Running sums and products, for the value of the axis."""

    values = (1,)

    def check(self, spec: CumulativeSpec) -> Refusal | None:
        return first_refusal(check_values(spec.node, self.values), check_types([spec.data], _ACCUMULATED))

    def lower(self, spec: CumulativeSpec, b: SegmentBuilder) -> None:
        x = spec.data
        outer, length, inner = spec.at(b.shape(x), b.value(spec.node.input_value(1)))
        source = b.input(x)
        b.step(
            spec.node,
            "cum_sum",
            [source],
            [b.output(spec.output(), in_place_of=x)],
            type=x.element_type.name,
            exclusive=int(spec.exclusive),
            reverse=int(spec.reverse),
            product=int(spec.op_type == "CumProd"),
            outer=outer,
            axis=length,
            inner=inner,
        )
