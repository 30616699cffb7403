"""`TransposedConvDecomposition`: transposed convolutions to few channels, without overlaps, as products of pixels."""

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
    """Turns a ConvTranspose whose window is its stride into a 1x1 FusedConv to all positions, and a DepthToSpace.

    The kernel of a ConvTranspose has blocks of 16 channels for each position of the window; those of the 1x1
    convolution are of all positions together, which are several times fewer for a result of few channels, as the last
    layers of segmentation and text detection have.
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
        if not _is_disjoint(spec, weights) or not _is_cheaper(weights):
            return False
        return replace_by(node, [node], _decomposed(node, spec, weights, factors))


def _is_disjoint(spec: ConvSpec, weights: Array) -> bool:
    """Whether each pixel becomes a square of the result, which no other pixel reaches."""
    if weights.ndim != 4 or 0 in weights.shape or spec.group != 1 or spec.output_shape is not None:
        return False
    window = spec.window(weights.shape[2:])
    side = window.kernel[0]
    return (
        side > 1
        and tuple(window.kernel) == tuple(window.strides) == (side, side)
        and set(window.dilations) == {1}
        and window.pads is not None
        and all(tuple(each) == (0, 0) for each in window.pads)
        and not any(spec.output_padding)
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
