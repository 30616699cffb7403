"""Parts of a convolution: windows over the input; a transposed one has a part for each phase of its strides."""

from __future__ import annotations

import itertools
import math

from engine.ops.windows import WindowGeometry
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A convolution that computes the results at `first`, `first + step` ... along each axis.

    Attributes:
        outputs: the number of results along each axis.
        strides: the strides in the input.
        reach: for each axis, the index and the offset in the input of each tap that contributes to these results.
    """

    first: tuple[int, ...]
    step: tuple[int, ...]
    outputs: tuple[int, ...]
    strides: tuple[int, ...]
    reach: tuple[tuple[tuple[int, int], ...], ...]


def only_part(g: WindowGeometry) -> OutputPart:
    """The single part of a convolution that is not transposed."""
    reach = tuple(
        tuple((k, k * dilation - before) for k in range(kernel))
        for kernel, dilation, before in zip(g.kernel, g.dilations, g.pads_begin, strict=True)
    )
    return OutputPart((0,) * 3, (1,) * 3, g.outputs, g.strides, reach)


def transposed_parts(g: WindowGeometry) -> list[OutputPart]:
    """One part per phase of the strides: a result at `first + step * j` reads the input at `j + distance`."""
    parts = []
    for first in itertools.product(*(range(stride) for stride in g.strides)):
        reach, outputs = [], []
        for axis, f in enumerate(first):
            stride, dilation, before = g.strides[axis], g.dilations[axis], g.pads_begin[axis]
            places = [(k, f + before - k * dilation) for k in range(g.kernel[axis])]
            reach.append(tuple((k, place // stride) for k, place in places if place % stride == 0))
            outputs.append(max(-(-(g.outputs[axis] - f) // stride), 0))
        parts.append(OutputPart(first, g.strides, tuple(outputs), (1,) * 3, tuple(reach)))
    return parts


def is_pointwise(g: WindowGeometry) -> bool:
    """Whether every output element reads one input position, its own."""
    return math.prod(g.kernel) == 1 and g.inputs == g.outputs and not any(g.pads_begin)


def window_defines(g: WindowGeometry, axes: str = "DHW") -> dict[str, object]:
    """Definitions of a window along the last spatial axes, each with a letter, for kernels."""
    found: dict[str, object] = {}
    for axis, name in enumerate(axes, len(g.inputs) - len(axes)):
        found |= {
            f"I{name}": g.inputs[axis], f"O{name}": g.outputs[axis], f"K{name}": g.kernel[axis],
            f"S{name}": g.strides[axis], f"L{name}": g.dilations[axis], f"P{name}": g.pads_begin[axis],
        }  # fmt: skip
    return found
