"""Reshape, Flatten and Dropout: specs, types and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from engine.ir import Constant, Dimension, Node, PartialShape, TensorType, ValueType, as_dimension
from engine.ops.axes import (
    Axes,
    AxisMapping,
    axis_names,
    constant_axes,
    declare_axes,
    is_equal,
    maps_axes,
    rank_of_value,
)
from engine.ops.registry import evaluates, get_op, infers
from engine.ops.result_size import Measure, item_size, measures, numbers, size_of_broadcast
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, evaluates_with_spec, rank_of, refuse, specifies
from engine.ops.suspect_values import Suspicion, given, least, suspects
from engine.ops.tensors import Array
from engine.ops.traits import Moves, declare
from engine.startup import dataclass

declare("Reshape", "Flatten", "Squeeze", "Unsqueeze", moves=Moves.VIEW, keeps_zero=True, vectorized=True)
declare("Expand", moves=Moves.REPETITION, keeps_zero=True, inflates=True, vectorized=True)
declare("Dropout", random=True, vectorized=True)
declare_axes("Dropout", axes="... -> ..., ...")
declare_axes("Expand", axes="... -> ...")


@specifies("Reshape")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReshapeSpec(OperatorSpec):
    """Reshape (ONNX Reshape-25). `allowzero`: a 0 in the shape is a length of 0 instead of a copy of the input's."""

    allowzero: bool


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
        fail(node, f"shape {values} may hold one -1 and no other negative length")
    known = list(data.shape.dims) if data.shape.rank.is_static else None
    allowzero = ReshapeSpec.of(node).allowzero
    dims = [_reshaped_dim(node, known, index, value, allowzero) for index, value in enumerate(values)]
    if known is not None:
        _balance(node, known, dims, values, () if allowzero else np.flatnonzero(np.array(values) == 0).tolist())
    return (TensorType(data.element_type, PartialShape(dims)),)


def _reshaped_dim(
    node: Node, known: list[Dimension] | None, index: int, value: int, allowzero: bool
) -> Dimension | None:
    if value == -1 or (value == 0 and not allowzero and known is None):
        return None
    if value or allowzero:
        return as_dimension(value)
    assert known is not None
    if index >= len(known):
        fail(node, f"the 0 at place {index} of the shape copies dimension {index} of input 0, which it does not have")
    return known[index]


def _balance(
    node: Node, known: list[Dimension], dims: list[Dimension | None], values: list[int], copied: Sequence[int]
) -> None:
    """Compute the dimension given as -1 from the others; without one, compare the numbers of elements."""
    if -1 not in values:
        copied = [
            index for index in copied if known[index].is_dynamic
        ]  # any number of them makes no elements, if one is 0
    taken = [dim for index, dim in enumerate(dims) if dim is not None and index not in copied]
    left = [dim for index, dim in enumerate(known) if index not in copied]  # copied ones cancel out, even if they are 0
    divisor = prod(dim.min for dim in taken)
    fixed = prod(dim.min for dim in left if dim.is_static)
    free = [dim for dim in left if dim.is_dynamic]
    if -1 not in values:
        if not free and fixed != divisor:
            fail(node, f"{fixed} elements do not fill shape {values}")
        return
    place = values.index(-1)
    if divisor == 0:
        fail(node, f"the length for the -1 of shape {values} is not determined, since another one is 0")
    if not free:
        if fixed % divisor:
            fail(node, f"{fixed} elements cannot be divided by the {divisor} of shape {values}")
        dims[place] = as_dimension(fixed // divisor)
    elif len(free) == 1 and fixed == divisor:
        dims[place] = free[0]
    else:
        dims[place] = Dimension.at_least(-(-fixed * prod(dim.min for dim in free) // divisor))


@evaluates_with_spec("Reshape")
def _reshape(spec: ReshapeSpec, data: Array, shape: Array) -> Array:
    """The elements of `data` in another shape (ONNX Reshape-25).

    Lengths that are copied have no part in the one given as -1, so that it is also known for no elements.
    """
    lengths = shape.reshape(-1).tolist()
    copied = set() if spec.allowzero else {index for index, length in enumerate(lengths) if length == 0}
    if lengths.count(-1) == 1:
        rest = prod(length for index, length in enumerate(data.shape) if index not in copied)
        divisor = prod(length for index, length in enumerate(lengths) if index not in copied and length != -1)
        if divisor > 0:
            lengths[lengths.index(-1)] = rest // divisor
    return data.reshape([data.shape[index] if index in copied else length for index, length in enumerate(lengths)])


@specifies("Flatten")
@dataclass(frozen=True, slots=True, kw_only=True)
class FlattenSpec(OperatorSpec):
    """Flatten (ONNX Flatten-25) to two axes: those before `axis`, and those from it on. `axis` may equal the rank."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        rank, axis = rank_of(node, 0), given["axis"]
        if rank is None:
            return
        if not -rank <= axis <= rank:
            refuse(node, "axis", axis, f"{-rank}..{rank}, as the rank is {rank}")
        given["axis"] = axis + rank if axis < 0 else axis

    def at(self, shape: Sequence[int]) -> tuple[int, int]:
        """The shape of the result: the products of the lengths before `axis` and from it on."""
        axis = self.axis + len(shape) if self.axis < 0 else self.axis
        return prod(shape[:axis]), prod(shape[axis:])


@evaluates_with_spec("Flatten")
def _flatten(spec: FlattenSpec, data: Array) -> Array:
    return data.reshape(spec.at(data.shape))


@evaluates("Expand")
def expand(data: Array, shape: Array) -> Array:
    """`data` broadcast with the shape (ONNX Expand-13), which takes no memory but the result's."""
    target = np.broadcast_shapes(data.shape, tuple(shape.tolist()))
    return np.ascontiguousarray(np.broadcast_to(data, target)).reshape(target)


@specifies("Dropout")
@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutSpec(OperatorSpec):
    """Dropout: an Identity for inference, unless `training_mode` is true (ONNX Dropout-22)."""

    seed: int | None

    @property
    def may_train(self) -> bool:
        """Whether input `training_mode` is given, so that elements may be dropped; otherwise it is an Identity."""
        return self.node.has_input(2)


# -- axes -------------------------------------------------------------------------------------------------


@maps_axes("Reshape", "Flatten")
def _viewed_axes(node: Node) -> Axes:
    """The first and the last axes that are equal; all others may be divided and joined."""
    ranks = rank_of_value(node.input_value(0)), rank_of_value(node.output(0))
    if None in ranks:
        return None
    source, result = node.input_value(0).shape.dims, node.output(0).shape.dims
    first = _equal(source, result)
    last = _equal(source[first:][::-1], result[first:][::-1])
    if first + last < min(len(source), len(result)) and not first:
        return None
    names = [f"first {axis}" for axis in range(first)], [f"last {axis}" for axis in range(last)]
    inputs, outputs = ((*names[0], *("",) * (len(dims) - first - last), *names[1]) for dims in (source, result))
    return AxisMapping((inputs, *(None,) * (node.num_inputs - 1)), (outputs,))


def _equal(a: Sequence[Dimension], b: Sequence[Dimension]) -> int:
    """How many of the first lengths of two shapes are known to be equal."""
    count = 0
    for left, right in zip(a, b, strict=False):
        if not is_equal(left, right):
            break
        count += 1
    return count


@maps_axes("Squeeze", "Unsqueeze")
def _narrowed_axes(node: Node) -> Axes:
    """Axes of length 1 that go or come."""
    rank, axes = rank_of_value(node.input_value(0)), constant_axes(node, 1)
    made = rank_of_value(node.output(0))
    if rank is None or made is None or axes is None:
        return None
    longer = {axis % max(rank, made) for axis in axes}
    names = axis_names(min(rank, made))
    rest = iter(names)
    full = tuple("" if axis in longer else next(rest) for axis in range(max(rank, made)))
    return AxisMapping(((full if rank > made else names), None), (names if rank > made else full,))


@measures("Expand")
def _size_of_expanded(node: Node) -> Measure:
    item = item_size(node)
    return lambda inputs: item * size_of_broadcast([inputs[0].shape, tuple(numbers(inputs[1]))])


@suspects("Dropout")
def _suspicion_of_ratio(node: Node) -> Suspicion:
    def is_suspect(inputs: Sequence[Any]) -> bool:
        ratio, training = given(inputs, 1), given(inputs, 2)
        return ratio is not None and training is not None and bool(training) and not 0 <= float(ratio) < 1

    return is_suspect


suspects("Reshape")(least(1, -1))
