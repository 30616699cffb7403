"""Transposed convolutions of three axes as ones of two: the slices that a slice of the result needs are channels.

Along axis 0, slice o of the result uses tap k if o + pad - k is a multiple of the stride. So slices with the same
residue have the same taps, of neighbouring slices of the input, whose maps of blocks are adjacent (see conv_slices.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from engine.ops.conv import ConvSpec
from engine.ops.windows import WindowGeometry
from engine.startup import dataclass
from engine_cpu.layout import Layout
from engine_cpu.lowering.checks import MAX_TRANSPOSED_STRIDE
from engine_cpu.lowering.conv_candidates import ConvCandidates, ConvProblem, estimated_seconds
from engine_cpu.lowering.conv_geometry import ConvGeometry
from engine_cpu.lowering.conv_operands import Array, packed_part, padded_bias
from engine_cpu.lowering.conv_slices import CHUNK_BYTES, MAX_STEPS, Maps, copied_in, copied_out
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.segment import SegmentBuilder
from engine_cpu.tuning import Candidate

_MIN_CHANNELS: Final = 8
"""Fewer channels leave more than half of a block empty."""
_X, _W, _BIAS = range(3)


def is_sliced_transposed(spec: ConvSpec, b: SegmentBuilder) -> bool:
    """Whether a transposed convolution runs by slices."""
    x, w = (b.shape(spec.node.input_value(index)) for index in (_X, _W))
    if len(x) != 5 or not spec.transposed or spec.group > 1 or not b.is_constant(spec.node.input_value(_W)):
        return False
    g = spec.at(x, w)
    has_all_residues = g.kernel[0] >= g.strides[0] and g.dilations[0] == 1 and max(g.strides) <= MAX_TRANSPOSED_STRIDE
    is_small = 0 < x[0] * g.outputs[0] <= MAX_STEPS and math.prod(g.outputs) * math.prod(g.inputs) > 0
    return has_all_residues and is_small and min(w[:2]) >= _MIN_CHANNELS


def lower_sliced_transposed(spec: ConvSpec, b: SegmentBuilder) -> None:
    """Add the steps of a convolution that `is_sliced_transposed`."""
    node = spec.node
    shape, w = b.shape(node.input_value(_X)), b.shape(node.input_value(_W))
    g = spec.at(shape, w)
    x_maps = Maps(shape[1], shape[2], math.prod(shape[3:]))
    y_maps = Maps(w[1], g.outputs[0], math.prod(g.outputs[1:]))
    x, y = b.input(node.input_value(_X)), b.output(node.output(0))
    parts = [_Part(g, residue) for residue in range(g.strides[0])]
    made = [_operands(spec, b, part, x_maps, w[1]) for part in parts]
    # Slices of the result share what is copied for them.
    slices = max(1, CHUNK_BYTES // (y_maps.nbytes + x_maps.nbytes))
    for image in range(shape[0]):
        for start in range(0, g.outputs[0], slices):
            outputs = range(start, min(start + slices, g.outputs[0]))
            spans = [parts[output % len(parts)].inputs(output) for output in outputs]
            first, last = min(span.start for span in spans), max(span.stop for span in spans)
            source = copied_in(node, b, x, x_maps, image, first, last - first)
            result = b.temporary(len(outputs) * y_maps.nbytes)
            for index, (output, span) in enumerate(zip(outputs, spans, strict=True)):
                candidate, operands = made[output % len(parts)]
                read = b.part(source, (span.start - first) * x_maps.nbytes, len(span) * x_maps.nbytes)
                target = b.part(result, index * y_maps.nbytes, y_maps.nbytes)
                b.step(node, candidate.kernel, [read, *operands], [target], **candidate.attributes)
            copied_out(node, b, result, y, y_maps, image, outputs)


@dataclass(frozen=True, slots=True)
class _Part:
    """The slices of the result with one residue modulo the stride."""

    geometry: WindowGeometry
    residue: int

    @property
    def taps(self) -> range:
        """The taps of these slices, in the order of the slices of the input: the last one first."""
        g = self.geometry
        taps = range((self.residue + g.pads_begin[0]) % g.strides[0], g.kernel[0], g.strides[0])
        return taps[::-1]

    def inputs(self, output: int) -> range:
        """The slices of the input that a slice depends on; some may be outside."""
        g, taps = self.geometry, self.taps
        first = (output + g.pads_begin[0] - taps[0]) // g.strides[0]
        return range(first, first + len(taps))


def _operands(spec: ConvSpec, b: SegmentBuilder, part: _Part, maps: Maps, outputs: int) -> tuple[Candidate, list[int]]:
    """The kernel of a part's slices, and its weights and bias."""
    node, bias, g = spec.node, spec.input(_BIAS), part.geometry
    (in_height, in_width), (out_height, out_width), (top, left) = g.inputs[1:], g.outputs[1:], g.pads_begin[1:]
    geometry = ConvGeometry(
        batch=1,
        groups=1,
        in_channels=len(part.taps) * maps.blocks * maps.lanes,
        out_channels=outputs,
        in_size=(in_height, in_width),
        out_size=(out_height, out_width),
        kernel=(g.kernel[1], g.kernel[2]),
        strides=(g.strides[1], g.strides[2]),
        dilations=(g.dilations[1], g.dilations[2]),
        pads=(top, left, 0, 0),
        transposed=True,
    )
    problem = ConvProblem(
        geometry,
        activation_attributes(spec.activation),
        bias is not None,
        False,
        Layout.BLOCKED,
        b.isa,
        b.threads,
        is_direct=b.is_direct,
        l2_bytes=b.l2_bytes,
        is_repeatable=b.is_repeatable,
    )
    candidate = b.choose(node, problem.key(), ConvCandidates(problem), estimated_seconds(problem))
    weights = partial(_stacked, part.taps, maps.lanes)
    name = f"transposed slices {part.taps[0]}.{len(part.taps)}.{g.strides[0]} of {maps.lanes}"
    operands = [packed_part(node.input_value(_W), name, weights, geometry, candidate, b)]
    return candidate, operands + ([] if bias is None else [padded_bias(node, bias, b)])


def _stacked(taps: Sequence[int], lanes: int, weights: Array) -> Array:
    """Weights [in, out, depth, ...] as [taps * in, out, ...], with the zeros of channels that fill a block."""
    chosen = np.moveaxis(weights[:, :, list(taps)], 2, 0)
    padding = [(0, 0)] * chosen.ndim
    padding[1] = (0, -chosen.shape[1] % lanes)
    return np.pad(chosen, padding).reshape(-1, *chosen.shape[2:])
