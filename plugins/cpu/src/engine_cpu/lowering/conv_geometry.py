"""The geometry of a 2-D convolution, as passed to kernels. A 1-D convolution is one on maps of height 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.ir.element_type import f32
from engine.native import Attribute
from engine.ops.conv import ConvSpec
from engine.ops.windows import WindowGeometry
from engine.startup import dataclass
from engine_cpu.layout import Layout, layout_bytes

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Sizes of a convolution or transposed convolution; pairs are (height, width), pads top, left, bottom, right."""

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    in_size: Pair
    out_size: Pair
    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: tuple[int, int, int, int]
    transposed: bool = False

    @property
    def in_group(self) -> int:
        """The number of input channels in a group."""
        return self.in_channels // self.groups

    @property
    def out_group(self) -> int:
        """The number of output channels in a group."""
        return self.out_channels // self.groups

    @property
    def taps(self) -> int:
        """The number of weights for one input and one output channel: the product of the kernel's lengths."""
        return math.prod(self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has one filter of its own, in more than one group."""
        return self.groups == self.in_channels == self.out_channels and self.groups > 1

    @property
    def has_whole_blocks(self) -> bool:
        """Groups start and end at block boundaries."""
        return self.groups == 1 or (self.in_group % 16 == 0 and self.out_group % 16 == 0)

    @property
    def has_lanes(self) -> bool:
        """A channel of the groups of 16 adjacent outputs is in at most two vectors: `conv_lanes_f32` takes them."""
        out = self.out_group
        return out + math.gcd(out, 16) >= 16 or (16 % out == 0 and out % self.in_group == 0)

    @property
    def is_pointwise(self) -> bool:
        """1x1 of stride 1, without padding."""
        return self.kernel == self.strides == (1, 1) and not any(self.pads) and not self.transposed

    @property
    def is_winograd(self) -> bool:
        """3x3 of stride 1; and each output meets 2x2 taps, by whose weights its errors are judged."""
        if self.strides != (1, 1) or self.kernel != (3, 3) or self.transposed:
            return False
        axes = zip(self.in_size, self.dilations, self.pads[:2], self.pads[2:], strict=True)
        return all(max(pads) <= dilation and size >= 2 * dilation for size, dilation, *pads in axes)

    def attributes(self) -> dict[str, Attribute]:
        """The attributes that all convolution kernels have, by their names in C++."""
        return {
            "batch": self.batch,
            "groups": self.groups,
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "in": list(self.in_size),
            "out": list(self.out_size),
            "kernel": list(self.kernel),
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "pads": list(self.pads),
        }

    def describe(self) -> str:
        """A short text of all sizes, used as part of the problem key."""
        fields = (
            self.batch, self.groups, self.in_channels, self.out_channels, *self.in_size, *self.out_size, *self.kernel,
            *self.strides, *self.dilations, *self.pads,
        )  # fmt: skip
        return ("t" if self.transposed else "c") + ".".join(map(str, fields))

    def map_bytes(self, layout: Layout = Layout.BLOCKED) -> int:
        """The bytes of the input map in f32, in a layout."""
        return layout_bytes((self.batch, self.in_channels, *self.in_size), f32, layout)

    def out_bytes(self, layout: Layout = Layout.BLOCKED) -> int:
        """The bytes of the output map in f32, in a layout."""
        return layout_bytes((self.batch, self.out_channels, *self.out_size), f32, layout)


def has_two_axes(spec: ConvSpec) -> bool:
    """Whether a convolution of three axes is one of two: its windows have one position along neighbouring axes."""
    w = spec.weights.shape
    if spec.transposed or len(w) != 5 or not all(dim.is_static for dim in w):
        return False
    window = spec.window([dim.get_length() for dim in w][2:])
    pads = window.pads or ((0, 0),) * 3  # windows of one position need none
    return any(
        all((window.kernel[i], window.strides[i], *pads[i]) == (1, 1, 0, 0) for i in (axis, axis + 1))
        for axis in (0, 1)
    )


def _as_two_axes(g: WindowGeometry) -> WindowGeometry:
    """Three axes, of which `has_two_axes`, as two."""
    axis = 1 if g.kernel[1:] == g.strides[1:] == (1, 1) and not any((*g.pads_begin[1:], *g.pads_end[1:])) else 0

    def joined(values: tuple[int, ...]) -> tuple[int, ...]:
        return (*values[:axis], math.prod(values[axis : axis + 2]), *values[axis + 2 :])

    kept = slice(0, 2) if axis else slice(1, 3)
    return WindowGeometry(
        joined(g.inputs), joined(g.outputs), g.kernel[kept], g.strides[kept], g.dilations[kept], g.pads_begin[kept],
        g.pads_end[kept],
    )  # fmt: skip


def conv_geometry(spec: ConvSpec, x: Sequence[int], w: Sequence[int]) -> ConvGeometry:
    """The geometry of a Conv, ConvTranspose or FusedConv whose input and weights have these shapes.

    One of three axes `has_two_axes`.
    """
    g = spec.at(x, w)
    g = _as_two_axes(g) if len(g.inputs) == 3 else g.with_axes(2)
    return ConvGeometry(
        batch=x[0],
        groups=spec.group,
        in_channels=x[1],
        out_channels=w[1] * spec.group if spec.transposed else w[0],
        in_size=_pair(g.inputs),
        out_size=_pair(g.outputs),
        kernel=_pair(g.kernel),
        strides=_pair(g.strides),
        dilations=_pair(g.dilations),
        pads=(*_pair(g.pads_begin), *((0, 0) if spec.transposed else _pair(g.pads_end))),
        transposed=spec.transposed,
    )


def window_attributes(g: WindowGeometry) -> dict[str, Attribute]:
    """The attributes of a pooling window; `g` has two axes."""
    return {
        "in": list(g.inputs),
        "out": list(g.outputs),
        "kernel": list(g.kernel),
        "strides": list(g.strides),
        "dilations": list(g.dilations),
        "pads": [*g.pads_begin, *g.pads_end],
    }


def _pair(values: Sequence[int]) -> Pair:
    height, width = values
    return height, width
