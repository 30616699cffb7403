"""`IndexGridElimination`: gathering every element in its order is a Reshape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output
from engine.ops.gather import GatherNDSpec, GatherSpec
from engine.ops.tensors import Array
from engine.passes.fusion import constant_data, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass


class IndexGridElimination(MatcherPass):
    """Makes a Gather or GatherND whose constant indices count through the data a Reshape, and an Expand if it repeats.

    Exporters write masks in this way: position (batch, key) of a mask [batch, keys] for each [batch, 1, 1, keys].
    """

    makes = frozenset({"Expand", "Reshape"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type(["Gather", "GatherND"]), "IndexGridElimination"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        data, indices = node.input_value(0), constant_data(node.input_value(1))
        result = node.output(0).shape
        if indices is None or not indices.size or not data.shape.is_static or not result.is_static:
            return False
        if self.transformation_callback(node):
            return False
        read = data.shape.get_shape()
        shape = _gathered(node, read, indices) if node.op_type == "Gather" else _gathered_nd(node, read, indices)
        if shape is None:
            return False
        made: list[Node] = [ops.Reshape(data, _numbers(shape), allowzero=1)]
        if shape != list(result.get_shape()):
            made.append(ops.Expand(made[-1], _numbers(result.get_shape())))
        return replace_by(node, [node], made)


def _gathered(node: Node, read: Sequence[int], indices: Array) -> list[int] | None:
    """The shape of all rows of the first axis, if the indices are those in their order."""
    if GatherSpec.of(node).axis not in (0, -len(read)) or indices.size != read[0]:
        return None
    return [*indices.shape, *read[1:]] if np.array_equal(indices.reshape(-1), np.arange(read[0])) else None


def _gathered_nd(node: Node, read: Sequence[int], indices: Array) -> list[int] | None:
    """The shape before an Expand, if each coordinate counts through its axis along one axis of the result."""
    rank = indices.ndim - 1
    if GatherNDSpec.of(node).batch_dims or indices.shape[-1] != len(read):
        return None
    shape, last = [1] * rank, -1
    for coordinate, length in enumerate(read):
        values = indices[..., coordinate]
        if length == 1:
            if (values != 0).any():
                return None
            continue
        axis = _counting_axis(values, length, last)
        if axis is None:
            return None
        shape[axis], last = length, axis
    return shape


def _counting_axis(values: Array, length: int, after: int) -> int | None:
    """The axis, after another one, along which `values` are 0 to length - 1."""
    for axis in range(after + 1, values.ndim):
        if values.shape[axis] != length:
            continue
        ramp = np.arange(length).reshape([length if i == axis else 1 for i in range(values.ndim)])
        if np.array_equal(values, np.broadcast_to(ramp, values.shape)):
            return axis
    return None


def _numbers(shape: Sequence[int]) -> Output:
    return Constant(np.array(shape, np.int64)).output(0)
