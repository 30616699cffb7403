"""The geometry of a convolution of two dimensions, as the kernels take it. One dimension is a map of height 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.ir import Node
from engine.ir.element_type import f32
from engine.native import Attribute
from engine.ops.windows import window_of
from engine_cpu.layout import Layout, layout_bytes

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Sizes of a convolution, or of a transposed one; pairs are (height, width), pads top, left, bottom, right."""

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
        """Input channels of a group."""
        return self.in_channels // self.groups

    @property
    def out_group(self) -> int:
        """Output channels of a group."""
        return self.out_channels // self.groups

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return math.prod(self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """One filter a channel."""
        return self.groups == self.in_channels == self.out_channels and self.groups > 1

    @property
    def has_whole_blocks(self) -> bool:
        """Groups begin and end with blocks of channels."""
        return self.groups == 1 or (self.in_group % 16 == 0 and self.out_group % 16 == 0)

    @property
    def is_winograd(self) -> bool:
        """3x3 of stride 1, without dilation and groups."""
        simple = self.strides == self.dilations == (1, 1) and self.kernel == (3, 3)
        return simple and self.groups == 1 and not self.transposed

    def attributes(self) -> dict[str, Attribute]:
        """Attributes of all convolution kernels."""
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
        """All of it in short, to name the problem."""
        fields = (
            self.batch, self.groups, self.in_channels, self.out_channels, *self.in_size, *self.out_size, *self.kernel,
            *self.strides, *self.dilations, *self.pads,
        )  # fmt: skip
        return ("t" if self.transposed else "c") + ".".join(map(str, fields))

    def map_bytes(self, layout: Layout = Layout.BLOCKED) -> int:
        """Bytes of the input."""
        return layout_bytes((self.batch, self.in_channels, *self.in_size), f32, layout)

    def out_bytes(self, layout: Layout = Layout.BLOCKED) -> int:
        """Bytes of the output."""
        return layout_bytes((self.batch, self.out_channels, *self.out_size), f32, layout)


def conv_geometry(node: Node, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> ConvGeometry:
    """The geometry of a Conv, ConvTranspose or FusedConv whose input, weights and output have these shapes."""
    transposed = is_transposed(node)
    lengths, kernel = tuple(x[2:]), tuple(w[2:])
    window = window_of(node, kernel)
    if transposed:
        before = _transposed_cuts(node, lengths, tuple(y[2:]), kernel)
        pads = (*before, *(0,) * len(before))
    else:
        pairs = window.pads_for(lengths)
        pads = (*(a for a, _ in pairs), *(b for _, b in pairs))
    return ConvGeometry(
        batch=x[0],
        groups=int(node.attributes.get("group", 1)),
        in_channels=x[1],
        out_channels=y[1],
        in_size=as_pair(lengths),
        out_size=as_pair(y[2:]),
        kernel=as_pair(kernel),
        strides=as_pair(window.strides),
        dilations=as_pair(window.dilations),
        pads=as_pads(pads),
        transposed=transposed,
    )


def is_transposed(node: Node) -> bool:
    """A ConvTranspose, or a FusedConv that is one."""
    return node.op_type == "ConvTranspose" or bool(node.attributes.get("transposed", 0))


def as_pair(values: Sequence[int], fill: int = 1) -> Pair:
    """Values of one or two axes as (height, width)."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def as_pads(pads: Sequence[int]) -> tuple[int, int, int, int]:
    """Pads as ONNX has them for one or two axes."""
    return (0, pads[0], 0, pads[1]) if len(pads) == 2 else (pads[0], pads[1], pads[2], pads[3])


def _transposed_cuts(node: Node, lengths: Sequence[int], outs: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """How many positions of the full result are left out before each axis."""
    given = node.attributes
    auto_pad = given.get("auto_pad", "NOTSET")
    rank = len(kernel)
    ones = (1,) * rank
    if given.get("output_shape") is None and auto_pad in ("NOTSET", "", "VALID"):
        return [0] * rank if auto_pad == "VALID" else list((given.get("pads") or (0,) * (2 * rank))[:rank])
    cuts = []
    for length, out, size, stride, dilation, more in zip(
        lengths, outs, kernel, given.get("strides") or ones, given.get("dilations") or ones,
        given.get("output_padding") or (0,) * rank, strict=True,
    ):  # fmt: skip
        total = max(0, (length - 1) * stride + (size - 1) * dilation + 1 + more - out)
        # SAME_UPPER cuts the odd one at the end; every other mode at the beginning.
        cuts.append(total // 2 if auto_pad == "SAME_UPPER" else total - total // 2)
    return cuts
