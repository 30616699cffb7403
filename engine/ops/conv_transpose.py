"""ConvTranspose: its type rule and evaluation; the spec is `ConvSpec`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import Dimension, Node, PartialShape, TensorType, ValueType
from engine.ops.axes import declare_axes
from engine.ops.conv import ConvSpec
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import evaluates_with_spec
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.ops.windows import offsets

declare("ConvTranspose", product=(0, 1), inflates=True, vectorized=True)
declare_axes("ConvTranspose", axes="N C ... -> N M ...'")


@infers("ConvTranspose")
def _infer_conv_transpose(node: Node) -> Sequence[ValueType]:
    """Adds checks that ONNX lacks: of channels, and of padding that removes everything."""
    check_inputs(node, get_op("ConvTranspose"))
    spec = ConvSpec.of(node)
    data, weight = tensor_type(node, 0), tensor_type(node, 1)
    rank = next((len(t.shape) for t in (data, weight) if t.shape.rank.is_static), None)
    if rank is None:
        return (TensorType(data.element_type, PartialShape.dynamic()),)
    batch, channels = data.shape.dims[:2] if data.shape.rank.is_static else (None, None)
    out = None
    if weight.shape.rank.is_static:
        out = weight.shape[1].min * spec.group if weight.shape[1].is_static else None
        if channels is not None and not channels.compatible(weight.shape[0]):
            fail(node, f"X has {channels} channels, W takes {weight.shape[0]}")
    kernel = PartialShape(weight.shape.dims[2:]) if weight.shape.rank.is_static else PartialShape.dynamic(rank - 2)
    kernel = kernel if spec.kernel_shape is None else PartialShape(spec.kernel_shape)
    spatial: Sequence[int | None] = [None] * (rank - 2)
    if kernel.is_static and data.shape.rank.is_static:
        spatial = _transposed_dims(spec, data.shape.dims[2:], kernel.get_shape())
    return (TensorType(data.element_type, PartialShape([batch, out, *spatial])),)


def _transposed_dims(spec: ConvSpec, dims: Sequence[Dimension], kernel: Sequence[int]) -> Sequence[int | None]:
    if spec.output_shape is not None:
        return spec.output_shape
    window = spec.window(kernel)
    found: list[int | None] = []
    for axis, dim in enumerate(dims):
        if dim.is_dynamic:
            found.append(None)
            continue
        _, length = spec.transposed_axis(window, axis, dim.min)
        if length < 0:
            size = (dim.min - 1) * window.strides[axis] + window.reach(axis)
            pads = None if window.pads is None else window.pads[axis]
            fail(spec.node, f"pads {pads} remove more than the {size} positions of spatial dimension {axis}")
        found.append(length)
    return found


@evaluates_with_spec("ConvTranspose")
def conv_transpose(spec: ConvSpec, x: Array, w: Array, b: Array | None = None) -> Array:
    """Transposed convolution (ONNX ConvTranspose-22): x [N, C, ...], w [C, M/group, ...], b [M]."""
    g, group = spec.at(x.shape, w.shape), spec.group
    wide = np.float64 if x.dtype == np.float64 else np.float32
    channels, per_group = x.shape[1], w.shape[1]
    if channels != w.shape[0] or channels % group:
        raise ModelError(f"x of shape {x.shape} and w of shape {w.shape} do not fit group {group}")
    rows, places = per_group * math.prod(g.kernel), math.prod(g.inputs)
    weights = w.astype(wide, copy=False).reshape(group, channels // group, rows).swapaxes(1, 2)
    planes = x.astype(wide, copy=False).reshape(x.shape[0], group, channels // group, places)
    columns = np.matmul(weights, planes).reshape(x.shape[0], group * per_group, *g.kernel, *g.inputs)
    # Including the positions removed at the start and the end, and those added there, which are zeros.
    sizes = [max(0, cut) + n + max(0, rest) for cut, n, rest in zip(g.pads_begin, g.outputs, g.pads_end, strict=True)]
    full = np.zeros((x.shape[0], group * per_group, *sizes), dtype=wide)
    added: Any = (..., *(slice(max(0, -cut), None) for cut in g.pads_begin))
    for position, slices in offsets(g, g.inputs):
        source: Any = (slice(None), slice(None), *position)
        full[added][slices] += columns[source]
    inside: Any = (..., *(slice(max(0, cut), max(0, cut) + n) for cut, n in zip(g.pads_begin, g.outputs, strict=True)))
    result = full[inside]
    if b is not None:
        result = result + b.astype(wide, copy=False).reshape(-1, *(1,) * len(g.kernel))
    return np.ascontiguousarray(result.astype(x.dtype, copy=False))
