"""Three-axis convolutions as two-axis convolutions: the slices that a window spans along axis 0 become channels.

In maps of blocks with the first axis before the axis of blocks, [depth, blocks, height, width, 16], neighbouring slices
are adjacent. A slice of the result therefore depends on one map of kernel depth times as many channels, and the kernels
for two axes compute it, including Winograd's algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from engine.ir import Node
from engine.ops.conv import ConvSpec
from engine.ops.windows import WindowGeometry
from engine.startup import dataclass
from engine_cpu.layout import BLOCK, Layout
from engine_cpu.lowering.conv_candidates import ConvCandidates, ConvProblem, estimated_seconds
from engine_cpu.lowering.conv_geometry import ConvGeometry
from engine_cpu.lowering.conv_operands import Array, packed_part, padded_bias
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.strided import Copy, Strided, copy_step
from engine_cpu.segment import SegmentBuilder

CHUNK_BYTES: Final = 16 << 20
"""The bytes of the maps of blocks that exist at a time."""
MAX_STEPS: Final = 512
"""The most steps of a node: one for each slice of the result, or if depthwise, each position of its window."""
_DEEPEST: Final = 8
"""The deepest window.

If one slice fills a chunk, this many slices of the input are copied for each slice of the result.
"""
_PLANAR_CHANNELS: Final = 10
"""Slices of at most this many channels are not put into blocks, which would be mostly empty."""
_X, _W, _BIAS, _RESIDUAL = range(4)


def is_sliced(spec: ConvSpec, b: SegmentBuilder) -> bool:
    """Whether a convolution runs by slices."""
    x, w = (b.shape(spec.node.input_value(index)) for index in (_X, _W))
    if len(x) != 5 or spec.transposed or not b.is_constant(spec.node.input_value(_W)):
        return False
    if spec.group > 1 and not spec.group == x[1] == w[0]:
        return False
    geometry = spec.at(x, w)
    steps = x[0] * geometry.outputs[0] * (geometry.kernel[0] if spec.group > 1 else 1)
    is_small = geometry.kernel[0] <= _DEEPEST and steps <= MAX_STEPS
    return is_small and geometry.dilations[0] == 1 and x[0] > 0 and math.prod(geometry.outputs) > 0


@dataclass(frozen=True, slots=True)
class Maps:
    """Slices of an operand of [N, channels, depth, pixels], and their places in maps of blocks.

    Both are arrays [blocks, lanes, slices, pixels]; a block has `lanes` channels.
    """

    channels: int
    depth: int
    pixels: int
    lanes: int = BLOCK

    @property
    def blocks(self) -> int:
        """How many blocks of channels a slice has."""
        return -(-self.channels // self.lanes)

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks of a slice."""
        return 4 * self.blocks * self.pixels * self.lanes

    def pairs(self, image: int, first: int, count: int, at: int = 0) -> Iterator[tuple[Strided, Strided]]:
        """Slices of an image and their places, from slice `at` on: of whole blocks, and of other channels."""
        whole, rest = divmod(self.channels, self.lanes)
        for block, blocks, lanes in ((0, whole, self.lanes), (whole, 1, rest)):
            if blocks * lanes * count:
                shape = blocks, lanes, count, self.pixels
                channel = self.depth * self.pixels
                offset = (image * self.channels + self.lanes * block) * channel + first * self.pixels
                elements = Strided(shape, (self.lanes * channel, channel, self.pixels, 1), offset)
                yield elements, self._places(shape, at, block)

    def unused(self, copied: range, count: int) -> Iterator[Strided]:
        """The places, among `count` slices, of slices that are not copied, and of lanes without a channel."""
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
    node, residual = spec.node, spec.input(_RESIDUAL)
    shape, w = b.shape(node.input_value(_X)), b.shape(node.input_value(_W))
    window = spec.at(shape, w)
    lanes = 1 if spec.group == 1 and shape[1] <= _PLANAR_CHANNELS else BLOCK
    x_maps = Maps(shape[1], shape[2], math.prod(shape[3:]), lanes)
    y_maps = Maps(w[0], window.outputs[0], math.prod(window.outputs[1:]))
    x, y = b.input(node.input_value(_X)), b.output(node.output(0))
    added = None if residual is None else b.input(residual)
    compute = (_of_all_channels if spec.group == 1 else _of_each_channel)(spec, b, window, x_maps, y_maps)
    for image in range(shape[0]):
        for outputs in _chunks(window, x_maps.nbytes, y_maps.nbytes):
            first = outputs.start * window.strides[0] - window.pads_begin[0]
            count = (len(outputs) - 1) * window.strides[0] + window.kernel[0]
            source = copied_in(node, b, x, x_maps, image, first, count)
            result = b.temporary(len(outputs) * y_maps.nbytes)
            residuals = None
            if added is not None:
                residuals = b.temporary(len(outputs) * y_maps.nbytes)
                places = y_maps.pairs(image, outputs.start, len(outputs))
                copy_step(b, node, 4, [Copy(added, elements, residuals, place) for elements, place in places])
            compute(source, residuals, result, len(outputs))
            copied_out(node, b, result, y, y_maps, image, outputs)


_Compute: TypeAlias = Callable[[int, int | None, int, int], None]
"""Adds the steps from the slices of the input, and the added ones, to this many slices of the result."""


def _of_all_channels(spec: ConvSpec, b: SegmentBuilder, window: WindowGeometry, x_maps: Maps, y_maps: Maps) -> _Compute:
    """A step for each slice of the result, whose window is a map with more channels."""
    node, bias, epilogue = spec.node, spec.input(_BIAS), activation_attributes(spec.activation)
    geometry = _of_slices(window, 1, 1, window.kernel[0] * x_maps.blocks * x_maps.lanes, y_maps.channels)
    operands = bias is not None, spec.input(_RESIDUAL) is not None
    layout = Layout.PLAIN if x_maps.lanes == 1 else Layout.BLOCKED
    problem = ConvProblem(
        geometry,
        epilogue,
        *operands,
        layout,
        b.isa,
        b.threads,
        is_direct=b.is_direct,
        l2_bytes=b.l2_bytes,
        is_repeatable=b.is_repeatable,
    )
    candidate = b.choose(node, problem.key(), ConvCandidates(problem), estimated_seconds(problem))
    part = partial(_stacked, x_maps.lanes)
    shared = [packed_part(node.input_value(_W), f"slices of {x_maps.lanes}", part, geometry, candidate, b)]
    shared += [] if bias is None else [padded_bias(node, bias, b)]
    stride = window.strides[0] * x_maps.nbytes

    def compute(source: int, residuals: int | None, result: int, count: int) -> None:
        for index in range(count):
            span = b.part(source, index * stride, window.kernel[0] * x_maps.nbytes)
            place = index * y_maps.nbytes, y_maps.nbytes
            more = [] if residuals is None else [b.part(residuals, *place)]
            b.step(node, candidate.kernel, [span, *shared, *more], [b.part(result, *place)], **candidate.attributes)

    return compute


def _of_each_channel(spec: ConvSpec, b: SegmentBuilder, window: WindowGeometry, x_maps: Maps, y_maps: Maps) -> _Compute:
    """A step for each position of the window along the first axis, which adds to the result of the one before."""
    node, bias, channels, stride = spec.node, spec.input(_BIAS), y_maps.channels, window.strides[0]
    biases = [] if bias is None else [padded_bias(node, bias, b)]

    def compute(source: int, residuals: int | None, result: int, count: int) -> None:
        batch = count if stride == 1 else 1  # one step's slices are adjacent
        geometry = _of_slices(window, batch, channels, channels, channels)
        for position in range(window.kernel[0]):
            is_first, is_last = position == 0, position == window.kernel[0] - 1
            before = residuals if is_first else result
            epilogue = activation_attributes(spec.activation if is_last else None)
            operands = bool(biases) and is_first, before is not None
            problem = ConvProblem(
                geometry, epilogue, *operands, Layout.BLOCKED, b.isa, b.threads, is_repeatable=b.is_repeatable
            )
            candidate = ConvCandidates(problem)[0]
            part = partial(_at, position)
            shared = [packed_part(node.input_value(_W), f"slice {position}", part, geometry, candidate, b)]
            shared += biases if is_first else []
            for first in range(0, count, batch):
                taken = b.part(source, (first * stride + position) * x_maps.nbytes, batch * x_maps.nbytes)
                place = first * y_maps.nbytes, batch * y_maps.nbytes
                target = b.part(result, *place)
                more = [] if before is None else [target if before == result else b.part(before, *place)]
                b.step(node, candidate.kernel, [taken, *shared, *more], [target], **candidate.attributes)

    return compute


def _stacked(lanes: int, weights: Array) -> Array:
    """Weights [out, in, depth, ...] as [out, depth * in, ...], with the zeros of channels that fill a block."""
    slices = np.swapaxes(weights, 1, 2)
    padding = [(0, 0)] * slices.ndim
    padding[2] = (0, -slices.shape[2] % lanes)
    return np.pad(slices, padding).reshape(len(slices), -1, *slices.shape[3:])


def _at(position: int, weights: Array) -> Array:
    """Weights [out, in, depth, ...] at a position along the first axis."""
    return weights[:, :, position]


def copied_in(node: Node, b: SegmentBuilder, x: int, maps: Maps, image: int, first: int, count: int) -> int:
    """The buffer of `count` slices from `first` on, in blocks; slices of padding are zero."""
    copied = range(min(max(-first, 0), count), min(max(maps.depth - first, 0), count))
    buffer, zero = b.temporary(count * maps.nbytes), b.constant(np.zeros(1, np.float32))
    pairs = maps.pairs(image, first + copied.start, len(copied), copied.start)
    copies = [Copy(x, elements, buffer, places) for elements, places in pairs]
    for places in maps.unused(copied, count):
        copies.append(Copy(zero, Strided(places.shape, (0,) * len(places.shape)), buffer, places))
    copy_step(b, node, 4, copies)
    return buffer


def copied_out(node: Node, b: SegmentBuilder, result: int, y: int, maps: Maps, image: int, outputs: range) -> None:
    """Copy slices in blocks to their places in the result."""
    pairs = maps.pairs(image, outputs.start, len(outputs))
    copy_step(b, node, 4, [Copy(result, place, y, elements) for elements, place in pairs])


def _chunks(window: WindowGeometry, x_bytes: int, y_bytes: int) -> Iterator[range]:
    """The slices of a result in parts whose maps, of so many bytes a slice, fit a cache."""
    count, stride = window.outputs[0], window.strides[0]
    more = max(0, window.kernel[0] - stride) * x_bytes  # slices that two parts read
    size = max(1, (CHUNK_BYTES - more) // (stride * x_bytes + y_bytes))
    size = -(-count // -(-count // size))
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


def _of_slices(g: WindowGeometry, batch: int, groups: int, channels: int, outputs: int) -> ConvGeometry:
    """The geometry of slices."""
    (in_height, in_width), (out_height, out_width) = g.inputs[1:], g.outputs[1:]
    (top, left), (bottom, right) = g.pads_begin[1:], g.pads_end[1:]
    return ConvGeometry(
        batch=batch,
        groups=groups,
        in_channels=channels,
        out_channels=outputs,
        in_size=(in_height, in_width),
        out_size=(out_height, out_width),
        kernel=(g.kernel[1], g.kernel[2]),
        strides=(g.strides[1], g.strides[2]),
        dilations=(g.dilations[1], g.dilations[2]),
        pads=(top, left, bottom, right),
    )
