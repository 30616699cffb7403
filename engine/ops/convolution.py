"""Convolution: Conv, ConvTranspose, Col2Im, ConvInteger, QLinearConv, as matrix products over unrolled windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Dimension, Node, PartialShape, TensorType, ValueType
from engine.ops.quantization import requantize
from engine.ops.registry import attribute, evaluates, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.tensors import Array
from engine.ops.windows import Window, infer_spatial, offsets, padded, window_of


@infers("Conv")
def _infer_conv(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Conv"))
    data, weight = tensor_type(node, 0), tensor_type(node, 1)
    if weight.shape.rank.is_dynamic or data.shape.rank.is_dynamic:
        rank = weight.shape.rank if weight.shape.rank.is_static else data.shape.rank
        return (TensorType(data.element_type, PartialShape.dynamic(rank.min if rank.is_static else None)),)
    rank_of_data = len(data.shape)
    if rank_of_data < 3 or len(weight.shape) != rank_of_data:
        fail(node, "X and W must have one rank, 3 or more: [N, C, ...] and [M, C/group, ...]")
    _check_channels(node, data.shape, weight.shape)
    kernel = attribute(node, "kernel_shape")
    if kernel is not None and not PartialShape(kernel).compatible(PartialShape(weight.shape.dims[2:])):
        fail(node, f"kernel_shape {list(kernel)} differs from that of W")
    if kernel is None:
        spatial_kernel = PartialShape(weight.shape.dims[2:])
        if spatial_kernel.is_dynamic:
            dims = [data.shape[0], weight.shape[0], *[None] * (rank_of_data - 2)]
            return (TensorType(data.element_type, PartialShape(dims)),)
        kernel = spatial_kernel.get_shape()
    spatial = infer_spatial(node, window_of(node, kernel), PartialShape(data.shape.dims[2:]))
    return (TensorType(data.element_type, PartialShape([data.shape[0], weight.shape[0], *spatial])),)


def _check_channels(node: Node, data: PartialShape, weight: PartialShape) -> None:
    group = attribute(node, "group")
    if group < 1 or (weight[0].is_static and weight[0].min % group):
        fail(node, f"group {group} does not divide the {weight[0]} output channels of W")
    if data[1].is_static and weight[1].is_static and data[1].min != weight[1].min * group:
        fail(
            node,
            f"X has {data[1]} channels; W takes {weight[1]} a group and group is {group}, "
            f"so {weight[1].min * group} were expected",
        )
    if node.has_input(2):
        bias = tensor_type(node, 2).shape
        if not bias.compatible(PartialShape([weight[0]])):
            fail(node, f"B has shape {bias}; expected one value an output channel, [{weight[0]}]")


@evaluates("Conv")
def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    group: int,
) -> Array:
    """Convolution (ONNX Conv-22): x [N, C, ...], w [M, C/group, ...], b [M]. Narrow floats accumulate in f32."""
    window = Window.make(w.shape[2:], strides, dilations, pads, auto_pad)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    result = _convolve(x.astype(wide, copy=False), w.astype(wide, copy=False), window, group)
    if b is not None:
        result += b.astype(wide, copy=False).reshape(-1, *(1,) * (x.ndim - 2))
    return result.astype(x.dtype, copy=False)


def _convolve(x: Array, w: Array, window: Window, group: int) -> Array:
    """x [N, C, ...] with w [M, C/group, ...], padded with zeros."""
    channels = w.shape[1]
    if w.shape[0] % group or x.shape[1] != channels * group:
        raise ModelError(f"x of shape {x.shape} and w of shape {w.shape} do not fit group {group}")
    full, outs = padded(x, window, 0)
    count = int(np.prod(outs))
    result = np.empty((x.shape[0], group, w.shape[0] // group, count), dtype=x.dtype)
    weights = w.reshape(group, w.shape[0] // group, channels * math.prod(window.kernel))
    for image in range(x.shape[0]):  # one at a time: the unrolled windows take kernel-size times the image
        columns = _unroll(full[image], window, outs).reshape(group, channels * int(np.prod(window.kernel)), count)
        np.matmul(weights, columns, out=result[image])
    return result.reshape(x.shape[0], w.shape[0], *outs)


def _unroll(image: Array, window: Window, outs: Sequence[int]) -> Array:
    """[C, ...] to [C, *kernel, *outs]; a view where each position is read once."""
    if all(k == s == 1 for k, s in zip(window.kernel, window.strides, strict=True)):
        return image.reshape(image.shape[0], 1, -1)
    columns = np.empty((image.shape[0], *window.kernel, *outs), dtype=image.dtype)
    for position, slices in offsets(window, outs):
        target: Any = (slice(None), *position)
        columns[target] = image[slices]
    return columns


@infers("ConvTranspose")
def _infer_conv_transpose(node: Node) -> Sequence[ValueType]:
    """Checks that ONNX leaves out: channels, and padding that cuts everything."""
    check_inputs(node, get_op("ConvTranspose"))
    data, weight = tensor_type(node, 0), tensor_type(node, 1)
    rank = next((len(t.shape) for t in (data, weight) if t.shape.rank.is_static), None)
    if rank is None:
        return (TensorType(data.element_type, PartialShape.dynamic()),)
    if (
        rank < 3
        or not PartialShape.dynamic(rank).compatible(data.shape)
        or not (PartialShape.dynamic(rank).compatible(weight.shape))
    ):
        fail(node, "X and W must have one rank, 3 or more: [N, C, ...] and [C, M/group, ...]")
    batch, channels = data.shape.dims[:2] if data.shape.rank.is_static else (None, None)
    out = None
    if weight.shape.rank.is_static:
        out = weight.shape[1].min * attribute(node, "group") if weight.shape[1].is_static else None
        if channels is not None and not channels.compatible(weight.shape[0]):
            fail(node, f"X has {channels} channels, W takes {weight.shape[0]}")
    given = attribute(node, "kernel_shape")
    kernel = PartialShape(weight.shape.dims[2:]) if weight.shape.rank.is_static else PartialShape.dynamic(rank - 2)
    kernel = PartialShape(given) if given is not None else kernel
    spatial: list[Dimension | int | None] = [None] * (rank - 2)
    if kernel.is_static and data.shape.rank.is_static:
        spatial = _transposed_dims(node, data.shape.dims[2:], kernel.get_shape())
    return (TensorType(data.element_type, PartialShape([batch, out, *spatial])),)


def _transposed_dims(node: Node, dims: Sequence[Dimension], kernel: Sequence[int]) -> list[Dimension | int | None]:
    given = node.attributes
    try:
        window = Window.make(kernel, given.get("strides"), given.get("dilations"))
        Window.make(kernel, pads=given.get("pads"))
    except ModelError as e:
        fail(node, str(e), e)
    extra = tuple(given.get("output_padding") or (0,) * len(kernel))
    wanted = given.get("output_shape")
    if wanted is not None:
        return list(wanted[-len(kernel) :])
    found: list[Dimension | int | None] = []
    for axis, dim in enumerate(dims):
        if dim.is_dynamic:
            found.append(None)
            continue
        size = (dim.min - 1) * window.strides[axis] + window.reach(axis)
        lengths, sizes = [dim.min], [size]
        one = Window.make(kernel[axis : axis + 1], window.strides[axis : axis + 1])
        pads = given.get("pads")
        pair = None if pads is None else (pads[axis], pads[axis + len(kernel)])
        _, (length,) = _transposed_cuts(
            lengths, sizes, one, extra[axis : axis + 1], pair, given.get("auto_pad", "NOTSET"), None
        )
        if length < 0:
            fail(node, f"pads {pair} cut more than the {size} positions of spatial dimension {axis}")
        found.append(length)
    return found


@evaluates("ConvTranspose")
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    group: int,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> Array:
    """Transposed convolution (ONNX ConvTranspose-22): x [N, C, ...], w [C, M/group, ...], b [M]."""
    kernel = w.shape[2:]
    rank = len(kernel)
    window = Window.make(kernel, strides, dilations)
    extra = tuple(output_padding or (0,) * rank)
    sizes = [(n - 1) * s + window.reach(a) for a, (n, s) in enumerate(zip(x.shape[2:], window.strides, strict=True))]
    cuts, lengths = _transposed_cuts(x.shape[2:], sizes, window, extra, pads, auto_pad, output_shape)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    channels, per_group = x.shape[1], w.shape[1]
    if channels != w.shape[0] or channels % group:
        raise ModelError(f"x of shape {x.shape} and w of shape {w.shape} do not fit group {group}")
    rows, places = per_group * math.prod(kernel), math.prod(x.shape[2:])
    weights = w.astype(wide, copy=False).reshape(group, channels // group, rows).swapaxes(1, 2)
    planes = x.astype(wide, copy=False).reshape(x.shape[0], group, channels // group, places)
    columns = np.matmul(weights, planes).reshape(x.shape[0], group * per_group, *kernel, *x.shape[2:])
    reach = [max(size, cut + length) for size, cut, length in zip(sizes, cuts, lengths, strict=True)]
    full = np.zeros((x.shape[0], group * per_group, *reach), dtype=wide)
    for position, slices in offsets(window, x.shape[2:]):
        source: Any = (slice(None), slice(None), *position)
        full[slices] += columns[source]
    inside: Any = (..., *(slice(cut, cut + length) for cut, length in zip(cuts, lengths, strict=True)))
    result = full[inside]
    if b is not None:
        result = result + b.astype(wide, copy=False).reshape(-1, *(1,) * rank)
    return np.ascontiguousarray(result.astype(x.dtype, copy=False))


def _transposed_cuts(
    lengths: Sequence[int],
    sizes: Sequence[int],
    window: Window,
    extra: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
    output_shape: Sequence[int] | None,
) -> tuple[list[int], list[int]]:
    """What is cut off before each axis of the full result, and the length that remains."""
    rank = len(sizes)
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if output_shape is None and not same:
        flat = tuple(pads or (0,) * (2 * rank)) if auto_pad in ("NOTSET", "") else (0,) * (2 * rank)
        cuts = list(flat[:rank])
        return cuts, [s + e - a - b for s, e, a, b in zip(sizes, extra, cuts, flat[rank:], strict=True)]
    grown = [size + more for size, more in zip(sizes, extra, strict=True)]
    if output_shape:
        wanted = list(output_shape)[-rank:]
    else:
        # Where the window is smaller than the stride there is nothing to cut, and nothing is added either.
        wanted = [min(g, n * s) for g, n, s in zip(grown, lengths, window.strides, strict=True)]
    totals = [max(0, g - n) for g, n in zip(grown, wanted, strict=True)]
    # SAME_UPPER cuts the odd one at the end; every other mode at the beginning.
    cuts = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
    return cuts, wanted


@evaluates("Col2Im")
def col2im(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
) -> Array:
    """Windows [N, C * block, L] added up to the images that they were cut from (ONNX Col2Im-18)."""
    lengths = [int(n) for n in image_shape]
    window = Window.make([int(n) for n in block_shape], strides, dilations, pads)
    outs = tuple(window.out_length(axis, length) for axis, length in enumerate(lengths))
    pairs = window.pads_for(lengths)
    columns = x.reshape(x.shape[0], -1, *window.kernel, *outs)
    full = np.zeros((*columns.shape[:2], *(n + a + b for n, (a, b) in zip(lengths, pairs, strict=True))), dtype=x.dtype)
    for position, slices in offsets(window, outs):
        source: Any = (slice(None), slice(None), *position)
        full[slices] += columns[source]
    inside: Any = (..., *(slice(a, a + n) for n, (a, _) in zip(lengths, pairs, strict=True)))
    return np.ascontiguousarray(full[inside])


@evaluates("ConvInteger")
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    group: int,
) -> Array:
    """Convolution of 8-bit integers to i32 (ONNX ConvInteger-10); padding has the value of the zero point."""
    window = Window.make(w.shape[2:], strides, dilations, pads, auto_pad)
    return _convolve(_centered(x, x_zero_point), _centered(w, w_zero_point), window, group).astype(np.int32)


@evaluates("QLinearConv")
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
    *,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    group: int,
) -> Array:
    """Quantized convolution (ONNX QLinearConv-10); `b` has scale x_scale * w_scale and zero point 0."""
    window = Window.make(w.shape[2:], strides, dilations, pads, auto_pad)
    result = _convolve(_centered(x, x_zero_point), _centered(w, w_zero_point), window, group)
    channels = (-1, *(1,) * (x.ndim - 2))
    if b is not None:
        result += b.reshape(channels)
    scale = w_scale.reshape(channels) if w_scale.ndim else w_scale
    return requantize(result, x_scale * scale / y_scale, y_zero_point)


def _centered(x: Array, zero_point: Array | None) -> Array:
    """Quantized values less their zero point, one or one a first dimension. Sums of f64 are exact below 2^53."""
    wide = x.astype(np.float64)
    if zero_point is None:
        return wide
    if zero_point.size > 1:
        zero_point = zero_point.reshape(-1, *(1,) * (x.ndim - 1))
    return wide - zero_point.astype(np.float64)
