"""Gather, Scatter and related operators, which read or write elements and slices at computed indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from engine.errors import ModelError
from engine.ir import Node, Output, PartialShape, TensorType, ValueType, undefined
from engine.ops.axes import Axes, AxisMapping, along, axis_names, declare_axes, is_equal, maps_axes, rank_of_value
from engine.ops.axis_lengths import AxisLengths
from engine.ops.registry import attribute, get_op, infers
from engine.ops.result_size import Measure, item_size, measures
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import (
    OperatorSpec,
    check_choice,
    evaluates_with_spec,
    rank_of,
    refuse,
    refuse_rank,
    resolved_axis,
    specifies,
)
from engine.ops.suspect_values import Suspicion, is_outside, least, suspects
from engine.ops.tensors import Array
from engine.ops.traits import Moves, declare
from engine.startup import dataclass

REDUCTIONS: Final = ("none", "add", "mul", "min", "max")
"""How a scattering operator combines an update with the existing element; "none" replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSpec(OperatorSpec):
    """The common part of operators with data and indices into it."""

    @property
    def data(self) -> Output:
        """The data that the indices address."""
        return self.node.input_value(0)

    @property
    def indices(self) -> Output:
        """The indices; negative ones count from the end."""
        return self.node.input_value(1)


_FAR: Final = 1 << 40
"""A diagonal beyond any matrix."""


declare("Gather", "GatherElements", "GatherND", moves=Moves.REPETITION, addresses=1, keeps_zero=True, vectorized=True)
declare("ReverseSequence", moves=Moves.PERMUTATION, addresses=1, keeps_zero=True)
declare("Trilu", moves=Moves.SELECTION, fills=True, keeps_zero=True, vectorized=True)
declare("ScatterElements", "ScatterND", addresses=1, vectorized=True)
declare("TensorScatter", addresses=2)
declare("OneHot", inflates=True, vectorized=True)
declare_axes("Trilu", axes="... rows columns -> ... rows' columns'")
declare_axes("ScatterND", axes="... -> ...'")


@specifies("Gather", "GatherElements")
@dataclass(frozen=True, slots=True, kw_only=True)
class GatherSpec(IndexedSpec):
    """Gather takes slices along an axis, GatherElements one element for each index."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))

    def at(self, shape: Sequence[int]) -> AxisLengths:
        """The lengths around the axis of data of `shape`."""
        return AxisLengths.of(shape, self.axis)


@specifies("GatherND")
@dataclass(frozen=True, slots=True, kw_only=True)
class GatherNDSpec(IndexedSpec):
    """Slices of the data at tuples of indices; data and indices share the first `batch_dims` dimensions."""

    batch_dims: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        ranks = [rank for index in (0, 1) if (rank := rank_of(node, index)) is not None]
        found = given["batch_dims"]
        if found < 0 or any(found >= rank for rank in ranks):
            refuse(node, "batch_dims", found, f"0..{min(ranks) - 1}" if ranks else "0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterSpec(IndexedSpec):
    """The common part of scattering operators."""

    reduction: str

    @property
    def updates(self) -> Output:
        """The values to write, one for each index (ScatterElements) or one slice for each (ScatterND)."""
        return self.node.input_value(2)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "reduction", given["reduction"], REDUCTIONS)


@specifies("ScatterElements")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterElementsSpec(ScatterSpec):
    """Writes single elements along an axis."""

    axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        super().resolve(node, given)
        given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))


@specifies("ScatterND")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterNDSpec(ScatterSpec):
    """Writes slices at tuples of indices."""


@specifies("OneHot")
@dataclass(frozen=True, slots=True, kw_only=True)
class OneHotSpec(OperatorSpec):
    """Adds an axis to the output, at `axis`, with the on-value at the index and the off-value elsewhere."""

    axis: int

    @property
    def indices(self) -> Output:
        """The position of the on-value in each row of the result; negative ones count from the end."""
        return self.node.input_value(0)

    @property
    def values(self) -> Output:
        """The two values of the result: off, then on."""
        return self.node.input_value(2)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        rank = rank_of(node, 0)
        given["axis"] = resolved_axis(node, given["axis"], None if rank is None else rank + 1)

    def at(self, shape: Sequence[int]) -> AxisLengths:
        """The lengths around the new axis of an output of `shape`."""
        return AxisLengths.of(shape, self.axis)


@specifies("TensorScatter")
@dataclass(frozen=True, slots=True, kw_only=True)
class TensorScatterSpec(OperatorSpec):
    """Writes steps along `axis` into a cache; `mode` decides whether they wrap around at its end."""

    axis: int
    mode: str

    @property
    def past(self) -> Output:
        """The cache that the update is written into."""
        return self.node.input_value(0)

    @property
    def update(self) -> Output:
        """The steps to write into the cache, along axis `axis`."""
        return self.node.input_value(1)

    @property
    def write_indices(self) -> Output | None:
        """The position of the first new step of each sample; None is 0."""
        return self.input(2)

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "mode", given["mode"], ("linear", "circular"))
        rank = rank_of(node, 0)
        axis = resolved_axis(node, given["axis"], rank)
        if axis == 0:
            refuse(node, "axis", given["axis"], "any axis but 0, which counts the samples")
        given["axis"] = axis

    def at(self, shape: Sequence[int]) -> AxisLengths:
        """The lengths around the axis of a cache of `shape`."""
        return AxisLengths.of(shape, self.axis)


@infers("TensorScatter")
def _infer_tensor_scatter(node: Node) -> Sequence[ValueType]:
    """The type of the cache; the update determines the lengths that the cache leaves open, except along the axis."""
    check_inputs(node, get_op("TensorScatter"))
    past, update = tensor_type(node, 0), tensor_type(node, 1)
    if past.shape.rank.is_dynamic or update.shape.rank.is_dynamic:
        return (past,)
    if len(past.shape) != len(update.shape):
        fail(node, f"the cache and what is written must have equal ranks, got {past.shape} and {update.shape}")
    axis = TensorScatterSpec.of(node).axis
    dims = list(past.shape)
    for position, dim in enumerate(update.shape):
        if position == axis:
            continue
        if not dims[position].compatible(dim):
            fail(node, f"dimension {position} is {dims[position]} and {dim}; only axis {axis} may differ")
        dims[position] = dims[position].merge(dim)
    element_type = update.element_type if past.element_type is undefined else past.element_type
    return (TensorType(element_type, PartialShape(dims)),)


@specifies("ReverseSequence")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseSequenceSpec(OperatorSpec):
    """Reverses the first steps of each sample; the second input gives their number."""

    batch_axis: int
    time_axis: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        for name in ("batch_axis", "time_axis"):
            if given[name] not in (0, 1):
                refuse(node, name, given[name], "0 or 1")
        if given["batch_axis"] == given["time_axis"]:
            refuse(node, "time_axis", given["time_axis"], f"{1 - given['batch_axis']}, as batch_axis is the other")
        rank = rank_of(node, 0)
        if rank is not None and rank < 2:
            refuse_rank(node, 0, rank, "2 or more")


@specifies("Trilu")
@dataclass(frozen=True, slots=True, kw_only=True)
class TriluSpec(OperatorSpec):
    """The upper or lower triangle of matrices; the rest becomes 0."""

    upper: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        rank = rank_of(node, 0)
        if rank is not None and rank < 2:
            refuse_rank(node, 0, rank, "2 or more")

    def at(self, diagonal: ArrayLike | None) -> int:
        """The diagonal at the edge of the triangle; `diagonal` is the value of input 1, None if it is omitted."""
        return 0 if diagonal is None else max(-_FAR, min(_FAR, int(np.ravel(diagonal)[0])))


@evaluates_with_spec("Trilu")
def trilu(spec: TriluSpec, x: Array, diagonal: Array | None = None) -> Array:
    """The triangle from the diagonal on, or up to it (ONNX Trilu-14)."""
    return (np.triu if spec.upper else np.tril)(x, spec.at(diagonal))


@evaluates_with_spec("Gather")
def gather(spec: GatherSpec, data: Array, indices: Array) -> Array:
    """Slices of data along an axis (ONNX Gather-13)."""
    return np.take(data, _checked(indices, data.shape[spec.axis]), axis=spec.axis)


@evaluates_with_spec("GatherElements")
def gather_elements(spec: GatherSpec, data: Array, indices: Array) -> Array:
    """One element of data for each index; other axes may be shorter than the data's (ONNX GatherElements-13)."""
    return data[_grid(indices.shape, spec.axis, _checked(indices, data.shape[spec.axis]))]


@evaluates_with_spec("GatherND")
def gather_nd(spec: GatherNDSpec, data: Array, indices: Array) -> Array:
    """Slices of data addressed by the last axis of indices (ONNX GatherND-13)."""
    depth, batch_dims = indices.shape[-1], spec.batch_dims
    batch: Any = np.indices(indices.shape[:batch_dims], sparse=True) if batch_dims else ()
    extra = indices.ndim - 1 - batch_dims
    leading = [b.reshape(*b.shape, *(1,) * extra) for b in batch]
    places = [_checked(indices[..., i], data.shape[batch_dims + i]) for i in range(depth)]
    result: Array = data[(*leading, *places)]
    return result


@evaluates_with_spec("ScatterElements")
def scatter_elements(spec: ScatterElementsSpec, data: Array, indices: Array, updates: Array) -> Array:
    """data, with single elements replaced by or combined with updates (ONNX ScatterElements-18)."""
    place = _grid(indices.shape, spec.axis, _checked(indices, data.shape[spec.axis]))
    return _scatter(data, place, updates, spec.reduction)


@evaluates_with_spec("ScatterND")
def scatter_nd(spec: ScatterNDSpec, data: Array, indices: Array, updates: Array) -> Array:
    """data, with slices addressed by the last axis of indices replaced by or combined with updates
    (ONNX ScatterND-18)."""
    place = tuple(_checked(indices[..., i], data.shape[i]) for i in range(indices.shape[-1]))
    return _scatter(data, place, updates, spec.reduction)


@evaluates_with_spec("OneHot")
def one_hot(spec: OneHotSpec, indices: Array, depth: Array, values: Array) -> Array:
    """`values[1]` at the index along the new axis, otherwise `values[0]`, also for indices out of range (ONNX
    OneHot-11).
    """
    count = int(depth.reshape(-1)[0])
    # In a type that can represent the depth, which the type of the indices may not.
    wrapped = indices
    if indices.dtype.kind != "u":
        wide = indices.astype(np.int64 if indices.dtype.kind == "i" else np.float64)
        wrapped = np.where(wide < 0, wide + count, wide)
    place = spec.axis % (indices.ndim + 1)
    classes = np.arange(count).reshape(-1, *(1,) * (indices.ndim - place))
    result: Array = np.where(np.expand_dims(wrapped, place) == classes, values[1], values[0])
    return result.astype(values.dtype)


_UFUNCS: Final[dict[str, Any]] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _scatter(data: Array, place: Any, updates: Array, reduction: str) -> Array:
    result = data.copy()
    if reduction == "none":
        result[place] = updates
    else:
        _UFUNCS[reduction].at(result, place, updates)
    return result


def _grid(shape: tuple[int, ...], axis: int, index: Array) -> tuple[Array, ...]:
    """An index array for every axis of the data: `index` for `axis`, the element's own position for the others."""
    grid = list(np.indices(shape, sparse=True))
    grid[axis] = index
    return tuple(grid)


def _checked(indices: Array, length: int) -> Array:
    if indices.size and (indices.min() < -length or indices.max() >= length):
        raise ModelError(
            f"indices {indices.min()}..{indices.max()} are out of range for length {length}; "
            f"expected {-length}..{length - 1}"
        )
    return indices


# -- axes -------------------------------------------------------------------------------------------------


@maps_axes("Gather")
def _gathered_axes(node: Node) -> Axes:
    data, indices = (rank_of_value(node.input_value(index)) for index in range(2))
    if data is None or indices is None:
        return None
    axis, names = GatherSpec.of(node).axis, axis_names(data)
    places = tuple(f"index {each}" for each in range(indices))
    return AxisMapping((names, places), ((*names[:axis], *places, *names[axis + 1 :]),))


@maps_axes("GatherND")
def _axes_of_slices(node: Node) -> Axes:
    """Those of the batch, those of the indices but the last, and those of the data behind the indexed ones."""
    data, indices = (rank_of_value(node.input_value(index)) for index in range(2))
    if data is None or not indices or node.input_value(1).shape.dims[-1].is_dynamic:
        return None
    batch, depth = GatherNDSpec.of(node).batch_dims, node.input_value(1).shape.dims[-1].get_length()
    names = axis_names(data)
    shared = tuple(f"batch {each}" for each in range(batch))
    places = tuple(f"index {each}" for each in range(batch, indices - 1))
    kept = names[batch + depth :]
    return AxisMapping(
        ((*shared, *("",) * depth, *kept), (*shared, *places, "")),
        ((*shared, *places, *kept),),
    )


@maps_axes("GatherElements", "ScatterElements")
def _axes_of_elements(node: Node) -> Axes:
    """Only if the indices are as long as the data: other rows are not read, or not written."""
    values = [value for value in node.input_values if value is not None and rank_of_value(value) is not None]
    if len(values) != node.num_inputs:
        return None
    is_gather = node.op_type == "GatherElements"
    axis = GatherSpec.of(node).axis if is_gather else ScatterElementsSpec.of(node).axis
    first, *others = [value.shape.dims for value in values]
    uneven = [at for at, dim in enumerate(first) if not all(is_equal(dim, dims[at]) for dims in others)]
    mapping = along(node, [axis, *uneven])
    return None if mapping is None else AxisMapping((mapping.inputs[0],) * node.num_inputs, mapping.outputs)


@maps_axes("ReverseSequence")
def _reversed_axes(node: Node) -> Axes:
    names = {attribute(node, "batch_axis"): "N", attribute(node, "time_axis"): "T"}
    first, second = names.get(0, ""), names.get(1, "")
    made = " ".join(name + "'" if name == "T" else name for name in (first, second))
    return f"{first} {second} ..., N -> {made} ..." if first and second else None


@maps_axes("OneHot")
def _new_axis(node: Node) -> Axes:
    rank = rank_of_value(node.input_value(0))
    if rank is None:
        return None
    names, axis = axis_names(rank), OneHotSpec.of(node).axis
    return AxisMapping((names, None, None), ((*names[:axis], "", *names[axis:]),))


# -- sizes ------------------------------------------------------------------------------------------------


@measures("OneHot")
def _size_of_one_hot(node: Node) -> Measure:
    item = item_size(node)
    return lambda inputs: item * int(inputs[0].size) * max(0, int(inputs[1].reshape(-1)[0]))


@measures("Gather")
def _size_of_gathered(node: Node) -> Measure:
    item, axis = item_size(node), node.attributes.get("axis", 0)

    def measure(inputs: Sequence[Any]) -> int:
        data, indices = inputs[:2]
        return item * (int(data.size) // max(1, int(data.shape[axis])) * int(indices.size))

    return measure


@measures("GatherND")
def _size_of_gathered_slices(node: Node) -> Measure:
    item = item_size(node)

    def measure(inputs: Sequence[Any]) -> int:
        data, indices = inputs
        depth = int(indices.shape[-1])
        return item * (int(indices.size) // max(1, depth) * int(math.prod(data.shape[depth:])))

    return measure


@suspects("ReverseSequence")
def _suspicion_of_lengths(node: Node) -> Suspicion:
    axis = attribute(node, "time_axis")
    return lambda inputs: is_outside(inputs[1], 0, inputs[0].shape[axis])


suspects("OneHot")(least(1, 0))
suspects("TensorScatter")(least(2, 0))
