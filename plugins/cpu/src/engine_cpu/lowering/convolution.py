"""Conv, ConvTranspose and FusedConv, of one and two dimensions, on maps in blocks of 16 channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.ir import Node, Output
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.native import pack
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import Layout, LayoutOption, padded_channels, static_shape
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.conv_candidates import (
    PLANAR_CHANNELS,
    ConvProblem,
    conv_candidates,
    has_bf16_kernel,
    packed_bytes,
    packing,
)
from engine_cpu.lowering.conv_geometry import ConvGeometry, conv_geometry, is_transposed
from engine_cpu.lowering.epilogue import activation_attributes, check_activation
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.tuning import Candidate

if TYPE_CHECKING:
    from engine_cpu.segment import SegmentBuilder

_LARGEST_STEP: Final = 4096
_LARGEST_TRANSPOSED_STRIDE: Final = 64
_X, _W, _BIAS, _RESIDUAL = range(4)


@lowers("Conv", "ConvTranspose")
@lowers("FusedConv", domain=INTERNAL_DOMAIN)
class ConvolutionLowering(OpLowering[OperatorSpec]):
    """Direct, Winograd, depthwise, grouped or transposed kernels, by geometry and choice; weights packed for them."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `OpLowering`."""
        node = spec.node
        return first_refusal(check_f32(node), _check_rank(node), _check_steps(node), check_activation(node))

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        """Maps in blocks; an input of few channels is better read as it is."""
        node = spec.node
        groups = node.attributes.get("group", 1)
        channels = static_shape(node.input_value(_X))[1]
        if not has_bf16_kernel(groups, channels, static_shape(node.output(0))[1], transposed=is_transposed(node)):
            return (_option(node, Layout.BLOCKED),)
        is_planar = groups == 1 and channels < PLANAR_CHANNELS and not is_transposed(node)
        sources = (Layout.PLAIN, Layout.BLOCKED) if is_planar else (Layout.BLOCKED,)
        options = [_option(node, source, precision="f32") for source in sources]
        for source in (Layout.PLAIN, Layout.BLOCKED_BF16) if is_planar else (Layout.BLOCKED_BF16,):
            options.append(_option(node, source, Layout.BLOCKED_BF16, "bf16"))
            if groups != channels or groups == 1:  # a depthwise convolution writes what it reads
                options.append(_option(node, source, Layout.BLOCKED, "bf16"))
        return options

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """One step; more where the weights are computed at run time."""
        node = spec.node
        option, out = b.option(node), node.output(0)
        layout, out_layout = option.inputs[_X], option.outputs[0]
        geometry = conv_geometry(node, b.shape(node.input_value(_X)), b.shape(node.input_value(_W)), b.shape(out))
        bias, residual = _optional(node, _BIAS), _optional(node, _RESIDUAL)
        problem = ConvProblem(
            geometry,
            activation_attributes(node),
            bias is not None,
            residual is not None,
            layout,
            b.isa,
            b.threads,
            out_layout,
            option.precision == "bf16",
        )
        candidate = b.choose(node, problem.key(), conv_candidates(problem))
        inputs = [b.input(node.input_value(_X), layout), _weights(node, geometry, candidate, b)]
        if bias is not None:
            inputs.append(_padded_bias(node, bias, b))
        if residual is not None:
            inputs.append(b.input(residual, out_layout))
        b.step(
            node,
            candidate.kernel,
            inputs,
            [b.output(out, out_layout, in_place_of=residual)],
            **candidate.attributes,
        )


def _check_rank(node: Node) -> Refusal | None:
    """One or two dimensions, and channels to convolve."""
    rank = len(node.input_value(_X).shape)
    if rank not in (3, 4):
        return Refusal(RefusalCause.SHAPE, f"X has {rank - 2} spatial dimensions; expected 1 or 2")
    weights = node.input_value(_W).shape
    if any(dim.is_static and dim.min == 0 for dim in (*weights, node.input_value(_X).shape[1])):
        return Refusal(
            RefusalCause.SHAPE, f"no channels, or an empty kernel: X is {node.input_value(_X).type}, W {weights}"
        )
    return None


def _check_steps(node: Node) -> Refusal | None:
    """Strides and dilations that the kernels take."""
    for name, most in (
        ("strides", _LARGEST_TRANSPOSED_STRIDE if is_transposed(node) else _LARGEST_STEP),
        ("dilations", _LARGEST_STEP),
    ):
        values = node.attributes.get(name) or ()
        if max(values, default=1) > most:
            return Refusal(RefusalCause.ATTRIBUTE, f"{name} is {list(values)}; expected {most} at most")
    return None


def _option(node: Node, source: Layout, out: Layout = Layout.BLOCKED, precision: str = "") -> LayoutOption:
    inputs = (source, Layout.PLAIN, Layout.PLAIN, out)
    return LayoutOption(inputs[: node.num_inputs], (out,), precision=precision)


def _optional(node: Node, index: int) -> Output | None:
    return node.input_value(index) if node.has_input(index) else None


def _weights(node: Node, geometry: ConvGeometry, candidate: Candidate, b: SegmentBuilder) -> int:
    source = node.input_value(_W)
    kernel, attributes, recipe = packing(geometry, candidate)
    if not b.is_constant(source):
        packed = b.temporary(packed_bytes(geometry, candidate.kernel, candidate.attributes))
        b.step(node, kernel, [b.input(source)], [packed], **attributes)
        return packed
    return b.weights([source], recipe, lambda: pack(kernel, [_array(source, b)], attributes, isa=b.isa))


def _padded_bias(node: Node, bias: Output, b: SegmentBuilder) -> int:
    """The bias with whole blocks of channels."""
    channels = b.shape(bias)[0]
    if b.is_constant(bias):
        return b.weights([bias], "blocks", lambda: np.pad(_array(bias, b), (0, -channels % 16)))
    padded = b.temporary(4 * padded_channels(channels))
    b.step(node, "to_blocked_f32", [b.input(bias)], [padded], batch=1, channels=channels, pixels=1)
    return padded


def _array(value: Output, b: SegmentBuilder) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ascontiguousarray(b.value(value), np.float32)
