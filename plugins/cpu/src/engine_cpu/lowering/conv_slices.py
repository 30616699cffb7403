"""Convolutions of three axes as such of two: the slices that a window spans along the first axis are channels.

In maps of blocks with the first axis before that of blocks, [depth, blocks, height, width, 16], neighbouring slices are
adjacent. What a slice of the result depends on is therefore one map of kernel depth times as many channels, and the
kernels for two axes compute it, Winograd's algorithm among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.ops.conv import ConvSpec
from engine.ops.windows import WindowGeometry
from engine_cpu.layout import BLOCK, Layout
from engine_cpu.lowering.conv_candidates import ConvCandidates, ConvProblem, estimated_seconds
from engine_cpu.lowering.conv_geometry import ConvGeometry
from engine_cpu.lowering.conv_operands import packed_slices, padded_bias
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.strided import Copy, Strided, copy_step
from engine_cpu.segment import SegmentBuilder

_CHUNK_BYTES: Final = 16 << 20
"""Of the maps of blocks that exist at a time."""
_MOST_SLICES: Final = 512
"""Of the result: each is a step."""
_PLANAR_CHANNELS: Final = 10
"""Slices of at most so many channels are not put into blocks, which would be mostly empty."""
_X, _W, _BIAS, _RESIDUAL = range(4)


def is_sliced(spec: ConvSpec, b: SegmentBuilder) -> bool:
    """Whether a convolution runs by slices."""
    x, w = (b.shape(spec.node.input_value(index)) for index in (_X, _W))
    if len(x) != 5 or spec.transposed or spec.group > 1 or not b.is_constant(spec.node.input_value(_W)):
        return False
    geometry = spec.at(x, w)
    slices = x[0] * geometry.outputs[0]
    return geometry.dilations[0] == 1 and 0 < slices <= _MOST_SLICES and math.prod(geometry.outputs) > 0


@dataclass(frozen=True, slots=True)
class _Maps:
    """Slices of an operand of [N, channels, depth, pixels], and their places in maps of blocks.

    Both are arrays [blocks, lanes, slices, pixels]; a block has `lanes` channels.
    """

    channels: int
    depth: int
    pixels: int
    lanes: int = BLOCK

    @property
    def blocks(self) -> int:
        """Of a slice."""
        return -(-self.channels // self.lanes)

    @property
    def nbytes(self) -> int:
        """Of the blocks of a slice."""
        return 4 * self.blocks * self.pixels * self.lanes

    def pairs(self, image: int, first: int, count: int, at: int = 0) -> Iterator[tuple[Strided, Strided]]:
        """Slices of an image and their places, from that of slice `at` on: of whole blocks, and of other channels."""
        whole, rest = divmod(self.channels, self.lanes)
        for block, blocks, lanes in ((0, whole, self.lanes), (whole, 1, rest)):
            if blocks * lanes * count:
                shape = blocks, lanes, count, self.pixels
                channel = self.depth * self.pixels
                offset = (image * self.channels + self.lanes * block) * channel + first * self.pixels
                elements = Strided(shape, (self.lanes * channel, channel, self.pixels, 1), offset)
                yield elements, self._places(shape, at, block)

    def unused(self, copied: range, count: int) -> Iterator[Strided]:
        """Of `count` slices, the places of those that are not copied, and of lanes that have no channel."""
        for first, stop in ((0, copied.start), (copied.stop, count)):
            if first < stop:
                yield self._places((self.blocks, self.lanes, stop - first, self.pixels), first)
        if (rest := self.channels % self.lanes) and copied:
            yield self._places((1, self.lanes - rest, len(copied), self.pixels), copied.start, self.blocks - 1, rest)

    def _places(self, shape: tuple[int, ...], at: int, block: int = 0, lane: int = 0) -> Strided:
        size = self.pixels * self.lanes
        return Strided(shape, (size, 1, self.blocks * size, self.lanes), (at * self.blocks + block) * size + lane)


def lower_sliced(spec: ConvSpec, b: SegmentBuilder) -> None:
    """Add the steps of a convolution that `is_sliced`."""
    node, bias, residual = spec.node, spec.input(_BIAS), spec.input(_RESIDUAL)
    shape, w = b.shape(node.input_value(_X)), b.shape(node.input_value(_W))
    window = spec.at(shape, w)
    layout = Layout.PLAIN if shape[1] <= _PLANAR_CHANNELS else Layout.BLOCKED
    x_maps = _Maps(shape[1], shape[2], math.prod(shape[3:]), BLOCK if layout.is_blocked else 1)
    geometry = _of_slices(window, x_maps.blocks * x_maps.lanes, w[0])
    operands, epilogue = (bias is not None, residual is not None), activation_attributes(spec.activation)
    problem = ConvProblem(geometry, epilogue, *operands, layout, b.isa, b.threads)
    candidate = b.choose(node, problem.key(), ConvCandidates(problem), estimated_seconds(problem))
    y_maps = _Maps(w[0], window.outputs[0], math.prod(window.outputs[1:]))
    x, y = b.input(node.input_value(_X)), b.output(node.output(0))
    added = None if residual is None else b.input(residual)
    shared = [packed_slices(node.input_value(_W), x_maps.lanes, geometry, candidate, b)]
    shared += [] if bias is None else [padded_bias(node, bias, b)]
    stride = window.strides[0]
    for image in range(shape[0]):
        for outputs in _chunks(window.outputs[0], stride * x_maps.nbytes + y_maps.nbytes):
            source = _copied_in(spec, b, x, x_maps, window, image, outputs)
            result = b.temporary(len(outputs) * y_maps.nbytes)
            places = list(y_maps.pairs(image, outputs.start, len(outputs)))
            if added is not None:
                residuals = b.temporary(len(outputs) * y_maps.nbytes)
                copy_step(b, node, 4, [Copy(added, elements, residuals, place) for elements, place in places])
            for index in range(len(outputs)):
                span = b.part(source, index * stride * x_maps.nbytes, window.kernel[0] * x_maps.nbytes)
                part = index * y_maps.nbytes, y_maps.nbytes
                more = [] if added is None else [b.part(residuals, *part)]
                b.step(node, candidate.kernel, [span, *shared, *more], [b.part(result, *part)], **candidate.attributes)
            copy_step(b, node, 4, [Copy(result, place, y, elements) for elements, place in places])


def _copied_in(
    spec: ConvSpec, b: SegmentBuilder, x: int, maps: _Maps, window: WindowGeometry, image: int, outputs: range
) -> int:
    """The buffer of the slices, in blocks, that some slices of the result depend on; those of padding are zero."""
    first = outputs.start * window.strides[0] - window.pads_begin[0]
    count = (len(outputs) - 1) * window.strides[0] + window.kernel[0]
    copied = range(min(max(-first, 0), count), min(max(maps.depth - first, 0), count))
    buffer, zero = b.temporary(count * maps.nbytes), b.constant(np.zeros(1, np.float32))
    pairs = maps.pairs(image, first + copied.start, len(copied), copied.start)
    copies = [Copy(x, elements, buffer, places) for elements, places in pairs]
    for places in maps.unused(copied, count):
        copies.append(Copy(zero, Strided(places.shape, (0,) * len(places.shape)), buffer, places))
    copy_step(b, spec.node, 4, copies)
    return buffer


def _chunks(count: int, nbytes: int) -> Iterator[range]:
    """The slices of a result in parts, for which maps of so many bytes a slice fit a cache."""
    size = max(1, _CHUNK_BYTES // nbytes)
    size = -(-count // -(-count // size))
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def _of_slices(g: WindowGeometry, channels: int, outputs: int) -> ConvGeometry:
    """The geometry of a slice of the result; `channels` are those of a slice of the input, in blocks."""
    (in_height, in_width), (out_height, out_width) = g.inputs[1:], g.outputs[1:]
    (top, left), (bottom, right) = g.pads_begin[1:], g.pads_end[1:]
    return ConvGeometry(
        batch=1,
        groups=1,
        in_channels=g.kernel[0] * channels,
        out_channels=outputs,
        in_size=(in_height, in_width),
        out_size=(out_height, out_width),
        kernel=(g.kernel[1], g.kernel[2]),
        strides=(g.strides[1], g.strides[2]),
        dilations=(g.dilations[1], g.dilations[2]),
        pads=(top, left, bottom, right),
    )
