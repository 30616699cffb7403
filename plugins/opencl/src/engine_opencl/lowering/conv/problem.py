"""A convolution as parts and taps, and the order in which a product iterates over them.

An ordinary convolution has one part. A transposed one has a part per phase of its strides, with the taps of that phase,
so that kernels need not search for them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.ir import ElementType
from engine.ops.windows import WindowGeometry
from engine.startup import dataclass
from engine_opencl.lowering.conv.parts import OutputPart, only_part, transposed_parts
from engine_opencl.lowering.tables import table
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import ending, kernel_source

_NAMES = ("D", "H", "W")


@dataclass(frozen=True, slots=True)
class Order:
    """The order and step size with which a product iterates over taps and channels.

    Attributes:
        sources: for each row of all phases, its channel times the number of kernel elements, plus its tap; -1 for
            zeros.
        taps: int32 [n, 4]: offset in elements from a column's first, and distances along three axes; per row unless
            `by_channels`.
        phases: int32 [phases, 4]: first step, steps, taps (or rows), first tap.
        by_channels: whether a step covers channels of one tap; otherwise, it covers any rows.
    """

    depth: int
    sources: NDArray[np.int32]
    taps: NDArray[np.int32]
    phases: NDArray[np.int32]
    by_channels: bool

    @property
    def steps(self) -> int:
        """The number of steps of all phases."""
        return len(self.sources) // self.depth


@dataclass(frozen=True, eq=False)
class Convolution:
    """One convolution with its buffers, over three spatial axes.

    Attributes:
        channels, outputs: channels of the input and of the result, per group.
        code: the epilogue.
        element_type: the storage type of all its tensors.
        filters: gives the weights, if they are constant.
    """

    images: int
    groups: int
    channels: int
    outputs: int
    geometry: WindowGeometry
    is_transposed: bool
    element_type: ElementType
    x: Buffer
    weights: Buffer
    bias: Buffer | None
    residual: Buffer | None
    result: Buffer
    code: str
    filters: Callable[[], NDArray[Any]] | None = None

    @functools.cached_property
    def parts(self) -> list[OutputPart]:
        """The parts: one, or one per phase."""
        return transposed_parts(self.geometry) if self.is_transposed else [only_part(self.geometry)]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Results along each axis, in the largest phase."""
        return tuple(max(part.outputs[axis] for part in self.parts) for axis in range(3))

    @property
    def columns(self) -> int:
        """Results of all images in one channel and phase."""
        return self.images * math.prod(self.lengths)

    @property
    def map_size(self) -> int:
        """Elements of a channel of one image."""
        return math.prod(self.geometry.inputs)

    @property
    def depth(self) -> int:
        """The maximum number of products per result."""
        return self.channels * max(math.prod(map(len, part.reach)) for part in self.parts)

    @property
    def added(self) -> list[Buffer]:
        """The summands of the result that are present: the bias, then the residual."""
        return [each for each in (self.bias, self.residual) if each is not None]

    @property
    def taps(self) -> int:
        """The number of positions in the kernel: the product of its lengths."""
        return math.prod(self.geometry.kernel)

    @property
    def weight_steps(self) -> tuple[int, int, int]:
        """Strides of the weights in elements, along groups, result channels and input channels."""
        group = self.channels * self.outputs * self.taps
        if self.is_transposed:
            return group, self.taps, self.outputs * self.taps
        return group, self.channels * self.taps, self.taps

    def order(self, depth: int) -> Order:
        """Steps of `depth` channels of one tap, if that wastes little, otherwise of any rows."""
        by_channels = -(-self.channels // depth) * depth <= 1.125 * self.channels
        sources: list[int] = []
        taps: list[tuple[int, ...]] = []
        phases = []
        for part in self.parts:
            own = self._taps(part)
            rows = self._by_channels(own, depth) if by_channels else self._one_by_one(own, depth)
            table = [place for _, place in own]
            table = table if by_channels else [self._shifted(t, c) for c in range(self.channels) for t in table]
            phases.append((len(sources) // depth, len(rows) // depth, len(table), len(taps)))
            sources += rows
            taps += table
        return Order(
            depth,
            np.array(sources, np.int32),
            np.array(taps, np.int32).reshape(-1, 4),
            np.array(phases, np.int32),
            by_channels,
        )

    def ending(self) -> dict[str, object]:
        """Definitions of the epilogue of all kernels."""
        return ending(self.code, self.bias, self.residual)

    def defines(self, order: Order) -> dict[str, object]:
        """Definitions for kernels that include `window.cl`."""
        g, part = self.geometry, self.parts[0]
        found: dict[str, object] = {
            "C": self.groups * self.channels, "GC": self.channels, "M": self.groups * self.outputs,
            "GM": self.outputs, "MAP": self.map_size, "SIZE": math.prod(g.outputs), "COLUMNS": self.columns,
            "PHASES": len(self.parts), "STEPS": f"{order.steps}ul", **self.ending(),
        }  # fmt: skip
        for axis, name in enumerate(_NAMES):
            found |= {
                f"I{name}": g.inputs[axis], f"O{name}": g.outputs[axis], f"Q{name}": self.lengths[axis],
                f"S{name}": part.strides[axis], f"T{name}": part.step[axis], f"CHECK_{name}": int(self._leaves(axis)),
            }  # fmt: skip
        return found

    def _leaves(self, axis: int) -> bool:
        """Whether any tap of any column lies outside the input."""
        last = (self.lengths[axis] - 1) * self.parts[0].strides[axis]
        distances = [distance for part in self.parts for _, distance in part.reach[axis]]
        return bool(distances) and (min(distances) < 0 or last + max(distances) >= self.geometry.inputs[axis])

    def _taps(self, part: OutputPart) -> list[tuple[int, tuple[int, ...]]]:
        """The index of each tap in the kernel, and its table entry."""
        (_, height, width), (_, kh, kw) = self.geometry.inputs, self.geometry.kernel
        found: list[tuple[int, tuple[int, ...]]] = []
        for (i, d), (j, h), (k, w) in itertools.product(*part.reach):
            found.append(((i * kh + j) * kw + k, ((d * height + h) * width + w, d, h, w)))
        return found

    def _shifted(self, tap: tuple[int, ...], channel: int) -> tuple[int, ...]:
        return (tap[0] + channel * self.map_size, *tap[1:])

    def _by_channels(self, taps: list[tuple[int, tuple[int, ...]]], depth: int) -> list[int]:
        return [
            channel * self.taps + tap if channel < self.channels else -1
            for first in range(0, self.channels, depth)
            for tap, _ in taps
            for channel in range(first, first + depth)
        ]

    def _one_by_one(self, taps: list[tuple[int, tuple[int, ...]]], depth: int) -> list[int]:
        rows = [channel * self.taps + tap for channel in range(self.channels) for tap, _ in taps]
        return rows + [-1] * (-len(rows) % depth)


def arranged_weights(b: LaunchPlanBuilder, c: Convolution, order: Order, width: int) -> Buffer:
    """The weights as [groups][outputs / width][rows][width]; constants are arranged once for all inferences."""
    name, blocks = c.weights.weight, -(-c.outputs // width)
    if name is not None:
        make = b.weights[name]
        key = ("filters", name, width, c.groups, c.is_transposed, order.sources.tobytes())
        return b.weight(key, lambda: _arranged(make(), c, order.sources, width))
    group_step, output_step, channel_step = c.weight_steps
    rows = np.where(order.sources < 0, -1, order.sources // c.taps * channel_step + order.sources % c.taps)
    source = kernel_source(
        "filters", c.element_type,
        GM=c.outputs, WIDTH=width, BLOCKS=blocks, ROWS=f"{len(rows)}ul", GROUP_STEP=group_step,
        CHANNEL_STEP=output_step,
    )  # fmt: skip
    size = (width * len(rows), blocks * c.groups)
    target = b.temporary(math.prod(size) * np.dtype(c.element_type.numpy).itemsize)
    b.launch(source, "filters", [c.weights, table(b, rows.astype(np.int32)), target], size)
    return target


def _arranged(weights: NDArray[Any], c: Convolution, sources: NDArray[np.int32], width: int) -> NDArray[Any]:
    blocks, is_given = -(-c.outputs // width), sources >= 0
    if c.is_transposed:
        by_output = weights.reshape(c.groups, c.channels, c.outputs, c.taps).transpose(0, 2, 1, 3)
    else:
        by_output = weights.reshape(c.groups, c.outputs, c.channels, c.taps)
    full = np.zeros((c.groups, blocks * width, len(sources)), weights.dtype)
    full[:, : c.outputs, is_given] = by_output.reshape(c.groups, c.outputs, -1)[:, :, sources[is_given]]
    return np.ascontiguousarray(full.reshape(c.groups, blocks, width, len(sources)).transpose(0, 1, 3, 2))
