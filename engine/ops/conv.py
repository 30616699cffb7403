"""Convolution: its spec, and Conv, ConvInteger, QLinearConv and Col2Im, as matrix products over unrolled windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.ir import Dimension, Node, Output, PartialShape, TensorType, ValueType
from engine.ops.axes import Axes, maps_axes, rank_of_value
from engine.ops.cost import lengths_of, more_time, operations, size_of
from engine.ops.fused_activation import Activation, fused_activation
from engine.ops.quantize import are_usual, quantize, requantize, scaled
from engine.ops.registry import INTERNAL_DOMAIN, attribute, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import evaluates_with_spec, refuse, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.ops.windows import Window, WindowGeometry, WindowSpec, infer_spatial, offsets, padded, split_same
from engine.startup import dataclass

_WEIGHTS: Final = {"QLinearConv": 3, "QuantizedConv": 3}
"""The index of the weights for operators for which it is not 1."""


declare("Conv", "ConvInteger", product=(0, 1), inflates=True, vectorized=True)
declare("QLinearConv", product=(0, 3), quantizes=True, inflates=True, vectorized=True)
declare("Col2Im", inflates=True)


@specifies("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")
@specifies("FusedConv", "QuantizedConv", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSpec(WindowSpec):
    """A convolution of [N, C, ...] with weights [M, C/group, ...], or a transposed one, [C, M/group, ...].

    Attributes:
        group: how many parts the channels are divided into.
        transposed: whether it is a ConvTranspose, or a FusedConv with `transposed`.
        output_padding: for a transposed one, positions added at the end of each spatial axis; empty like `strides`.
        output_shape: for a transposed one, the lengths of the output's spatial axes, if the model gives them.
        activation: the activation of a FusedConv or QuantizedConv.
    """

    group: int
    transposed: bool
    output_padding: tuple[int, ...]
    output_shape: tuple[int, ...] | None
    activation: Activation | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        cls.resolve_window(node, given, (0, _WEIGHTS.get(node.op_type, 1)))
        if given["group"] < 1:
            refuse(node, "group", given["group"], "1 or more")
        given["transposed"] = bool(given.get("transposed", node.op_type == "ConvTranspose"))
        given["activation"] = fused_activation(node) if "activation" in given else None
        axes = len(given["strides"])
        extra, shape = tuple(given.get("output_padding") or ()), tuple(given.get("output_shape") or ())
        if extra and (len(extra) != axes or min(extra) < 0):
            refuse(node, "output_padding", list(extra), f"{axes} values, 0 or more")
        if shape and (len(shape) < axes or min(shape) < 0):
            refuse(node, "output_shape", list(shape), f"{axes} values, 0 or more")
        given["output_padding"] = extra or (0,) * axes
        given["output_shape"] = shape[len(shape) - axes :] or None

    @property
    def weights(self) -> Output:
        """The input that has the kernel."""
        return self.node.input_value(_WEIGHTS.get(self.node.op_type, 1))

    def at(self, x: Sequence[int], w: Sequence[int]) -> WindowGeometry:
        """The geometry over an input of shape `x` with weights of shape `w`."""
        if self.kernel_shape not in (None, tuple(w[2:])):
            raise ModelError(f"weights of shape {tuple(w)} do not match kernel_shape {self.kernel_shape}")
        window = self.window(w[2:])
        if not self.transposed:
            return window.at(x[2:])
        found = [self.transposed_axis(window, axis, length) for axis, length in enumerate(x[2:])]
        begin, outputs = tuple(cut for cut, _ in found), tuple(max(0, length) for _, length in found)
        end = tuple(
            (n - 1) * stride + window.reach(axis) - cut - out
            for axis, (n, stride, cut, out) in enumerate(zip(x[2:], window.strides, begin, outputs, strict=True))
        )
        return WindowGeometry(tuple(x[2:]), outputs, window.kernel, window.strides, window.dilations, begin, end)

    def transposed_axis(self, window: Window, axis: int, length: int) -> tuple[int, int]:
        """For a transposed one: positions of the full result removed at the start of an axis, and the output's length.

        An `output_shape` beyond the full result has zeros on both sides: then the positions are below 0. The length is
        negative if padding removes more than there is.
        """
        size = (length - 1) * window.strides[axis] + window.reach(axis)
        grown = size + (self.output_padding[axis] if self.output_padding else 0)
        if self.output_shape is not None:
            wanted = self.output_shape[axis]
            return split_same(grown - wanted, self.auto_pad)[0], wanted
        if window.pads is not None:
            before, behind = window.pads[axis]
            return before, grown - before - behind
        # If the window is smaller than the stride, nothing is removed, but nothing is added either.
        wanted = min(grown, length * window.strides[axis])
        return split_same(grown - wanted, self.auto_pad)[0], wanted


@infers("Conv")
def _infer_conv(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Conv"))
    return (convolved_type(ConvSpec.of(node)),)


def convolved_type(spec: ConvSpec) -> TensorType:
    """The type of a convolution that is not transposed. Raises `TypeInferenceError`."""
    node = spec.node
    data, weight = tensor_type(node, 0), tensor_type(node, 1)
    bias = tensor_type(node, 2).shape if node.has_input(2) else None
    return TensorType(data.element_type, convolved_shape(spec, data.shape, weight.shape, bias))


def convolved_shape(
    spec: ConvSpec, data: PartialShape, weight: PartialShape, bias: PartialShape | None
) -> PartialShape:
    """The shape of a convolution of such operands that is not transposed. Raises `TypeInferenceError`."""
    node = spec.node
    if weight.rank.is_dynamic or data.rank.is_dynamic:
        rank = weight.rank if weight.rank.is_static else data.rank
        return PartialShape.dynamic(rank.min if rank.is_static else None)
    _check_channels(node, spec.group, data, weight, bias)
    kernel = PartialShape(weight.dims[2:])
    if spec.kernel_shape is not None:
        if not PartialShape(spec.kernel_shape).compatible(kernel):
            fail(node, f"kernel_shape {list(spec.kernel_shape)} differs from the kernel of W")
        kernel = PartialShape(spec.kernel_shape)
    spatial: Sequence[Dimension | None] = [None] * len(kernel)
    if kernel.is_static:
        spatial = infer_spatial(node, spec.window(kernel.get_shape()), data.dims[2:])
    return PartialShape([data[0], weight[0], *spatial])


def _check_channels(
    node: Node, group: int, data: PartialShape, weight: PartialShape, bias: PartialShape | None
) -> None:
    if weight[0].is_static and weight[0].min % group:
        fail(node, f"group {group} does not divide the {weight[0]} output channels of W")
    if data[1].is_static and weight[1].is_static and data[1].min != weight[1].min * group:
        fail(
            node,
            f"X has {data[1]} channels; W takes {weight[1]} per group, and group is {group}, "
            f"so {weight[1].min * group} are expected",
        )
    if bias is not None and not bias.compatible(PartialShape([weight[0]])):
        fail(node, f"B has shape {bias}; expected one value per output channel, [{weight[0]}]")


@evaluates_with_spec("Conv")
def conv(spec: ConvSpec, x: Array, w: Array, b: Array | None = None) -> Array:
    """Convolution (ONNX Conv-22): x [N, C, ...], w [M, C/group, ...], b [M]. Narrow floats accumulate in f32."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    result = _convolve(spec, x.astype(wide, copy=False), w.astype(wide, copy=False))
    if b is not None:
        result += b.astype(wide, copy=False).reshape(-1, *(1,) * (x.ndim - 2))
    return result.astype(x.dtype, copy=False)


def _convolve(spec: ConvSpec, x: Array, w: Array) -> Array:
    """x [N, C, ...] with w [M, C/group, ...], padded with zeros."""
    channels, group, geometry = w.shape[1], spec.group, spec.at(x.shape, w.shape)
    if w.shape[0] % group or x.shape[1] != channels * group:
        raise ModelError(f"x of shape {x.shape} and w of shape {w.shape} do not fit group {group}")
    full, count, taps = padded(x, geometry, 0), math.prod(geometry.outputs), math.prod(geometry.kernel)
    result = np.empty((x.shape[0], group, w.shape[0] // group, count), dtype=x.dtype)
    weights = w.reshape(group, w.shape[0] // group, channels * taps)
    for image in range(x.shape[0]):  # one by one: the unrolled windows take kernel-size times the memory of the image
        columns = _unroll(full[image], geometry).reshape(group, channels * taps, count)
        np.matmul(weights, columns, out=result[image])
    return result.reshape(x.shape[0], w.shape[0], *geometry.outputs)


def _unroll(image: Array, g: WindowGeometry) -> Array:
    """[C, ...] to [C, *kernel, *outputs]; a view if each position is read once."""
    if all(k == s == 1 for k, s in zip(g.kernel, g.strides, strict=True)):
        return image.reshape(image.shape[0], 1, -1)
    columns = np.empty((image.shape[0], *g.kernel, *g.outputs), dtype=image.dtype)
    for position, slices in offsets(g, g.outputs):
        target: Any = (slice(None), *position)
        columns[target] = image[slices]
    return columns


@specifies("DeformConv")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeformConvSpec(WindowSpec):
    """A convolution for which an input moves the positions of the window.

    Attributes:
        group: how many parts the channels are divided into.
        offset_group: how many parts of the channels have separate offsets.
    """

    group: int
    offset_group: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        cls.resolve_window(node, given, (0, 1))
        for name in ("group", "offset_group"):
            if given[name] < 1:
                refuse(node, name, given[name], "1 or more")

    def at(self, x: Sequence[int], w: Sequence[int]) -> WindowGeometry:
        """The geometry over an input of shape `x` with weights of shape `w`, without offsets."""
        return self.window(w[2:]).at(x[2:])


@specifies("Col2Im")
@dataclass(frozen=True, slots=True, kw_only=True)
class Col2ImSpec(WindowSpec):
    """Adds windows to the images from which they were cut; an input gives the kernel."""

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        cls.resolve_window(node, given, ())

    def at(self, image_shape: Sequence[int], block_shape: Sequence[int]) -> WindowGeometry:
        """The geometry of the windows over an image whose spatial axes have these lengths."""
        return self.window(block_shape).at(image_shape)


@evaluates_with_spec("Col2Im")
def col2im(spec: Col2ImSpec, x: Array, image_shape: Array, block_shape: Array) -> Array:
    """Windows [N, C * block, L] added up to the images that they were cut from (ONNX Col2Im-18)."""
    g = spec.at(image_shape.tolist(), block_shape.tolist())
    columns = x.reshape(x.shape[0], x.shape[1] // math.prod(g.kernel), *g.kernel, *g.outputs)
    sizes = [n + a + b for n, a, b in zip(g.inputs, g.pads_begin, g.pads_end, strict=True)]
    full = np.zeros((*columns.shape[:2], *sizes), dtype=x.dtype)
    for position, slices in offsets(g, g.outputs):
        source: Any = (slice(None), slice(None), *position)
        full[slices] += columns[source]
    inside: Any = (..., *(slice(a, a + n) for n, a in zip(g.inputs, g.pads_begin, strict=True)))
    return np.ascontiguousarray(full[inside])


@evaluates_with_spec("ConvInteger")
def conv_integer(
    spec: ConvSpec, x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None
) -> Array:
    """Convolution of 8-bit integers to i32 (ONNX ConvInteger-10); padding has the value of the zero point.

    Sums are exact modulo 2^32, as in kernels that accumulate in 32 bits.
    """
    return _convolve(spec, _centered(x, x_zero_point), _centered(w, w_zero_point)).astype(np.int64).astype(np.int32)


@evaluates_with_spec("QLinearConv")
def qlinear_conv(
    spec: ConvSpec,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
) -> Array:
    """Quantized convolution (ONNX QLinearConv-10); `b` has scale x_scale * w_scale and zero point 0."""
    image, weights = _centered(x, x_zero_point), _centered(w, w_zero_point)
    channels = (-1, *(1,) * (x.ndim - 2))
    w_scale = w_scale.reshape(channels) if w_scale.ndim else w_scale
    factor = x_scale * w_scale / y_scale
    bias = None if b is None else b.reshape(channels)
    if are_usual(x_scale, w_scale, y_scale) and np.isfinite(factor).all():
        result = _convolve(spec, image, weights)
        return requantize(result if bias is None else result + bias, factor, y_zero_point)
    each = w_scale.reshape(-1, *(1,) * (x.ndim - 1)) if w_scale.ndim else w_scale
    result = _convolve(spec, scaled(image, x_scale), scaled(weights, each))
    if bias is not None:
        result += (bias * (x_scale.astype(np.float64) * w_scale.astype(np.float64))).astype(np.float32)
    return quantize(result, y_scale, y_zero_point)


def _centered(x: Array, zero_point: Array | None) -> Array:
    """Quantized values minus their zero point, single or per first dimension. Sums in f64 are exact below 2^53."""
    wide = x.astype(np.float64)
    if zero_point is None:
        return wide
    if zero_point.size > 1:
        zero_point = zero_point.reshape(-1, *(1,) * (x.ndim - 1))
    return wide - zero_point.astype(np.float64)


# -- cost -------------------------------------------------------------------------------------------------


@operations("Conv", "ConvInteger", "DeformConv", "QLinearConv")
def _products(node: Node) -> float:
    """[M, C / group, ...]: every element of the result is a sum over the weights of its channel."""
    weights = lengths_of(node.input_value(_WEIGHTS.get(node.op_type, 1)))
    return 2.0 * size_of(node.output(0)) * math.prod(weights[1:])


@operations("ConvTranspose")
def _transposed_products(node: Node) -> float:
    """[C, M / group, ...]: every element of the input is multiplied with the weights of its channel."""
    return 2.0 * size_of(node.input_value(0)) * math.prod(lengths_of(node.input_value(1))[1:])


@more_time("Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv")
def _time(node: Node) -> float:
    """Four units for each product: windows are unrolled before they are multiplied."""
    weights = max(size_of(value) for value in node.input_values[1:] if value is not None)
    longest = max(size_of(node.output(0)), size_of(node.input_value(0)))
    channels = max(1, *lengths_of(node.input_value(0))[1:2])
    return 4 * longest * max(1, weights // channels)


@more_time("CausalConvWithState")
def _time_of_causal(node: Node) -> float:
    return 8.0 * size_of(node.input_value(0)) * max(1, *lengths_of(node.input_value(1))[-1:])


# -- axes -------------------------------------------------------------------------------------------------


@maps_axes("Conv", "ConvInteger", "DeformConv")
def _axes(node: Node) -> Axes:
    """Channels of a group go together: in another order, they would read other channels."""
    if node.op_type == "DeformConv":
        return f"N C ..., {_filters(node)} *, N *, {_filters(node)}, N * -> N M ...'"
    return f"N C ..., {_filters(node)} *, {_filters(node)} -> N M ...'"


@maps_axes("QLinearConv")
def _quantized_axes(node: Node) -> Axes:
    """Only without scales and zero points of filters."""
    values = [node.input_value(index) for index in (4, 5)]
    name = _filters(node) if all(rank_of_value(value) == 0 for value in values) else "filters"
    return f"N C ..., , , {name} *, , , , , {name} -> N M ...'"


def _filters(node: Node) -> str:
    return "M" if attribute(node, "group") == 1 else "filters"
