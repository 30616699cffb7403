"""The geometry of convolutions: windows over the input, also those of the phases of a transposed one."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass


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
