"""Slice, Split, Concat and Tile: specs, types and evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError, OperatorSpecError
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
from engine.ops.axes import (
    Axes,
    AxisMapping,
    AxisParameter,
    along,
    constant_axes,
    declare_parameter,
    is_equal,
    maps_axes,
    rank_of_value,
)
from engine.ops.registry import counts_outputs, get_op, infers
from engine.ops.result_size import Measure, item_size, measures, numbers
from engine.ops.rules import check_inputs, fail, known_vector, sum_dims, tensor_type
from engine.ops.spec import (
    OperatorSpec,
    evaluates_with_spec,
    rank_of,
    refuse,
    resolved_axes,
    resolved_axis,
    specifies,
)
from engine.ops.tensors import Array
from engine.ops.traits import EVERY, Moves, declare
from engine.startup import dataclass

_ENDLESS: Final = (1 << 31) - 1  # such an end, or a larger one, is written for "to the end of the axis"

# -- Slice ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """Elements start, start + step, ... of one axis, `count` of them; the step may be negative."""

    axis: int
    start: int
    count: int
    step: int = 1


declare("Slice", "Split", moves=Moves.SELECTION, keeps_zero=True, vectorized=True)


@specifies("Slice")
@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSpec(OperatorSpec):
    """Slice (ONNX Slice-13), whose bounds are inputs."""

    def at(
        self, shape: Sequence[int], starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
    ) -> tuple[AxisSlice, ...]:
        """The elements that are selected from an input of `shape`, for each given axis; other axes are not sliced.

        Starts and ends out of range are clamped. Raises `OperatorSpecError` if the bounds do not fit each other
        or the shape.
        """
        first, last = starts.reshape(-1).tolist(), ends.reshape(-1).tolist()
        names = list(range(len(first))) if axes is None else axes.reshape(-1).tolist()
        strides = [1] * len(first) if steps is None else steps.reshape(-1).tolist()
        if not len(first) == len(last) == len(names) == len(strides):
            lengths = f"{len(first)} starts, {len(last)} ends, {len(names)} axes and {len(strides)} steps"
            raise OperatorSpecError(f"{self.node}: {lengths}; allowed: equal numbers")
        if 0 in strides:
            raise OperatorSpecError(f"{self.node}: steps are {strides}; allowed: any number but 0")
        return tuple(
            _taken(axis, shape[axis], start, end, step)
            for axis, start, end, step in zip(
                resolved_axes(self.node, names, len(shape)), first, last, strides, strict=True
            )
        )


def _taken(axis: int, length: int, start: int, end: int, step: int) -> AxisSlice:
    # With a negative step, ONNX clamps a start before the first element to it; Python would select nothing.
    taken = range(length)[slice(max(start, -length) if step < 0 else start, end, step)]
    return AxisSlice(axis, taken.start if len(taken) else 0, len(taken), step)


@infers("Slice")
def _infer_slice(node: Node) -> Sequence[ValueType]:
    """ONNX ignores axes and steps whose values or number it does not know."""
    check_inputs(node, get_op("Slice"))
    data, spec = tensor_type(node, 0), SliceSpec.of(node)
    if data.shape.rank.is_dynamic:
        return (data,)
    starts, ends, axes, steps = (known_vector(node, index) for index in range(1, 5))
    dims = list(data.shape.dims)
    count = _slice_count(node)
    if axes is None and not node.has_input(3) and count is not None:
        axes = list(range(count))
    if axes is None:
        # Any axis may be sliced, unless there are no slices.
        return (data if count == 0 else TensorType(data.element_type, PartialShape(map(_part_of, dims))),)
    if steps is None and not node.has_input(4):
        steps = [1] * len(axes)
    if steps is not None and 0 in steps:
        fail(node, f"steps are {steps}; expected any number but 0")
    resolved = resolved_axes(spec.node, axes, len(dims))
    for place, axis in enumerate(resolved):
        bounds = [None if values is None else values[place] for values in (starts, ends, steps)]
        dims[axis] = _sliced_dim(dims[axis], *bounds)
    return (TensorType(data.element_type, PartialShape(dims)),)


def _slice_count(node: Node) -> int | None:
    """The number of slices, as far as the shapes of the inputs determine it. Fails if they contradict each other."""
    shapes = [tensor_type(node, index).shape for index in range(1, node.num_inputs) if node.has_input(index)]
    lengths = {shape.size() for shape in shapes if shape.is_static}
    if len(lengths) > 1:
        fail(node, f"starts, ends, axes and steps must have equal lengths, got {sorted(lengths)}")
    return lengths.pop() if lengths else None


def _part_of(dim: Dimension) -> Dimension:
    return Dimension.at_least(0) if dim.max is None else as_dimension(0) if dim.max == 0 else Dimension(0, dim.max)


def _sliced_dim(dim: Dimension, start: int | None, end: int | None, step: int | None) -> Dimension:
    if start is None or end is None or step is None:
        return _part_of(dim)
    if start == 0 and step == 1 and end >= (_ENDLESS if dim.max is None else dim.max):
        return dim
    if dim.is_static:
        return as_dimension(_taken(0, dim.min, start, end, step).count)
    is_tail = start < 0 and end >= _ENDLESS
    if step < 0 or not (start >= 0 or is_tail):
        return _part_of(dim)
    # The longer the axis, the more elements are taken, up to those between start and end.
    longest = dim.max
    if longest is None:
        longest = -start if is_tail else end if 0 <= end < _ENDLESS else None
    low = _taken(0, dim.min, start, end, step).count
    if longest is None:
        return Dimension.at_least(low)
    high = _taken(0, longest, start, end, step).count
    return as_dimension(low) if low == high else Dimension(low, high)


@evaluates_with_spec("Slice")
def _slice(
    spec: SliceSpec, data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    cut = [slice(None)] * data.ndim
    for each in spec.at(data.shape, starts, ends, axes, steps):
        end = each.start + each.count * each.step
        cut[each.axis] = slice(each.start, None if end < 0 else end, each.step) if each.count else slice(0, 0)
    return data[tuple(cut)]


# -- Split ------------------------------------------------------------------------------------------------


@specifies("Split")
@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSpec(OperatorSpec):
    """Split (ONNX Split-18). `num_outputs` is None if sizes are given."""

    axis: int
    num_outputs: int | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))
        if given["num_outputs"] is not None and given["num_outputs"] < 1:
            refuse(node, "num_outputs", given["num_outputs"], "1 or more")

    def has_parts(self, length: int) -> bool:
        """Whether the last part of an axis of `length`, which the others leave, is 0 or more."""
        others = self.node.num_outputs - 1
        return -(-length // (others + 1)) * others <= length

    def at(self, shape: Sequence[int], sizes: Array | None = None) -> tuple[AxisSlice, ...]:
        """The part of an input of `shape` for each output: of the given sizes, or of equal ones, the last of which may
        be smaller.

        Raises `OperatorSpecError` if the sizes do not fit the axis or the outputs, or the last one were negative.
        """
        axis = resolved_axis(self.node, self.axis, len(shape))
        length, count = shape[axis], self.node.num_outputs
        if sizes is None:
            step = -(-length // count)
            if not self.has_parts(length):
                raise OperatorSpecError(
                    f"{self.node}: {count} parts of length {length} would be {step} each, and the last one negative"
                )
            lengths = [min(step, length - step * index) for index in range(count)]
        else:
            lengths = sizes.reshape(-1).tolist()
            if len(lengths) != count or min(lengths, default=0) < 0 or sum(lengths) != length:
                raise OperatorSpecError(
                    f"{self.node}: sizes {lengths} do not divide length {length} into {count} parts"
                )
        starts = np.cumsum([0, *lengths]).tolist()
        return tuple(AxisSlice(axis, start, size) for start, size in zip(starts, lengths, strict=False))


@evaluates_with_spec("Split")
def _split(spec: SplitSpec, data: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    parts = spec.at(data.shape, sizes)
    return tuple(data[(slice(None),) * each.axis + (slice(each.start, each.start + each.count),)] for each in parts)


@counts_outputs("Split")
def _count_split_outputs(inputs: Sequence[Any], attributes: dict[str, Any]) -> int:
    if "num_outputs" in attributes:
        return int(attributes["num_outputs"])
    if len(inputs) > 1:
        source = as_output(inputs[1])
        if isinstance(source.node, Constant):
            return source.node.data.size
        if source.shape.is_static:
            return source.shape.size()
    raise ModelError("Split: the number of outputs is not known; pass num_outputs, or a known number of sizes")


# -- Concat -----------------------------------------------------------------------------------------------


declare("Concat", data=EVERY, moves=Moves.PERMUTATION, keeps_zero=True, vectorized=True)


@specifies("Concat")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatSpec(OperatorSpec):
    """Concat (ONNX Concat-13). `axis` may be negative while no input's rank is known."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        ranks = (rank_of(node, index) for index in range(node.num_inputs) if node.has_input(index))
        given["axis"] = resolved_axis(node, given["axis"], next((rank for rank in ranks if rank is not None), None))

    def at(self, lengths: Sequence[int]) -> tuple[AxisSlice, ...]:
        """The part of the result for each input; `lengths` are the lengths of the inputs along the axis."""
        starts = np.cumsum([0, *lengths]).tolist()
        return tuple(AxisSlice(self.axis, start, size) for start, size in zip(starts, lengths, strict=False))


@infers("Concat")
def _infer_concat(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Concat"))
    types = [tensor_type(node, index) for index in range(node.num_inputs)]
    element_type = next((t.element_type for t in types if t.element_type is not undefined), undefined)
    ranks = {len(t.shape) for t in types if t.shape.rank.is_static}
    if len(ranks) > 1:
        fail(node, f"all inputs must have equal ranks, got ranks {sorted(ranks)}")
    if not ranks:
        return (TensorType(element_type, PartialShape.dynamic()),)
    rank = ranks.pop()
    axis = ConcatSpec.of(node).axis
    shapes = [t.shape if t.shape.rank.is_static else PartialShape.dynamic(rank) for t in types]
    if all(shape.is_static for shape in shapes):
        columns = list(zip(*(shape.get_shape() for shape in shapes), strict=True))
        dims = [as_dimension(column[0]) if len({*column}) == 1 else None for column in columns]
    else:
        dims = [_common_dim(shapes, position) for position in range(rank)]
    dims[axis] = sum_dims([shape[axis] for shape in shapes])
    for position in range(rank):
        if position != axis and dims[position] is None:
            lengths = [str(shape[position]) for shape in shapes]
            fail(node, f"dimension {position} differs between the inputs ({', '.join(lengths)}); only axis {axis} may")
    return (TensorType(element_type, PartialShape(dims)),)


def _common_dim(shapes: Sequence[PartialShape], position: int) -> Dimension | None:
    dim = shapes[0][position]
    for shape in shapes[1:]:
        if not dim.compatible(shape[position]):
            return None
        dim = dim.merge(shape[position])
    return dim


# -- Tile -------------------------------------------------------------------------------------------------


declare("Tile", moves=Moves.REPETITION, keeps_zero=True, inflates=True, vectorized=True)


@specifies("Tile")
@dataclass(frozen=True, slots=True, kw_only=True)
class TileSpec(OperatorSpec):
    """Tile, whose repeats are input 1 (ONNX Tile-13)."""

    def at(self, shape: Sequence[int], repeats: Array) -> tuple[int, ...]:
        """The repetitions of each axis. Raises `OperatorSpecError` if the number of repeats is not the rank."""
        found = tuple(repeats.reshape(-1).tolist())
        if len(found) != len(shape):
            raise OperatorSpecError(
                f"{self.node}: {len(found)} repeats do not fit {len(shape)} axes; expected one per axis"
            )
        if min(found, default=0) < 0:
            raise OperatorSpecError(f"{self.node}: repeats are {list(found)}; allowed: 0 or more")
        return found


@evaluates_with_spec("Tile")
def _tile(spec: TileSpec, data: Array, repeats: Array) -> Array:
    return np.tile(data, spec.at(data.shape, repeats))


# -- axes -------------------------------------------------------------------------------------------------

declare_parameter("Slice", parameter=AxisParameter(axes=3))
declare_parameter("Concat", "Split", parameter=AxisParameter(attribute="axis"))


@maps_axes("Slice")
def _sliced_axes(node: Node) -> Axes:
    """An axis that keeps its length is kept as a whole, if the step is positive."""
    rank, starts, steps = rank_of_value(node.input_value(0)), constant_axes(node, 1), constant_axes(node, 4)
    axes = constant_axes(node, 3)
    if axes is None and not node.has_input(3) and starts is not None:
        axes = list(range(len(starts)))
    if rank is None or axes is None or (node.has_input(4) and steps is None):
        return None
    lengths = zip(node.input_value(0).shape.dims, node.output(0).shape.dims, strict=True)
    whole = [is_equal(before, after) for before, after in lengths]
    forward = steps is None or min(steps, default=1) > 0
    return along(node, [axis for axis in axes if not (forward and whole[axis])])


@maps_axes("Split")
def _split_axes(node: Node) -> Axes:
    return along(node, [SplitSpec.of(node).axis])


@maps_axes("Concat")
def _joined_axes(node: Node) -> Axes:
    found = along(node, [ConcatSpec.of(node).axis])
    return None if found is None else AxisMapping((found.inputs[0],) * node.num_inputs, found.outputs)


@maps_axes("Tile")
def _repeated_axes(node: Node) -> Axes:
    repeats = constant_axes(node, 1)
    return None if repeats is None else along(node, [axis for axis, count in enumerate(repeats) if count != 1])


# -- sizes ------------------------------------------------------------------------------------------------


@measures("Tile")
def _size_of_tiled(node: Node) -> Measure:
    item = item_size(node)
    return lambda inputs: item * int(inputs[0].size) * math.prod(numbers(inputs[1]))


@measures("Concat")
def _size_of_joined(node: Node) -> Measure:
    item = item_size(node)
    return lambda inputs: item * sum(int(value.size) for value in inputs)
