"""Operators that move data: type rules where bounds and symbols must survive; evaluation of Flatten."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ir import (
    Constant,
    Dimension,
    Node,
    PartialShape,
    TensorType,
    ValueType,
    as_dimension,
    as_output,
    undefined,
)
from engine.ops.registry import attribute, evaluates, get_op, infers
from engine.ops.rules import check_inputs, fail, normalize_axis, sum_dims, tensor_type
from engine.ops.tensors import Array


@infers("Transpose")
def _infer_transpose(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Transpose"))
    data = tensor_type(node, 0)
    perm = attribute(node, "perm")
    if data.shape.rank.is_dynamic:
        return (TensorType(data.element_type, PartialShape.dynamic(None if perm is None else len(perm))),)
    dims = data.shape.dims
    if perm is None:
        return (TensorType(data.element_type, PartialShape(dims[::-1])),)
    if sorted(perm) != list(range(len(dims))):
        fail(node, f"perm {list(perm)} is no permutation of the {len(dims)} axes of input 0")
    return (TensorType(data.element_type, PartialShape([dims[axis] for axis in perm])),)


@infers("Reshape")
def _infer_reshape(node: Node) -> Sequence[ValueType]:
    """ONNX does not compare the numbers of elements."""
    check_inputs(node, get_op("Reshape"))
    data, wanted = tensor_type(node, 0), tensor_type(node, 1).shape
    source = node.input_value(1).node
    if not isinstance(source, Constant):
        rank = wanted[0].min if wanted.rank.is_static and len(wanted) == 1 and wanted[0].is_static else None
        return (TensorType(data.element_type, PartialShape.dynamic(rank)),)
    values = [int(v) for v in source.data.reshape(-1)]
    if min(values, default=0) < -1 or values.count(-1) > 1:
        fail(node, f"shape {values} may hold -1 once, and no other negative length")
    known = list(data.shape.dims) if data.shape.rank.is_static else None
    dims = [_reshaped_dim(node, known, index, value) for index, value in enumerate(values)]
    if known is not None:
        _balance(node, known, dims, values)
    return (TensorType(data.element_type, PartialShape(dims)),)


def _reshaped_dim(node: Node, known: list[Dimension] | None, index: int, value: int) -> Dimension | None:
    if value == -1 or (value == 0 and attribute(node, "allowzero") == 0 and known is None):
        return None
    if value or attribute(node, "allowzero"):
        return as_dimension(value)
    assert known is not None
    if index >= len(known):
        fail(node, f"the 0 at place {index} of the shape copies dimension {index} of input 0, which it does not have")
    return known[index]


def _balance(node: Node, known: list[Dimension], dims: list[Dimension | None], values: list[int]) -> None:
    """Compute the dimension given as -1 from what the others leave; without one, compare the numbers of elements."""
    taken, left = [dim for dim in dims if dim is not None], list(known)
    for dim in list(taken):
        if dim.is_dynamic and dim in left:  # copied, so that it cancels whatever its length
            left.remove(dim)
            taken.remove(dim)
    if any(dim.is_dynamic for dim in taken):
        return
    divisor = prod(dim.min for dim in taken)
    fixed = prod(dim.min for dim in left if dim.is_static)
    free = [dim for dim in left if dim.is_dynamic]
    if -1 not in values:
        if not free and fixed != divisor:
            fail(node, f"{fixed} elements do not fill shape {values}")
        return
    place = values.index(-1)
    if divisor == 0:
        return
    if not free:
        if fixed % divisor:
            fail(node, f"{fixed} elements cannot be divided by the {divisor} of shape {values}")
        dims[place] = as_dimension(fixed // divisor)
    elif len(free) == 1 and fixed == divisor:
        dims[place] = free[0]
    else:
        dims[place] = Dimension.at_least(-(-fixed * prod(dim.min for dim in free) // divisor))


@infers("Concat")
def _infer_concat(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Concat"))
    types = [tensor_type(node, index) for index in range(node.num_inputs)]
    element_type = next((t.element_type for t in types if t.element_type is not undefined), undefined)
    ranks = {len(t.shape) for t in types if t.shape.rank.is_static}
    if len(ranks) > 1:
        fail(node, f"all inputs must have one rank, got ranks {sorted(ranks)}")
    if not ranks:
        return (TensorType(element_type, PartialShape.dynamic()),)
    rank = ranks.pop()
    axis = normalize_axis(node, attribute(node, "axis"), rank)
    shapes = [t.shape if t.shape.rank.is_static else PartialShape.dynamic(rank) for t in types]
    dims = [_common_dim(node, shapes, position) for position in range(rank)]
    dims[axis] = sum_dims([shape[axis] for shape in shapes])
    for position in range(rank):
        if position != axis and dims[position] is None:
            lengths = [str(shape[position]) for shape in shapes]
            fail(node, f"dimension {position} differs between the inputs ({', '.join(lengths)}); only axis {axis} may")
    return (TensorType(element_type, PartialShape(dims)),)


def _common_dim(node: Node, shapes: Sequence[PartialShape], position: int) -> Dimension | None:
    dim = shapes[0][position]
    for shape in shapes[1:]:
        if not dim.compatible(shape[position]):
            return None
        dim = dim.merge(shape[position])
    return dim


def _count_split_outputs(inputs: Sequence[Any], attributes: dict[str, Any]) -> int:
    if "num_outputs" in attributes:
        return int(attributes["num_outputs"])
    if len(inputs) > 1:
        source = as_output(inputs[1])
        if isinstance(source.node, Constant):
            return source.node.data.size
        if source.shape.is_static:
            return source.shape.size()
    raise ModelError("Split: the number of outputs is not known; give num_outputs, or sizes whose number is known")


get_op("Split").count_outputs = _count_split_outputs


@evaluates("Flatten")
def flatten(data: Array, *, axis: int) -> Array:
    """Two dimensions, also of an empty tensor (ONNX Flatten-13)."""
    at = axis if axis >= 0 else axis + data.ndim
    return data.reshape(prod(data.shape[:at]), prod(data.shape[at:]))


@evaluates("Split")
def split(data: Array, sizes: Array | None = None, *, axis: int, num_outputs: int) -> tuple[Array, ...]:
    """Parts of data along an axis: of the given sizes, or of one size, the last one smaller (ONNX Split-18)."""
    length = data.shape[axis]
    if sizes is None:
        step = -(-length // num_outputs)
        ends = [min(step * (index + 1), length) for index in range(num_outputs)]
    else:
        if sizes.size != num_outputs or sizes.min(initial=0) < 0 or sizes.sum() != length:
            raise ModelError(f"sizes {sizes.tolist()} do not divide length {length} into {num_outputs} parts")
        ends = np.cumsum(sizes.reshape(-1)).tolist()
    return tuple(np.split(data, ends[:-1], axis=axis))


@evaluates("Tile")
def tile(data: Array, repeats: Array) -> Array:
    """data repeated along each axis (ONNX Tile-13)."""
    if repeats.size != data.ndim:
        raise ModelError(f"{repeats.size} repeats do not fit {data.ndim} axes; expected one an axis")
    return np.tile(data, repeats.reshape(-1))
