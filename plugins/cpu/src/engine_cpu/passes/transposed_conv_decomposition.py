"""`TransposedConvDecomposition`: transposed convolutions as ordinary ones, alone or with a DepthToSpace."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine import ops
from engine.ir import Constant, Node, f32
from engine.ops.conv import ConvSpec
from engine.ops.internal import INTERNAL_DOMAIN, FusedConv
from engine.passes import MatcherPass
from engine.passes.fusion import constant_data, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine_cpu.layout import padded_channels

Array = np.ndarray[Any, np.dtype[np.float32]]

_MOVE: Final = 20
"""Multiplications that take as long as to move an element of the result to its place."""


class TransposedConvDecomposition(MatcherPass):
    """Turns a ConvTranspose into a FusedConv, and if its window is its stride, a DepthToSpace.

    With a stride of 1, it is the convolution with the mirrored window, for which there are better kernels: depthwise,
    and Winograd's. If the window is the stride, it is a 1x1 convolution to all positions: the kernel of a ConvTranspose
    has blocks of 16 channels for each position; those of all positions together are several times fewer for a result of
    few channels, as the last layers of segmentation and text detection have.
    """

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type(["ConvTranspose", f"{INTERNAL_DOMAIN}.FusedConv"])
        self.register_matcher(Matcher(root, "TransposedConvDecomposition"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        spec = ConvSpec.of(node)
        if not spec.transposed or self.transformation_callback(node) or node.output(0).element_type is not f32:
            return False
        weights, bias = constant_data(node.input_value(1)), spec.input(2)
        factors = None if bias is None else constant_data(bias)
        if weights is None or spec.input(3) is not None or (bias is not None and factors is None):
            return False
        if weights.ndim < 3 or 0 in weights.shape or spec.output_shape is not None or any(spec.output_padding):
            return False
        pads = _mirrored_pads(spec, weights)
        if pads is not None:
            return replace_by(node, [node], [_mirrored(node, spec, weights, pads)])
        if not _is_disjoint(spec, weights) or not _is_cheaper(weights):
            return False
        return replace_by(node, [node], _decomposed(node, spec, weights, factors))


def _mirrored_pads(spec: ConvSpec, weights: Array) -> list[int] | None:
    """The padding of the convolution that computes a transposed one; None if there is none."""
    window = spec.window(weights.shape[2:])
    if set(window.strides) != {1} or window.pads is None:
        return None
    reaches = [dilation * (side - 1) for side, dilation in zip(window.kernel, window.dilations, strict=True)]
    pads = [reach - pad[end] for end in (0, 1) for reach, pad in zip(reaches, window.pads, strict=True)]
    return None if min(pads) < 0 else pads


def _mirrored(node: Node, spec: ConvSpec, weights: Array, pads: list[int]) -> Node:
    channels, outputs, *kernel = weights.shape
    groups = spec.group
    split = weights.reshape(groups, channels // groups, outputs, *kernel).swapaxes(1, 2)
    mirrored = np.flip(split, axis=tuple(range(3, split.ndim)))
    window = spec.window(tuple(kernel))
    return FusedConv(
        node.input_value(0),
        Constant(np.ascontiguousarray(mirrored).reshape(groups * outputs, channels // groups, *kernel)),
        spec.input(2),
        activation=spec.activation,
        kernel_shape=list(kernel),
        dilations=list(window.dilations),
        pads=pads,
        group=groups,
    )


def _is_disjoint(spec: ConvSpec, weights: Array) -> bool:
    """Whether each pixel becomes a square of the result, which no other pixel reaches."""
    if weights.ndim != 4 or spec.group != 1:
        return False
    window = spec.window(weights.shape[2:])
    side = window.kernel[0]
    return (
        side > 1
        and tuple(window.kernel) == tuple(window.strides) == (side, side)
        and set(window.dilations) == {1}
        and window.pads is not None
        and all(tuple(each) == (0, 0) for each in window.pads)
    )


def _is_cheaper(weights: Array) -> bool:
    channels, outputs, side = (int(length) for length in weights.shape[:3])
    positions = side * side
    spared = positions * padded_channels(outputs) - padded_channels(positions * outputs)
    return spared * channels > _MOVE * positions * outputs


def _decomposed(node: Node, spec: ConvSpec, weights: Array, bias: Array | None) -> list[Node]:
    channels, outputs, side, _ = weights.shape
    # DepthToSpace takes the positions of a channel from adjacent channels.
    rows = np.ascontiguousarray(weights.transpose(1, 2, 3, 0)).reshape(outputs * side * side, channels, 1, 1)
    product = FusedConv(
        node.input_value(0),
        Constant(rows),
        None if bias is None else Constant(np.repeat(bias, side * side)),
        activation=spec.activation,
        kernel_shape=[1, 1],
    )
    return [product, ops.DepthToSpace(product, blocksize=side, mode="CRD")]
