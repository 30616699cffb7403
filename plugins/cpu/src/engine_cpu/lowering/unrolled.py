"""Convolutions as matrix products over unrolled windows: of three axes and more, and deformed ones; Col2Im."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from engine.ir import Node, Output
from engine.lowering import Refusal, RefusalCause, check_types, first_refusal, require_elements
from engine.native import Attribute
from engine.ops.conv import Col2ImSpec, ConvSpec, DeformConvSpec
from engine.ops.windows import WindowGeometry
from engine.startup import dataclass
from engine_cpu.lowering.checks import F32, check_f32, check_steps, check_values
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Copy, Strided, copy_step
from engine_cpu.segment import SegmentBuilder

Array = np.ndarray[Any, np.dtype[Any]]

AXES: Final = 4
"""The most spatial axes of the kernels."""
_SLAB_BYTES: Final = 4 << 20
"""Bytes of unrolled windows that are multiplied at a time: they stay in a cache."""
_MAX_SLABS: Final = 256
"""The limit of a node: each slab is a few steps."""
_X, _W, _BIAS, _RESIDUAL = range(4)


@dataclass(frozen=True, slots=True)
class _Slab:
    """Rows of windows of one image."""

    image: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Unrolled:
    """The windows of a convolution; `depth` rows of columns for each group, without the rows of ones."""

    geometry: WindowGeometry
    batch: int
    groups: int
    depth: int

    @property
    def width(self) -> int:
        """The windows of a row."""
        return self.windows[-1]

    @property
    def windows(self) -> tuple[int, ...]:
        """The number of windows along each axis: for a transposed convolution, the lengths of the input."""
        return self.geometry.outputs

    @property
    def count(self) -> int:
        """The windows of an image."""
        return math.prod(self.windows)

    def slabs(self, rows_of_columns: int) -> Iterator[_Slab]:
        """All windows, in parts whose columns, of so many rows, fit a cache; one part if there are none."""
        rows = math.prod(self.windows[:-1])
        each = max(1, _SLAB_BYTES // max(1, 4 * rows_of_columns * self.width))
        each = max(each, -(-rows * self.batch // _MAX_SLABS))
        for image in range(self.batch):
            for first in range(0, max(1, rows), each):
                yield _Slab(image, first, min(each, rows - first))


def check_unrolled(spec: ConvSpec) -> Refusal | None:
    """Why a convolution of more than two axes cannot run as products of unrolled windows; None if it can."""
    x, weights = spec.node.input_value(_X), spec.weights.shape
    axes = len(x.shape) - 2
    if not 1 <= axes <= AXES:
        return Refusal(RefusalCause.RANK, f"{x.name} has {axes} spatial dimensions; expected 1 to {AXES}")
    if any(dim.is_static and dim.min == 0 for dim in (*weights, x.shape[1])):
        return Refusal(RefusalCause.SHAPE, f"zero channels or an empty kernel: X is {x.type}, W is {weights}")
    if spec.transposed and spec.input(_RESIDUAL) is not None:
        return Refusal(RefusalCause.ATTRIBUTE, "a residual is added to a transposed convolution of three axes")
    return check_steps(spec)


def lower_unrolled(spec: ConvSpec, b: SegmentBuilder) -> None:
    """Add the steps of a convolution, transposed or not, of up to `AXES` axes."""
    (_lower_transposed if spec.transposed else _lower_conv)(spec, b)


def _lower_conv(spec: ConvSpec, b: SegmentBuilder) -> None:
    node = spec.node
    x_shape, w_shape = b.shape(node.input_value(_X)), b.shape(node.input_value(_W))
    geometry = spec.at(x_shape, w_shape).with_axes(AXES)
    layer = _Unrolled(geometry, x_shape[0], spec.group, math.prod(w_shape[1:]))
    x, pixels = b.input(node.input_value(_X)), math.prod(x_shape[1:])

    def unroll(slab: _Slab, columns: int, attributes: dict[str, Attribute]) -> None:
        image = b.part(x, 4 * slab.image * pixels, 4 * pixels)
        b.step(node, "window_unroll", [image], [columns], channels=x_shape[1], **attributes)

    residual = spec.input(_RESIDUAL)
    _multiply(node, layer, b, unroll, spec.input(_BIAS), residual, activation_attributes(spec.activation))


def _multiply(
    node: Node,
    layer: _Unrolled,
    b: SegmentBuilder,
    unroll: Any,
    bias: Output | None,
    residual: Output | None,
    activation: dict[str, Attribute],
) -> None:
    """Steps that multiply W with the columns that `unroll(slab, columns, attributes)` writes."""
    outputs = b.shape(node.output(0))[1]
    rows, depth = outputs // layer.groups, layer.depth + (bias is not None)
    weights = _with_bias(node, layer, b, bias)
    added = None if residual is None else b.input(residual)
    y = b.output(node.output(0))
    for slab in layer.slabs(layer.groups * depth):
        count = slab.rows * layer.width
        if not count:
            continue
        columns = b.temporary(4 * layer.groups * depth * count)
        unroll(slab, columns, _window_attributes(layer, slab) | {"groups": layer.groups, "ones": int(bias is not None)})
        offset = 4 * (slab.image * outputs * layer.count + slab.first * layer.width)
        nbytes = 4 * ((outputs - 1) * layer.count + count)
        attributes: dict[str, Attribute] = {
            "m": rows, "n": count, "k": depth, "batch": [layer.groups], "packed": 0,
            "a_row": depth, "a_batch": [rows * depth], "b_row": count, "b_batch": [depth * count],
            "c_row": layer.count, "c_batch": [rows * layer.count], **activation,
        }  # fmt: skip
        operands = [weights, columns]
        if added is not None:
            operands.append(b.part(added, offset, nbytes))
            attributes |= {"residual": 1, "residual_row": layer.count, "residual_batch": [rows * layer.count]}
        b.step(node, "gemm_f32", operands, [b.part(y, offset, nbytes)], **attributes)


def _with_bias(node: Node, layer: _Unrolled, b: SegmentBuilder, bias: Output | None) -> int:
    """The buffer of [outputs, depth]; its last column is the bias if there is one."""
    w = node.input_value(_W)
    if bias is None:
        return b.input(w)
    outputs, depth = b.shape(w)[0], layer.depth
    if b.is_constant(w) and b.is_constant(bias):

        def make() -> Array:
            return np.column_stack([b.value(w).reshape(outputs, depth), b.value(bias).reshape(outputs, 1)])

        return b.weights([w, bias], "rows of weights with a bias", make)
    joined = b.temporary(4 * outputs * (depth + 1))
    places = Strided.row_major((outputs, depth + 1))
    copy_step(
        b, node, 4,
        [
            Copy(b.input(w), Strided.row_major((outputs, depth)), joined, places.slice(1, 0, depth)),
            Copy(b.input(bias), Strided.row_major((outputs, 1)), joined, places.slice(1, depth, 1)),
        ],
    )  # fmt: skip
    return joined


def _lower_transposed(spec: ConvSpec, b: SegmentBuilder) -> None:
    node, groups = spec.node, spec.group
    x_shape, w_shape = b.shape(node.input_value(_X)), b.shape(node.input_value(_W))
    g = spec.at(x_shape, w_shape).with_axes(AXES)
    # The windows belong to the result; there is one for each position of the input.
    swapped = WindowGeometry(g.outputs, g.inputs, g.kernel, g.strides, g.dilations, g.pads_begin, g.pads_end)
    layer = _Unrolled(swapped, x_shape[0], groups, x_shape[1] // groups)
    rows, outputs = math.prod(w_shape[1:]), groups * w_shape[1]
    weights, bias = _transposed_weights(node, groups, b), spec.input(_BIAS)
    x, y, pixels = b.input(node.input_value(_X)), b.output(node.output(0)), math.prod(g.outputs)
    more = [] if bias is None else [b.input(bias)]
    for slab in layer.slabs(groups * rows):
        columns = _spread(node, layer, b, slab, (weights, rows), x)
        image, begins = b.part(y, 4 * slab.image * outputs * pixels, 4 * outputs * pixels), slab.first == 0
        b.step(
            node, "window_add", [columns, *more, *([] if begins else [image])], [image],
            channels=outputs, begins=int(begins), bias=len(more), **_window_attributes(layer, slab),
        )  # fmt: skip
    if spec.activation is not None:
        factors = [b.constant(np.full(outputs, value, np.float32)) for value in (1, 0)]
        b.step(
            node, "scale_shift_f32", [y, *factors], [y],
            batch=x_shape[0], channels=outputs, pixels=pixels, **activation_attributes(spec.activation),
        )  # fmt: skip


def _spread(node: Node, layer: _Unrolled, b: SegmentBuilder, slab: _Slab, weights: tuple[int, int], x: int) -> int:
    """The buffer of the values that each position of the input adds to its window: the product with this many rows of
    weights.
    """
    (factor, rows), count = weights, slab.rows * layer.width
    if not count:
        return b.constant(np.empty(0, np.float32))
    channels = layer.groups * layer.depth
    columns = b.temporary(4 * layer.groups * rows * count)
    offset = 4 * (slab.image * channels * layer.count + slab.first * layer.width)
    source = b.part(x, offset, 4 * ((channels - 1) * layer.count + count))
    b.step(
        node, "gemm_f32", [factor, source], [columns],
        m=rows, n=count, k=layer.depth, batch=[layer.groups], packed=0, a_batch=[rows * layer.depth],
        b_row=layer.count, b_batch=[layer.depth * layer.count], c_batch=[rows * count],
    )  # fmt: skip
    return columns


def _transposed_weights(node: Node, groups: int, b: SegmentBuilder) -> int:
    """W [C, M/group, ...] as [group, M/group * taps, C/group]."""
    w = node.input_value(_W)
    shape = groups, b.shape(w)[0] // groups, math.prod(b.shape(w)[1:])
    if b.is_constant(w):
        recipe = f"transposed in {groups} groups"
        return b.weights([w], recipe, lambda: np.ascontiguousarray(b.value(w).reshape(shape).swapaxes(1, 2)))
    target, elements = b.temporary(4 * math.prod(shape)), Strided.row_major(shape).permute((0, 2, 1))
    copy_step(b, node, 4, [Copy(b.input(w), elements, target, Strided.row_major(elements.shape))])
    return target


def _window_attributes(layer: _Unrolled, slab: _Slab) -> dict[str, Attribute]:
    g = layer.geometry
    return {
        "first": slab.first, "rows": slab.rows, "images": g.inputs, "windows": g.outputs, "kernel": g.kernel,
        "strides": g.strides, "dilations": g.dilations, "pads": g.pads_begin,
    }  # fmt: skip


@lowers("DeformConv", spec=DeformConvSpec)
class DeformConvLowering(OpLowering[DeformConvSpec]):
    """Convolutions of maps with two axes at computed positions."""

    def check(self, spec: DeformConvSpec) -> Refusal | None:
        return first_refusal(check_f32(spec.node), self._check_shapes(spec), check_steps(spec))

    def _check_shapes(self, spec: DeformConvSpec) -> Refusal | None:
        x, w = spec.node.input_value(_X), spec.node.input_value(_W)
        if len(x.shape) != 4:
            return Refusal(RefusalCause.RANK, f"input 0 is {x.type}; expected a map [N, C, H, W]")
        if any(dim.is_static and dim.min == 0 for dim in (*w.shape, x.shape[1])):
            return Refusal(RefusalCause.SHAPE, f"zero channels or an empty kernel: X is {x.type}, W is {w.type}")
        return None

    def lower(self, spec: DeformConvSpec, b: SegmentBuilder) -> None:
        node, groups = spec.node, spec.offset_group
        x_shape, w_shape = b.shape(node.input_value(_X)), b.shape(node.input_value(_W))
        require_elements(node, x_shape[2:], "a sample")
        geometry = spec.at(x_shape, w_shape).with_axes(AXES)
        layer = _Unrolled(geometry, x_shape[0], spec.group, math.prod(w_shape[1:]))
        x, pixels = b.input(node.input_value(_X)), math.prod(x_shape[1:])
        moves, moved = b.input(node.input_value(2)), groups * math.prod(geometry.kernel) * layer.count
        weighted = spec.input(4)
        mask = None if weighted is None else b.input(weighted)

        def unroll(slab: _Slab, columns: int, attributes: dict[str, Attribute]) -> None:
            inputs = [
                b.part(x, 4 * slab.image * pixels, 4 * pixels), b.part(moves, 8 * slab.image * moved, 8 * moved)
            ]  # fmt: skip
            if mask is not None:
                inputs.append(b.part(mask, 4 * slab.image * moved, 4 * moved))
            b.step(
                node, "window_deform", inputs, [columns],
                channels=x_shape[1], offset_groups=groups, mask=int(mask is not None), **attributes,
            )  # fmt: skip

        _multiply(node, layer, b, unroll, spec.input(3), None, {})


@lowers("Col2Im", spec=Col2ImSpec)
class Col2ImLowering(OpLowering[Col2ImSpec]):
    """Sums of windows, for the values of the image's and the window's lengths."""

    values = (1, 2)

    def check(self, spec: Col2ImSpec) -> Refusal | None:
        node = spec.node
        lengths = node.input_value(1).shape
        if not lengths[0].is_static or lengths[0].min > AXES:
            return Refusal(RefusalCause.RANK, f"image_shape has {lengths[0]} lengths; expected {AXES} or less")
        return first_refusal(check_types([node.input_value(0), node.output(0)], F32), check_values(node, self.values))

    def lower(self, spec: Col2ImSpec, b: SegmentBuilder) -> None:
        node = spec.node
        image, block = b.values(spec, 1, 2)
        assert image is not None
        assert block is not None
        geometry = spec.at(image.tolist(), block.tolist()).with_axes(AXES)
        batch, channels, *_ = b.shape(node.output(0))
        layer = _Unrolled(geometry, 1, 1, 0)
        whole = _Slab(0, 0, math.prod(geometry.outputs[:-1]))
        b.step(
            node, "window_add", [b.input(node.input_value(0))], [b.output(node.output(0))],
            channels=batch * channels, begins=1, **_window_attributes(layer, whole),
        )  # fmt: skip
