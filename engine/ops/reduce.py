"""Reductions (Reduce*, ArgMax and ArgMin), and cumulative sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from engine.errors import InputError
from engine.ir import Constant, Node, Output, PartialShape, TensorType, ValueType, bf16, f16
from engine.ops.axes import Axes, AxisParameter, along, constant_axes, declare_parameter, maps_axes, rank_of_value
from engine.ops.axis_lengths import AxisLengths
from engine.ops.precision import truncated, widened
from engine.ops.reference import compile_onnx
from engine.ops.registry import Evaluator, compiles, get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import (
    OperatorSpec,
    evaluates_with_spec,
    rank_of,
    refuse_rank,
    resolved_axes,
    resolved_axis,
    specifies,
)
from engine.ops.tensors import Array
from engine.ops.traits import Growth, declare, imported_operators_with
from engine.startup import dataclass

_NOT_NEGATIVE: Final = (0.0, math.inf)


def _reduction(op_type: str, **facts: Any) -> None:
    declare(op_type, reduces=True, vectorized=True, **facts)


_reduction("ReduceL1", sums=True, keeps_zero=True, range=_NOT_NEGATIVE, growth=Growth.GROWS)
_reduction("ReduceL2", sums=True, keeps_zero=True, range=_NOT_NEGATIVE)
_reduction("ReduceLogSum", sums=True, growth=Growth.SHRINKS)
_reduction("ReduceLogSumExp", sums=True)
_reduction("ReduceMax", keeps_zero=True)
_reduction("ReduceMean", sums=True, keeps_zero=True)
_reduction("ReduceMin", keeps_zero=True)
_reduction("ReduceProd", keeps_zero=True, growth=Growth.GROWS)
_reduction("ReduceSum", sums=True, keeps_zero=True, growth=Growth.GROWS)
_reduction("ReduceSumSquare", sums=True, keeps_zero=True, range=_NOT_NEGATIVE, growth=Growth.GROWS)
declare("CumSum", accumulates=True, keeps_zero=True, growth=Growth.GROWS, vectorized=True)
declare("CumProd", growth=Growth.GROWS, vectorized=True)

_REDUCTIONS: Final = tuple(imported_operators_with(lambda traits: traits.reduces))


@specifies(*_REDUCTIONS)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceSpec(OperatorSpec):
    """A reduction over some axes, which have length 1 in the result with `keepdims`."""

    keepdims: bool
    noop_with_empty_axes: bool

    @property
    def data(self) -> Output:
        """Input 0, the tensor to reduce."""
        return self.node.input_value(0)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given.update({name: bool(value) for name, value in given.items()})

    def at(self, rank: int, axes: ArrayLike | None) -> tuple[int, ...]:
        """The reduced axes in ascending order; `axes` is the value of input 1, None if it is omitted.

        Raises `OperatorSpecError` for an axis out of range or given twice.
        """
        named = [] if axes is None else np.ravel(axes).tolist()
        if not named:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted(resolved_axes(self.node, named, rank)))


@specifies("ArgMax", "ArgMin")
@dataclass(frozen=True, slots=True, kw_only=True)
class ArgReduceSpec(OperatorSpec):
    """The index of the largest or smallest element along an axis: the first, or with `select_last_index` the last."""

    axis: int
    keepdims: bool
    select_last_index: bool

    @property
    def data(self) -> Output:
        """Input 0, the tensor whose largest or smallest elements are sought."""
        return self.node.input_value(0)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))

    def at(self, shape: Sequence[int]) -> AxisLengths:
        """The lengths around the axis of data of `shape`. Raises `InputError` if only the axis is empty."""
        lengths = AxisLengths.of(shape, self.axis)
        if not lengths.length and lengths.outer and lengths.inner:
            raise InputError(f"{self.node}: an input {list(shape)} is empty along axis {self.axis}")
        return lengths


@specifies("CumSum", "CumProd")
@dataclass(frozen=True, slots=True, kw_only=True)
class CumulativeSpec(OperatorSpec):
    """Cumulative sums or products; `exclusive` ones exclude the element itself, `reverse` ones start at the end."""

    exclusive: bool
    reverse: bool

    @property
    def data(self) -> Output:
        """Input 0, the tensor to accumulate along an axis."""
        return self.node.input_value(0)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if rank_of(node, 0) == 0:
            refuse_rank(node, 0, 0, "1 or more")
        given.update({name: bool(value) for name, value in given.items()})

    def at(self, shape: Sequence[int], axis: ArrayLike) -> AxisLengths:
        """The lengths around `axis`, the value of input 1, of data of `shape`.

        Raises `OperatorSpecError` for an axis out of range.
        """
        return AxisLengths.of(shape, resolved_axis(self.node, int(np.ravel(axis)[0]), len(shape)))


@infers(*_REDUCTIONS)
def _infer_reduction(node: Node) -> Sequence[ValueType] | None:
    """The rank that follows from the number of computed axes; ONNX's inference knows none then."""
    if not node.has_input(1):
        return None
    check_inputs(node, get_op(node.op_type))
    spec, data, known = ReduceSpec.of(node), tensor_type(node, 0), node.input_value(1).node
    if isinstance(known, Constant):
        if data.shape.rank.is_static:
            spec.at(len(data.shape), known.data)
        return None
    axes = tensor_type(node, 1).shape
    if data.shape.rank.is_dynamic:
        return (TensorType(data.element_type, PartialShape.dynamic()),)
    rank, is_counted = len(data.shape), axes.rank.is_static and len(axes) == 1 and axes[0].is_static
    count = axes[0].min if is_counted else None
    if count == 0 and spec.noop_with_empty_axes:
        return (data,)
    if spec.keepdims:
        return (TensorType(data.element_type, PartialShape([1] * rank if count == 0 else [None] * rank)),)
    if count is None:
        return (TensorType(data.element_type, PartialShape.dynamic()),)
    if count > rank:
        fail(node, f"there are {count} axes to reduce, but input 0 has {rank}")
    return (TensorType(data.element_type, PartialShape([None] * (rank - count if count else 0))),)


@evaluates_with_spec("ReduceLogSumExp")
def reduce_log_sum_exp(spec: ReduceSpec, x: Array, axes: Array | None = None) -> Array:
    """The logarithm of the sum of exponentials, including scalars and infinities (ONNX ReduceLogSumExp-28)."""
    wide, along = widened(x), spec.at(x.ndim, axes)
    largest = wide.max(axis=along, keepdims=True, initial=-np.inf)
    base = np.where(np.isinf(largest), wide.dtype.type(0), largest)
    powers = np.exp(wide - base).sum(axis=along, keepdims=True)
    result: Array = np.log(powers) + base
    return (result if spec.keepdims else result.squeeze(axis=along)).astype(x.dtype)


@compiles("ReduceL1", "ReduceLogSum", "ReduceProd", "ReduceSum", "ReduceSumSquare")
def _compile_reduction(node: Node) -> Evaluator:
    """Of f16 and bf16 in f32: numpy adds up in their own type, and a sum of ones ends at 2048 or 256."""
    run = compile_onnx(node)
    if node.output(0).element_type not in (f16, bf16):
        return run
    return lambda inputs: run([widened(inputs[0]), *inputs[1:]])


@compiles("ReduceMean", "ReduceL2")
def _compile_whole_reduction(node: Node) -> Evaluator:
    """Of integers, whose sum ONNX's reference takes in their own type, as if the result did not fit it."""
    if not node.output(0).element_type.is_integral:
        return _compile_reduction(node)
    spec, is_mean = ReduceSpec.of(node), node.op_type == "ReduceMean"

    def reduce(inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, axes = inputs[0], inputs[1] if len(inputs) > 1 else None
        along = spec.at(x.ndim, axes)
        if not along:
            return (x if is_mean else np.abs(x),)
        if not is_mean:
            squares = np.square(x.astype(np.float64)).sum(axis=along, keepdims=spec.keepdims)
            return (truncated(np.sqrt(squares), x.dtype),)
        count = math.prod(x.shape[axis] for axis in along)
        total = x.sum(axis=along, keepdims=spec.keepdims, dtype=np.uint64 if x.dtype.kind == "u" else np.int64)
        quotient = np.abs(total) // max(count, 1)
        return (np.where(total < 0, -quotient, quotient).astype(x.dtype),)

    return reduce


@evaluates_with_spec("CumSum")
def cum_sum(spec: CumulativeSpec, x: Array, axis: Array) -> Array:
    """Cumulative sums along an axis (ONNX CumSum-14)."""
    return _running(spec, np.add, 0, x, axis)


@evaluates_with_spec("CumProd")
def cum_prod(spec: CumulativeSpec, x: Array, axis: Array) -> Array:
    """Cumulative products along an axis (ONNX CumProd-26)."""
    return _running(spec, np.multiply, 1, x, axis)


def _running(spec: CumulativeSpec, ufunc: Any, neutral: int, x: Array, axis: Array) -> Array:
    """Of f16 and bf16 in f32, each result rounded once: in f16, a running sum of ones would end at 2048."""
    lengths = spec.at(x.shape, axis)
    dtype = np.float32 if x.dtype.kind not in "iu" and x.dtype != np.float64 else x.dtype
    data = x.astype(dtype, copy=False).reshape(lengths)
    if spec.reverse:
        data = data[:, ::-1]
    if spec.exclusive and lengths.length:
        first = np.full((lengths.outer, 1, lengths.inner), neutral, data.dtype)
        data = np.concatenate([first, data[:, :-1]], axis=1)
    result = ufunc.accumulate(data, axis=1, dtype=dtype).astype(x.dtype, copy=False)
    return np.ascontiguousarray(result[:, ::-1] if spec.reverse else result).reshape(x.shape)


# -- axes -------------------------------------------------------------------------------------------------

declare_parameter(*_REDUCTIONS, parameter=AxisParameter(axes=1))


@maps_axes(*_REDUCTIONS)
def _reduced_axes(node: Node) -> Axes:
    spec, rank, axes = ReduceSpec.of(node), rank_of_value(node.input_value(0)), constant_axes(node, 1)
    if rank is None or (node.has_input(1) and axes is None):
        return None
    return along(node, spec.at(rank, axes), keeps=spec.keepdims)


@maps_axes("ArgMax", "ArgMin")
def _searched_axes(node: Node) -> Axes:
    spec = ArgReduceSpec.of(node)
    return along(node, [spec.axis], keeps=spec.keepdims)


@maps_axes("CumSum", "CumProd")
def _accumulated_axes(node: Node) -> Axes:
    return along(node, constant_axes(node, 1))
