"""`QKVProjectionFusion`: several projections of one input become one packed matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.ir import Constant, Model, Node, Output
from engine.passes.base import ModelPass
from engine.passes.fusion import as_vector, constant_data, derived_constant, dims_of, feeds_result, operation
from engine.passes.runtime_info import copy_runtime_info

_FEWEST = 3


@dataclass(frozen=True, slots=True)
class _Projection:
    """MatMul(x, weights) and, if present, the Add of a constant bias that is its only consumer."""

    matmul: Node
    weights: Output
    add: Node | None
    bias: Output | None

    @property
    def last(self) -> Node:
        return self.add or self.matmul


class QKVProjectionFusion(ModelPass):
    """Joins three or more MatMuls of one input with constant weights [K, Ni] into one MatMul and a Split.

    Queries, keys and values of an attention are the usual case. If one of them has a bias, the Adds are joined too,
    with zeros for those without one. Each element is computed by the same sum as before.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk, bodies included; linear."""
        changed = False
        groups: dict[tuple[Output, object], list[_Projection]] = {}
        for node in model.ordered_nodes():
            for body in node.bodies.values():
                changed |= self.run_on_model(body)
            projection = None if self.transformation_callback(node) else _projection(node)
            if projection is not None:
                weights = projection.weights
                groups.setdefault((projection.matmul.input_value(0), weights.shape[0]), []).append(projection)
        for group in groups.values():
            if len(group) >= _FEWEST:
                _join(group)
                self.rewrites += 1
                changed = True
        return changed


def _projection(node: Node) -> _Projection | None:
    if node.op_type != "MatMul" or node.domain or not node.input_value(0).element_type.is_real:
        return None
    weights, data = node.input_value(1), dims_of(node.input_value(0))
    if not isinstance(weights.node, Constant) or len(weights.shape) != 2 or data is None or len(data) < 2:
        return None
    if isinstance(node.input_value(0).node, Constant):
        return None
    readers = node.output(0).target_inputs
    if feeds_result(node.output(0)):
        return None
    add = operation(Output(readers[0].node, 0), "Add") if len(readers) == 1 and readers[0].node.num_outputs else None
    if add is not None:
        bias = as_vector(add.input_value(1 - readers[0].index), [weights.shape[1]])
        if len(dims_of(add.output(0)) or ()) != len(data):
            bias = None  # a bias of higher rank than the product would broadcast the sum
        if bias is not None and isinstance(bias.node, Constant) and not feeds_result(add.output(0)):
            return _Projection(node, weights, add, bias)
    return _Projection(node, weights, None, None)


def _join(group: list[_Projection]) -> None:
    """Replace the projections by a packed product."""
    source = group[0].matmul.input_value(0)
    widths = [projection.weights.shape[1].get_length() for projection in group]
    tables = [projection.weights.node for projection in group if isinstance(projection.weights.node, Constant)]
    shape = (tables[0].shape[0], sum(widths))
    weights = derived_constant(tables, shape, lambda *parts: np.concatenate(parts, axis=1))
    packed = ops.MatMul(source, weights)
    copy_runtime_info([projection.matmul for projection in group], packed)
    has_bias = any(projection.bias is not None for projection in group)
    whole = packed
    if has_bias:
        parts = [constant_data(projection.bias) for projection in group]
        dtype = weights.element_type.numpy
        biases = [np.zeros(n, dtype) if p is None else p for p, n in zip(parts, widths, strict=True)]
        whole = ops.Add(packed, Constant(np.concatenate(biases)))
        copy_runtime_info([projection.last for projection in group], whole)
    split = ops.Split(whole, Constant(np.array(widths, np.int64)), axis=-1, num_outputs=len(group))
    ends = [projection.last for projection in group]
    copy_runtime_info(ends, split)
    split.friendly_name = ends[0].friendly_name
    for index, end in enumerate(ends):
        split.output(index).name = end.output(0).name
        end.output(0).replace(split.output(index))
