"""Operators that treat all channels alike and are linear over positions, such as Resize: read, rebuilt and priced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import numpy as np

from engine import ops
from engine.ir import Constant, Dimension, Node, Output
from engine.ops.gather import GatherSpec
from engine.ops.pad import PadSpec
from engine.ops.reduce import ReduceSpec
from engine.ops.slice import SliceSpec
from engine.ops.tensors import Array
from engine.ops.transpose import TransposeSpec
from engine.passes.common.channel_products import BYTE_COST, positions_of
from engine.passes.fusion import constant_data, dims_of, reshape_target, same_length, same_lengths
from engine.startup import dataclass

_EPSILON: Final = 1e-9
"""How far the sum of interpolation weights, in double precision, may be from 1."""


@dataclass(frozen=True, slots=True)
class Movement:
    """An operator that computes each position of a channel as a weighted sum of positions of the same channel.

    Lengths that are unknown are the same in the input and the result, and count as 1 in the numbers of positions.

    Attributes:
        node: the operator, which reads the moved tensor as its first input and has one result.
        source_axis: the axis of the channels in the input.
        axis: the axis of the channels in the result.
        sources: the number of positions in the input.
        positions: the number of positions in the result.
        taps: the number of multiply-adds for a position of the result; 0 for a copy.
        read: the number of positions that are read.
        keeps_constants: whether the weights of each position add to 1, so that a bias may be added before or after.
        is_free: whether no data is moved.
    """

    node: Node
    source_axis: int
    axis: int
    sources: int
    positions: int
    taps: int
    read: int
    keeps_constants: bool
    is_free: bool

    @classmethod
    def of(cls, node: Node, source_axis: int) -> Movement | None:
        """The movement by `node` of a tensor with channels at `source_axis`; None if it is not a movement."""
        rule = _RULES.get(node.op_type)
        if rule is None or node.domain or node.num_outputs != 1:
            return None
        x = node.input_value(0)
        source, result = dims_of(x), dims_of(node.output(0))
        if source is None or result is None or source_axis >= len(source) or isinstance(x.node, Constant):
            return None
        if any(dim.is_static and dim == 0 for dim in (*source, *result)):
            return None
        found = rule(node, source_axis, source)
        if found is None or not _same_unknown(source, result, found.touched):
            return None
        sources, positions = positions_of(x, source_axis), positions_of(node.output(0), found.axis)
        read = positions if found.selects else sources
        return cls(
            node, source_axis, found.axis, sources, positions, found.taps, read, found.keeps_constants, found.is_free
        )

    @classmethod
    def to(cls, value: Output, axis: int) -> Movement | None:
        """The movement whose result is `value`, with channels at `axis`; None if there is none."""
        if value.node.op_type not in _RULES or value.index:
            return None
        for source_axis in range(len(dims_of(value.node.input_value(0)) or ())):
            found = cls.of(value.node, source_axis)
            if found is not None and found.axis == axis:
                return found
        return None

    @property
    def x(self) -> Output:
        """The tensor whose elements the node moves: input 0."""
        return self.node.input_value(0)

    def cost(self, channels: int, item: int) -> float:
        """The cost for a number of channels of `item` bytes, in the unit of `ChannelProduct.cost`."""
        if self.is_free:
            return 0.0
        return channels * (self.positions * self.taps + BYTE_COST * item * (self.read + self.positions))

    def on(self, x: Output, channels: int) -> Node | None:
        """The same movement of a tensor with another number of channels; None if it cannot be expressed."""
        dims = list(dims_of(x) or ())
        dims[self.source_axis] = Dimension(channels)  # the type of `x` may not have it
        inputs = self.node.input_values[1:]
        if self.node.op_type == "Reshape":
            wanted = list(self.node.output(0).shape.dims)
            wanted[self.axis] = dims[self.source_axis]
            target = reshape_target(wanted, dims)
            return None if target is None else ops.Reshape(x, Constant(np.array(target, np.int64)))
        if self.node.op_type == "Resize" and (sizes := constant_data(_input(self.node, 3))) is not None:
            from engine.ops.resize import ResizeSpec  # with its family

            axes = ResizeSpec.of(self.node).axes
            assert axes is not None
            inputs[2] = Constant(np.where(np.equal(axes, self.source_axis), channels, sizes)).output(0)
        return self.node.clone_with_new_inputs([x, *inputs])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A rule's knowledge of an operator: see `Movement`.

    Attributes:
        touched: the axes of the input along which positions change.
        selects: whether only as many positions are read as there are in the result.
    """

    axis: int
    touched: frozenset[int]
    taps: int = 0
    selects: bool = False
    keeps_constants: bool = True
    is_free: bool = False


_Dims: TypeAlias = "tuple[Dimension, ...]"
_Rule: TypeAlias = "Callable[[Node, int, _Dims], _Found | None]"


def _lengths(dims: Iterable[Dimension]) -> list[int]:
    """The lengths, 1 for those that are unknown."""
    return [dim.get_length() if dim.is_static else 1 for dim in dims]


def _same_unknown(source: _Dims, result: _Dims, touched: frozenset[int]) -> bool:
    """True if no touched length is unknown, and as many lengths of the input and the result are."""
    if any(source[axis].is_dynamic for axis in touched):
        return False
    return sum(dim.is_dynamic for dim in source) == sum(dim.is_dynamic for dim in result)


def _input(node: Node, index: int) -> Output | None:
    return node.input_value(index) if node.has_input(index) else None


def _constants(node: Node, *indices: int) -> list[Array | None] | None:
    """The data of inputs, None for an omitted one; None if one of them is computed."""
    values = [_input(node, index) for index in indices]
    found = [constant_data(value) for value in values]
    if any(data is None and value is not None for data, value in zip(found, values, strict=True)):
        return None
    return found


def _resize(node: Node, axis: int, dims: _Dims) -> _Found | None:
    from engine.ops.resize import ResizeSpec

    spec, values = ResizeSpec.of(node), _constants(node, 1, 2, 3)
    if values is None or spec.keep_aspect_ratio_policy != "stretch" or spec.axes is None:
        return None
    axes = spec.at(_lengths(dims), *values).axes
    touched = frozenset(each.axis for each in axes)
    if axis in touched or any(dims[each].is_dynamic for each in touched):
        return None
    tables = [each.taps for each in axes]
    if any(table.is_outside.any() or (np.abs(table.weights.sum(axis=1) - 1) > _EPSILON).any() for table in tables):
        return None  # extrapolated, or not an interpolation
    taps = 0 if spec.mode == "nearest" else sum(table.weights.shape[1] for table in tables)
    return _Found(axis=axis, touched=touched, taps=taps, is_free=not touched)


def _average_pool(node: Node, axis: int, dims: _Dims) -> _Found | None:
    from engine.ops.pool import PoolSpec
    from engine.ops.windows import counts

    spec, spatial = PoolSpec.of(node), frozenset(range(2, len(dims)))
    if axis != 1 or any(dims[each].is_dynamic for each in spatial):
        return None
    geometry = spec.at(_lengths(dims))
    if not counts(geometry, includes_padding=False).all():
        return None  # a window in the padding alone
    keeps = not spec.count_include_pad or not any((*geometry.pads_begin, *geometry.pads_end))
    return _Found(axis=1, touched=spatial, taps=math.prod(spec.kernel_shape), keeps_constants=keeps)


def _global_average_pool(node: Node, axis: int, dims: _Dims) -> _Found | None:
    if axis != 1:
        return None
    return _Found(axis=1, touched=frozenset(range(2, len(dims))), taps=math.prod(_lengths(dims[2:])))


def _reduction(node: Node, axis: int, dims: _Dims) -> _Found | None:
    spec, values = ReduceSpec.of(node), _constants(node, 1)
    if values is None:
        return None
    reduced = spec.at(len(dims), values[0])
    if axis in reduced:
        return None
    place = axis if spec.keepdims else axis - sum(each < axis for each in reduced)
    taps, keeps = math.prod(_lengths(dims[each] for each in reduced)), node.op_type == "ReduceMean"
    return _Found(axis=place, touched=frozenset(reduced), taps=taps, keeps_constants=keeps)


def _slice(node: Node, axis: int, dims: _Dims) -> _Found | None:
    values = _constants(node, 1, 2, 3, 4)
    if values is None:
        return None
    starts, ends, *rest = values
    assert starts is not None
    assert ends is not None
    touched = frozenset(each.axis for each in SliceSpec.of(node).at(_lengths(dims), starts, ends, *rest))
    return None if axis in touched else _Found(axis=axis, touched=touched, selects=True)


def _gather(node: Node, axis: int, dims: _Dims) -> _Found | None:
    at, indices = GatherSpec.of(node).axis, dims_of(node.input_value(1))
    if indices is None or axis == at:
        return None
    place = axis if axis < at else axis + len(indices) - 1
    return _Found(axis=place, touched=frozenset({at}), selects=True)


def _pad(node: Node, axis: int, dims: _Dims) -> _Found | None:
    spec, values = PadSpec.of(node), _constants(node, 1, 2, 3)
    if values is None or any(dim.is_dynamic for dim in dims):
        return None
    amounts, fill, axes = values
    assert amounts is not None
    is_constant = spec.mode == "constant"
    if is_constant and fill is not None and fill.any():
        return None
    lengths = spec.at(_lengths(dims), amounts, axes)
    touched = frozenset(i for i in range(len(dims)) if lengths.before[i] or lengths.after[i])
    if axis in touched:
        return None
    return _Found(axis=axis, touched=touched, keeps_constants=not is_constant)


def _transpose(node: Node, axis: int, dims: _Dims) -> _Found | None:
    order = TransposeSpec.of(node).order(len(dims))
    return _Found(axis=order.index(axis), touched=frozenset())


def _reshape(node: Node, axis: int, dims: _Dims) -> _Found | None:
    """Positions before and behind the channels may be divided otherwise: their order stays."""
    result = dims_of(node.output(0)) or ()
    for place, dim in enumerate(result):
        if not same_length(dim, dims[axis]):
            continue
        if _same_count(dims[:axis], result[:place]) and _same_count(dims[axis + 1 :], result[place + 1 :]):
            return _Found(axis=place, touched=frozenset(), is_free=True)
    return None


def _same_count(a: _Dims, b: _Dims) -> bool:
    """True if two groups of axes provably have equally many positions."""
    if all(dim.is_static for dim in (*a, *b)):
        return math.prod(_lengths(a)) == math.prod(_lengths(b))
    return same_lengths(a, b)


_RULES: Final[dict[str, _Rule]] = {
    "AveragePool": _average_pool,
    "Gather": _gather,
    "GlobalAveragePool": _global_average_pool,
    "Pad": _pad,
    "ReduceMean": _reduction,
    "ReduceSum": _reduction,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Transpose": _transpose,
}
MOVEMENTS: Final = tuple(_RULES)
"""The operators that `Movement.of` reads."""
