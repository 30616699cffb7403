"""Convolutions for CPUs: products of packed weights and of the input as its taps see it, without a copy for each tap.

The input gets its padding once, and is taken apart by the strides. In what results, a tap's elements for neighbouring
results are neighbours, so that the whole plane is one row of columns; those that lie in the padding are not stored.
A transposed convolution is one such convolution for each of its output's phases, with the taps that meet that phase.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ir import ElementType, Node
from engine.ir.element_type import f32
from engine_opencl.lowering.panels import LANES, Columns, Matrices, launch_panels
from engine_opencl.lowering.products import Epilogue
from engine_opencl.plan import Buffer, PlanBuilder
from engine_opencl.source import kernel_source

_NAMES = ("D", "H", "W")


@dataclass(frozen=True, slots=True)
class Geometry:
    """Lengths and steps along the axes of space."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]

    @property
    def is_pointwise(self) -> bool:
        """Whether every output element has one input element, at its own place."""
        return math.prod(self.kernel) == 1 and self.inputs == self.outputs and not any(self.before)

    def padded(self) -> Geometry:
        """The same with three axes."""
        missing = 3 - len(self.inputs)
        ones, zeros = (1,) * missing, (0,) * missing
        return Geometry(
            ones + self.inputs, ones + self.outputs, ones + self.kernel, ones + self.strides, ones + self.dilations,
            zeros + self.before,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """A convolution that gives the results at `first`, `first + step` ... along each axis.

    Attributes:
        outputs: how many along each axis.
        strides: of the input.
        reach: for each axis, for each tap that meets these results, its index and its distance in the input.
    """

    first: tuple[int, ...]
    step: tuple[int, ...]
    outputs: tuple[int, ...]
    strides: tuple[int, ...]
    reach: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Planes:
    """The padded input: `phases` planes of `lengths` a map; `before`: zeros before the input."""

    buffer: Buffer
    phases: tuple[int, ...]
    lengths: tuple[int, ...]
    before: tuple[int, ...]
    strides: tuple[int, ...]
    is_input: bool

    @property
    def size(self) -> int:
        """Elements of a map."""
        return math.prod(self.phases) * math.prod(self.lengths)

    def offset(self, distances: tuple[int, ...]) -> int:
        """Where what lies `distances` from an element's first is found, in elements from that."""
        phase = place = 0
        for axis, distance in enumerate(distances):
            at = distance + self.before[axis]
            phase = phase * self.phases[axis] + at % self.strides[axis]
            place = place * self.lengths[axis] + at // self.strides[axis]
        return phase * math.prod(self.lengths) + place


def panel_convolution(
    b: PlanBuilder, node: Node, g: Geometry, groups: int, epilogue: Epilogue, *, transposed: bool
) -> None:
    """Launch a convolution. The weights of a transposed one must be constant."""
    x, weights = node.input_value(0), b.input(node.input_value(1))
    n, c = b.shape(x)[:2]
    m = b.shape(node.output(0))[1]
    added = [b.input(v) if node.has_input(i) and (v := node.input_value(i)) else None
             for i in range(2, min(node.num_inputs, 4))] + [None, None]  # fmt: skip
    g, result, source = g.padded(), b.output(node.output(0)), b.input(x)
    depthwise, real = m == groups, node.output(0).element_type
    lanes = _lanes(g) if depthwise else LANES
    parts = transposed_parts(g) if transposed else [whole(g)]
    planes = _planes(b, g, parts, source, n * c, lanes, real)
    for part in parts:
        if 0 in part.outputs:
            continue
        taps = tuple(itertools.product(*part.reach))
        chosen = tuple(_number(tuple(index for index, _ in tap), g.kernel) for tap in taps)
        offsets = tuple(planes.offset(tuple(distance for _, distance in tap)) for tap in taps)
        size = (c // groups) * len(taps)
        a_weights = _chosen_taps(b, weights, (groups, c // groups, m // groups), chosen, g) if transposed else weights
        a = Matrices(a_weights, m // groups, size, size, 1, (groups,), (m // groups * size if groups > 1 else 0,), real)
        columns = Columns(
            planes.buffer, _columns(part, planes), c // groups if taps else 0, planes.size,
            batches=n * groups, batch=c // groups * planes.size, taps=offsets or (0,), overlap=planes.is_input,
            lanes=lanes, column=_column_code(part, planes, g), real=real if planes.is_input else f32,
        )  # fmt: skip
        launch_panels(
            b, a, columns, result, n * groups, math.prod(g.outputs), epilogue.code(), *added[:2],
            bias_batch=m // groups if groups > 1 else 0, real=real,
        )  # fmt: skip


def _lanes(g: Geometry) -> int:
    """Columns of a work group that has little to do for each: as many as the plane fills."""
    return next(lanes for lanes in (128, 64, 32, LANES) if lanes == LANES or math.prod(g.outputs) >= lanes)


def whole(g: Geometry) -> Part:
    """All of a convolution that is not transposed."""
    reach = tuple(
        tuple((k, k * dilation - before) for k in range(kernel))
        for kernel, dilation, before in zip(g.kernel, g.dilations, g.before, strict=True)
    )
    return Part((0,) * 3, (1,) * 3, g.outputs, g.strides, reach)


def transposed_parts(g: Geometry) -> list[Part]:
    """One for each phase of the strides: a result at `first + step * j` reads the input at `j + distance`."""
    parts = []
    for first in itertools.product(*(range(stride) for stride in g.strides)):
        reach, outputs = [], []
        for axis, f in enumerate(first):
            stride, dilation, before = g.strides[axis], g.dilations[axis], g.before[axis]
            places = [(k, f + before - k * dilation) for k in range(g.kernel[axis])]
            reach.append(tuple((k, place // stride) for k, place in places if place % stride == 0))
            outputs.append(max(-(-(g.outputs[axis] - f) // stride), 0))
        parts.append(Part(first, g.strides, tuple(outputs), (1,) * 3, tuple(reach)))
    return parts


def _planes(
    b: PlanBuilder, g: Geometry, parts: list[Part], x: Buffer, maps: int, lanes: int, real: ElementType
) -> Planes:
    """The input as it is where no tap leaves it, else a padded copy, of f32."""
    strides = parts[0].strides
    before, lengths, phases = [], [], []
    for axis in range(3):
        reaches = [(part, distance) for part in parts for _, distance in part.reach[axis]]
        least = min((distance for _, distance in reaches), default=0)
        before.append(max(-least, 0))
        places = [(part, distance + before[-1]) for part, distance in reaches] or [(parts[0], 0)]
        phases.append(max(place % strides[axis] for _, place in places) + 1)
        lengths.append(max(part.outputs[axis] + place // strides[axis] for part, place in places))
    fits = all(n >= length for n, length in zip(g.inputs, lengths, strict=True))
    if fits and not any(before) and set(strides) == {1}:
        planes = Planes(x, (1,) * 3, g.inputs, (0,) * 3, (1,) * 3, is_input=True)
        if all(_columns(part, planes) >= lanes for part in parts):
            return planes
    planes = Planes(x, tuple(phases), tuple(lengths), tuple(before), strides, is_input=False)
    defines: dict[str, object] = {}
    for axis, name in enumerate(_NAMES):
        defines |= {
            f"I{name}": g.inputs[axis], f"S{name}": strides[axis], f"F{name}": phases[axis],
            f"P{name}": lengths[axis], f"B{name}": before[axis],
        }  # fmt: skip
    # The last tile reads behind the last column.
    target = b.temporary((maps * planes.size + lanes) * 4)
    b.launch(kernel_source("pad", real, **defines), "pad", [x, target], (planes.size, maps))
    return Planes(target, planes.phases, planes.lengths, planes.before, strides, is_input=False)


def _columns(part: Part, planes: Planes) -> int:
    """From the first result's place in a plane to behind the last one's."""
    last = 0
    for length, outputs in zip(planes.lengths, part.outputs, strict=True):
        last = last * length + outputs - 1
    return last + 1


def _column_code(part: Part, planes: Planes, g: Geometry) -> str:
    """Where the column at a place of a plane is stored."""
    (_, ph, pw), (od, oh, ow) = planes.lengths, part.outputs
    if part.step == (1, 1, 1) and (oh == ph or od == 1) and ow == pw and g.outputs == part.outputs:
        return "const int col = place; const int is_stored = place < N;"
    parts = [f"{first} + {step} * {name}" for first, step, name in zip(part.first, part.step, "dhw", strict=True)]
    return (
        f"const int w = place % {pw}, h = place / {pw} % {ph}, d = place / {ph * pw}; "
        f"const int is_stored = place < N && w < {ow} && h < {oh} && d < {od}; "
        f"const int col = (({parts[0]}) * {g.outputs[1]} + {parts[1]}) * {g.outputs[2]} + {parts[2]};"
    )


def _number(index: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    number = 0
    for each, length in zip(index, lengths, strict=True):
        number = number * length + each
    return number


def _chosen_taps(
    b: PlanBuilder, weights: Buffer, shape: tuple[int, int, int], chosen: tuple[int, ...], g: Geometry
) -> Buffer:
    """The weights [groups, C, M, taps] of a transposed convolution as [groups, M, C, chosen taps]."""
    make = b.weights[weights.weight]
    groups, channels, outputs = shape

    def arranged() -> NDArray[Any]:
        data = make().reshape(groups, channels, outputs, math.prod(g.kernel))
        return np.ascontiguousarray(data[..., list(chosen)].transpose(0, 2, 1, 3))

    return b.weight(("taps", weights.weight, shape, chosen), arranged)
