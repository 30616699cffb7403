"""Conv, ConvTranspose and FusedConv, of one and two dimensions, on maps in blocks of 16 channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import Node, Output
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.native import pack
from engine.ops.conv import ConvSpec
from engine.ops.internal import INTERNAL_DOMAIN
from engine_cpu.layout import Layout, LayoutOption, padded_channels, static_shape
from engine_cpu.lowering.checks import MAX_STEP, check_f32, check_spatial_rank, check_steps
from engine_cpu.lowering.conv_candidates import (
    PLANAR_CHANNELS,
    TILE_PLAIN_CHANNELS,
    ConvProblem,
    conv_candidates,
    estimated_seconds,
    has_bf16_kernel,
    packed_bytes,
    packing,
)
from engine_cpu.lowering.conv_geometry import ConvGeometry, conv_geometry
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder
from engine_cpu.tuning import Candidate

_MAX_TRANSPOSED_STRIDE: Final = 64
_X, _W, _BIAS, _RESIDUAL = range(4)


@lowers("Conv", "ConvTranspose", spec=ConvSpec)
@lowers("FusedConv", domain=INTERNAL_DOMAIN, spec=ConvSpec)
class ConvLowering(OpLowering[ConvSpec]):
    """Direct, Winograd, depthwise, grouped or transposed kernels, by geometry and tuning; with packed weights."""

    def check(self, spec: ConvSpec) -> Refusal | None:
        """See `OpLowering`."""
        return first_refusal(check_f32(spec.node), _check_shapes(spec), _check_steps(spec))

    def layouts(self, spec: ConvSpec) -> Sequence[LayoutOption]:
        """Blocked maps; an input of few channels is read PLAIN."""
        node = spec.node
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
        return options

    def lower(self, spec: ConvSpec, b: SegmentBuilder) -> None:
        """One step; more if the weights are computed at run time."""
        node = spec.node
        option, out = b.option(node), node.output(0)
        layout, out_layout = option.inputs[_X], option.outputs[0]
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
        )
        x = b.input(node.input_value(_X), layout)
        more = [] if bias is None else [_padded_bias(node, bias, b)]
        if residual is not None:
            more.append(b.input(residual, out_layout))
        candidate = b.choose(node, problem.key(), conv_candidates(problem), estimated_seconds(problem))
        y = b.output(out, out_layout, in_place_of=residual)
        inputs = [x, _weights(node, geometry, candidate, b), *more]
        b.step(node, candidate.kernel, inputs, [y], **candidate.attributes)


def _check_shapes(spec: ConvSpec) -> Refusal | None:
    """A refusal unless there are one or two spatial dimensions and at least one channel."""
    x, weights = spec.node.input_value(_X), spec.weights.shape
    if refused := check_spatial_rank(x):
        return refused
    if any(dim.is_static and dim.min == 0 for dim in (*weights, x.shape[1])):
        return Refusal(RefusalCause.SHAPE, f"zero channels or an empty kernel: X is {x.type}, W is {weights}")
    return None


def _check_steps(spec: ConvSpec) -> Refusal | None:
    """A refusal if kernels do not support the strides or dilations."""
    return check_steps(spec, _MAX_TRANSPOSED_STRIDE if spec.transposed else MAX_STEP)


def _option(node: Node, source: Layout, out: Layout = Layout.BLOCKED, precision: str = "") -> LayoutOption:
    inputs = (source, Layout.PLAIN, Layout.PLAIN, out)
    return LayoutOption(inputs[: node.num_inputs], (out,), precision=precision)


def _weights(node: Node, geometry: ConvGeometry, candidate: Candidate, b: SegmentBuilder) -> int:
    source = node.input_value(_W)
    kernel, attributes, recipe = packing(geometry, candidate)
    if not b.is_constant(source):
        packed = b.temporary(packed_bytes(geometry, candidate.kernel, candidate.attributes))
        b.step(node, kernel, [b.input(source)], [packed], **attributes)
        return packed

    def make() -> np.ndarray[Any, np.dtype[Any]]:
        array = _array(source, b)
        return pack(kernel, [_channels_last(array) if attributes.get("plain") else array], attributes, isa=b.isa)

    return b.weights([source], recipe, make)


def _channels_last(weights: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Weights [out, in, ...] as [out, ..., 4]: each pixel has four values, of which those of no channel are zero."""
    moved = np.moveaxis(weights, 1, -1)
    padding = [(0, 0)] * (moved.ndim - 1) + [(0, TILE_PLAIN_CHANNELS - moved.shape[-1])]
    return np.ascontiguousarray(np.pad(moved, padding))


def _padded_bias(node: Node, bias: Output, b: SegmentBuilder) -> int:
    """The bias padded to whole blocks of channels."""
    channels = b.shape(bias)[0]
    if b.is_constant(bias):
        return b.weights([bias], "blocks", lambda: np.pad(_array(bias, b), (0, -channels % 16)))
    padded = b.temporary(4 * padded_channels(channels))
    b.step(node, "to_blocked_f32", [b.input(bias)], [padded], batch=1, channels=channels, pixels=1)
    return padded


def _array(value: Output, b: SegmentBuilder) -> np.ndarray[Any, np.dtype[Any]]:
    return np.ascontiguousarray(b.value(value), np.float32)
