"""The weights and biases of convolutions, in the formats of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.ir import Node, Output
from engine.native import Packing
from engine_cpu.layout import padded_channels
from engine_cpu.lowering.conv_candidates import TILE_PLAIN_CHANNELS, packed_bytes, packing
from engine_cpu.lowering.conv_geometry import ConvGeometry
from engine_cpu.segment import SegmentBuilder
from engine_cpu.tuning import Candidate

Array = np.ndarray[Any, np.dtype[Any]]


def packed_weights(node: Node, source: Output, geometry: ConvGeometry, candidate: Candidate, b: SegmentBuilder) -> int:
    """The buffer of weights as a candidate reads them; they are packed at run time if they are not constant."""
    kernel, attributes, recipe = packing(geometry, candidate)
    if not b.is_constant(source):
        packed = b.temporary(packed_bytes(geometry, candidate.kernel, candidate.attributes))
        b.step(node, kernel, [b.input(source)], [packed], **attributes)
        return packed

    def make() -> Packing:
        array = _array(source, b)
        return Packing(kernel, [_channels_last(array) if attributes.get("plain") else array], attributes, isa=b.isa)

    return b.weights([source], recipe, make)


def packed_part(
    source: Output, name: str, part: Callable[[Array], Array], geometry: ConvGeometry, candidate: Candidate,
    b: SegmentBuilder,
) -> int:  # fmt: skip
    """The buffer of `part` of constant weights, packed for a candidate; `name` identifies the function."""
    kernel, attributes, recipe = packing(geometry, candidate)

    def make() -> Packing:
        return Packing(kernel, [np.ascontiguousarray(part(_array(source, b)))], attributes, isa=b.isa)

    return b.weights([source], f"{name}|{recipe}", make)


def padded_bias(node: Node, bias: Output, b: SegmentBuilder) -> int:
    """The buffer of a bias padded to whole blocks of channels."""
    channels = b.shape(bias)[0]
    if b.is_constant(bias):
        return b.weights([bias], "blocks", lambda: np.pad(_array(bias, b), (0, -channels % 16)))
    padded = b.temporary(4 * padded_channels(channels))
    b.step(node, "to_blocked_f32", [b.input(bias)], [padded], batch=1, channels=channels, pixels=1)
    return padded


def _channels_last(weights: Array) -> Array:
    """Weights [out, in, ...] as [out, ..., 4]: each pixel has four values, which are zero where there is no channel."""
    moved = np.moveaxis(weights, 1, -1)
    padding = [(0, 0)] * (moved.ndim - 1) + [(0, TILE_PLAIN_CHANNELS - moved.shape[-1])]
    return np.ascontiguousarray(np.pad(moved, padding))


def _array(value: Output, b: SegmentBuilder) -> Array:
    return np.ascontiguousarray(b.value(value), np.float32)
