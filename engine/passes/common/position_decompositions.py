"""Decompositions of operators whose positions are computed: into look-ups and writes by index."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, i64
from engine.ops.gather import TensorScatterSpec
from engine.ops.rotary import RotarySpec
from engine.passes.fusion import FusionPass
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.runtime_info import DECOMPOSED


class RotaryPositionsDecomposition(FusionPass):
    """Makes a RotaryEmbedding with `position_ids` look up the rows of its tables by Gather.

    For devices whose kernels take tables with a row for each position of the input. Queries and keys, and all layers,
    then share the look-ups.
    """

    makes = frozenset({"Gather"})

    removes = frozenset({"RotaryEmbedding"})

    def __init__(self) -> None:
        super().__init__()
        self.register_fusion(wrap_type("RotaryEmbedding"), self._make)

    def _make(self, m: Matcher) -> list[Node] | None:
        node = m.match_root
        spec = RotarySpec.of(node)
        positions = spec.position_ids
        if positions is None:
            return None
        node.rt_info.setdefault(DECOMPOSED, (node.op_type, node.friendly_name))  # which the new nodes get
        tables = [
            ops.Gather(node.input_value(index), positions, axis=0, friendly_name=f"{node.friendly_name}/Gather_{index}")
            for index in (1, 2)
        ]
        return [*tables, ops.RotaryEmbedding(node.input_value(0), *tables, **node.attributes)]


class TensorScatterDecomposition(FusionPass):
    """Turns a TensorScatter into a ScatterND of the rows of its update."""

    makes = frozenset({"ScatterND"})

    removes = frozenset({"TensorScatter"})

    def __init__(self) -> None:
        super().__init__()
        self.register_fusion(wrap_type("TensorScatter"), self._make)

    def _make(self, m: Matcher) -> list[Node] | None:
        spec = TensorScatterSpec.of(m.match_root)
        if spec.past.shape.rank.is_dynamic:
            return None
        indices = _Indices(spec)
        scatter = ops.ScatterND(spec.past, indices.all(), spec.update)
        made = [*indices.nodes, scatter]
        return made if self.config is None or self.config.lowers(made) else None


class _Indices:
    """The indices of the rows of an update, [B, ..., S, axis + 1]; `nodes` are the nodes that compute them."""

    def __init__(self, spec: TensorScatterSpec) -> None:
        self.nodes: list[Node] = []
        self._spec = spec

    def all(self) -> Output:
        """The indices of the update's rows in the cache, as ScatterND takes them."""
        axis, update = self._spec.axis, self._spec.update
        lengths = [self._made(ops.Shape(update, start=i, end=i + 1)) for i in range(axis + 1)]
        shape = self._made(ops.Concat(*lengths, _vector(1), axis=0))
        parts = [self._along(index, update) for index in range(axis)]
        rows = self._along(axis, update)
        start = self._spec.write_indices
        if start is not None:
            first = self._made(ops.Unsqueeze(start, _vector(*range(1, axis + 2))))
            rows = self._made(ops.Add(rows, first))
        if self._spec.mode == "circular":
            rows = self._made(ops.Mod(rows, self._length(axis, self._spec.past)))
        expanded = [self._made(ops.Expand(part, shape)) for part in (*parts, rows)]
        return expanded[0] if len(expanded) == 1 else self._made(ops.Concat(*expanded, axis=-1))

    def _along(self, axis: int, value: Output) -> Output:
        """0, 1, 2, ... along an axis of `value`, with lengths of 1 for the axes after it."""
        numbers = self._made(ops.Range(_scalar(0), self._length(axis, value), _scalar(1)))
        after = range(1, self._spec.axis - axis + 2)
        return self._made(ops.Unsqueeze(numbers, _vector(*after)))

    def _length(self, axis: int, value: Output) -> Output:
        """The length of an axis, a scalar."""
        return self._made(ops.Squeeze(self._made(ops.Shape(value, start=axis, end=axis + 1)), _vector(0)))

    def _made(self, node: Node) -> Output:
        self.nodes.append(node)
        return node.output(0)


def _scalar(value: int) -> Constant:
    return Constant(value, i64)


def _vector(*values: int) -> Constant:
    return Constant(np.array(values, np.int64))
