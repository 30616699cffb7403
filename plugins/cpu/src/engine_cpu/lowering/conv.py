"""Conv, ConvTranspose and FusedConv: of one and two axes on maps in blocks of channels, by slices, or unrolled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from engine.ir import Node
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.ops.conv import ConvSpec
from engine.ops.internal import INTERNAL_DOMAIN
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption, static_shape
from engine_cpu.lowering.checks import MAX_STEP, MAX_TRANSPOSED_STRIDE, check_f32, check_spatial_rank, check_steps
from engine_cpu.lowering.conv_candidates import (
    PLANAR_CHANNELS,
    ConvCandidates,
    ConvProblem,
    estimated_seconds,
    has_bf16_kernel,
)
from engine_cpu.lowering.conv_chain import lower_chain
from engine_cpu.lowering.conv_geometry import conv_geometry, has_two_axes
from engine_cpu.lowering.conv_operands import packed_weights, padded_bias
from engine_cpu.lowering.conv_runs import lower_runs, runs_option
from engine_cpu.lowering.conv_slices import is_sliced, lower_sliced
from engine_cpu.lowering.conv_slices_transposed import is_sliced_transposed, lower_sliced_transposed
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.unrolled import check_unrolled, lower_unrolled
from engine_cpu.segment import SegmentBuilder

_X, _W, _BIAS, _RESIDUAL = range(4)


@lowers("Conv", "ConvTranspose", spec=ConvSpec)
@lowers("FusedConv", domain=INTERNAL_DOMAIN, spec=ConvSpec)
class ConvLowering(OpLowering[ConvSpec]):
    """Direct, Winograd, depthwise, grouped or transposed kernels, by geometry and tuning; with packed weights.

    Of three dimensions, slices run as maps with more channels; others are products of unrolled windows.
    """

    def check(self, spec: ConvSpec) -> Refusal | None:
        if refused := check_f32(spec.node):
            return refused
        return check_unrolled(spec) if _is_unrolled(spec) else first_refusal(_check_shapes(spec), _check_steps(spec))

    def layouts(self, spec: ConvSpec) -> Sequence[LayoutOption]:
        """Blocked maps; an input of few channels is read PLAIN."""
        node = spec.node
        if _is_unrolled(spec):
            return super().layouts(spec)
        channels = static_shape(node.input_value(_X))[1]
        outputs = static_shape(node.output(0))[1]
        if not has_bf16_kernel(spec.group, channels, outputs, transposed=spec.transposed):
            return (_option(node, Layout.BLOCKED),)
        is_planar = spec.group == 1 and channels < PLANAR_CHANNELS and not spec.transposed
        sources = (Layout.PLAIN, Layout.BLOCKED) if is_planar else (Layout.BLOCKED,)
        options = [_option(node, source, precision="f32") for source in sources]
        for source in (Layout.PLAIN, Layout.BLOCKED_BF16) if is_planar else (Layout.BLOCKED_BF16,):
            options.append(_option(node, source, Layout.BLOCKED_BF16, "bf16"))
            if spec.group != channels or spec.group == 1:  # a depthwise convolution writes the layout that it reads
                options.append(_option(node, source, Layout.BLOCKED, "bf16"))
        if runs := runs_option(spec):
            options.append(runs)
        return options

    def lower(self, spec: ConvSpec, b: SegmentBuilder) -> None:
        """One step; more if the weights are computed at run time, or windows are unrolled."""
        if _is_unrolled(spec):
            if is_sliced(spec, b):
                lower_sliced(spec, b)
            elif is_sliced_transposed(spec, b):
                lower_sliced_transposed(spec, b)
            else:
                lower_unrolled(spec, b)
            return
        node = spec.node
        option, out = b.option(node), node.output(0)
        layout, out_layout = option.inputs[_X], option.outputs[0]
        if out_layout is Layout.PLAIN:
            lower_runs(spec, b)
            return
        geometry = conv_geometry(spec, b.shape(node.input_value(_X)), b.shape(node.input_value(_W)))
        bias, residual = spec.input(_BIAS), spec.input(_RESIDUAL)
        problem = ConvProblem(
            geometry,
            activation_attributes(spec.activation),
            bias is not None,
            residual is not None,
            layout,
            b.isa,
            b.threads,
            out_layout,
            option.precision == "bf16",
            b.is_constant(node.input_value(_W)),
            b.is_direct,
            b.l2_bytes,
            b.is_repeatable,
        )
        x = b.input(node.input_value(_X), layout)
        more = [] if bias is None else [padded_bias(node, bias, b)]
        if residual is not None:
            more.append(b.input(residual, out_layout))
        candidate = b.choose(node, problem.key(), ConvCandidates(problem), estimated_seconds(problem))
        y = b.output(out, out_layout, in_place_of=residual)
        inputs = [x, packed_weights(node, node.input_value(_W), geometry, candidate, b), *more]
        b.step(node, candidate.kernel, inputs, [y], **candidate.attributes)

    def lower_item(self, item: Item, b: SegmentBuilder) -> None:
        """One step for a chain of convolutions."""
        if len(item.specs) > 1:
            lower_chain(item, b)
        else:
            self.lower(cast(ConvSpec, item.spec), b)


def _is_unrolled(spec: ConvSpec) -> bool:
    return len(spec.node.input_value(_X).shape) > 4 and not has_two_axes(spec)


def _check_shapes(spec: ConvSpec) -> Refusal | None:
    """A refusal unless there are one or two axes and at least one channel."""
    x, weights = spec.node.input_value(_X), spec.weights.shape
    if (refused := check_spatial_rank(x)) and not has_two_axes(spec):
        return refused
    if any(dim.is_static and dim.min == 0 for dim in (*weights, x.shape[1])):
        return Refusal(RefusalCause.SHAPE, f"zero channels or an empty kernel: X is {x.type}, W is {weights}")
    return None


def _check_steps(spec: ConvSpec) -> Refusal | None:
    """A refusal if kernels do not support the strides or dilations."""
    return check_steps(spec, MAX_TRANSPOSED_STRIDE if spec.transposed else MAX_STEP)


def _option(node: Node, source: Layout, out: Layout = Layout.BLOCKED, precision: str = "") -> LayoutOption:
    inputs = (source, Layout.PLAIN, Layout.PLAIN, out)
    return LayoutOption(inputs[: node.num_inputs], (out,), precision=precision)
