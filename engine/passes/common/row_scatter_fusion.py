"""`RowScatterFusion`: elements scattered with one index for each row are rows scattered."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Dimension, Node, Output, TensorType
from engine.ops.gather import ScatterElementsSpec
from engine.passes.fusion import constant_data, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.rewrite import MatcherPass


class RowScatterFusion(MatcherPass):
    """Makes a ScatterElements along axis 0 a ScatterND if its indices are equal along each row, and rows are whole.

    Graph networks and other poolings of PyTorch expand an index for each row, [rows, 1], to the shape of the updates.
    Rows are combined in the same order, so results are the same to the bit.
    """

    makes = frozenset({"Reshape", "ScatterND"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("ScatterElements"), "RowScatterFusion"), self._replace)

    def _replace(self, m: Matcher) -> bool:
        node = m.match_root
        data, indices, updates = (node.input_value(index) for index in range(3))
        values = (data, indices, updates)
        if any(not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic for value in values):
            return False
        spec = ScatterElementsSpec.of(node)
        rank = len(data.shape)
        if spec.axis != 0 or rank < 2 or not len(indices.shape) == len(updates.shape) == rank:
            return False
        shape = updates.shape  # which is that of the indices: ONNX requires it
        if not shape.compatible(indices.shape) or not _are_equal(shape.dims[1:], data.shape.dims[1:]):
            return False
        if self.transformation_callback(node):
            return False
        made: list[Node] = []
        index = _index_of_rows(indices, shape.dims[0], made)
        if index is None:
            return False
        made.append(ops.ScatterND(data, index, updates, reduction=spec.reduction))
        return replace_by(node, [node], made)


def _index_of_rows(indices: Output, rows: Dimension, made: list[Node]) -> Output | None:
    """The index of each row, [rows, 1], if there is one; nodes that compute it are appended to `made`."""
    constant = constant_data(indices)
    if constant is not None:
        first = constant.reshape(constant.shape[0], -1)[:, :1] if constant.size else constant
        is_one = constant.size > 0 and bool((constant.reshape(len(first), -1) == first).all())
        return Constant(np.ascontiguousarray(first)).output(0) if is_one else None
    expand = indices.node
    if expand.op_type != "Expand" or expand.domain:
        return None
    source = expand.input_value(0)
    if source.shape.rank.is_dynamic or len(source.shape) != len(indices.shape):
        return None
    if any(dim != 1 for dim in source.shape.dims[1:]) or not _are_equal(source.shape.dims[:1], (rows,)):
        return None
    if len(source.shape) == 2:
        return source
    made.append(ops.Reshape(source, Constant(np.array([-1, 1], np.int64))))
    return made[-1].output(0)


def _are_equal(some: tuple[Dimension, ...], others: tuple[Dimension, ...]) -> bool:
    """Whether lengths are known to be equal."""
    return len(some) == len(others) and all(
        a == b and (a.is_static or a.symbol is not None) for a, b in zip(some, others, strict=True)
    )
