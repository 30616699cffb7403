"""`QKVProjectionFusion`: several projections of one input become one packed matrix product."""

from __future__ import annotations

import numpy as np

from engine import ops
from engine.ir import Constant, Model, Node, Output
from engine.limits import OverBudgetError
from engine.ops.packed_columns import JoinedColumns
from engine.ops.quantize import QuantizeSpec
from engine.passes.base import ModelPass
from engine.passes.fusion import as_vector, constant_data, derived_constant, dims_of, feeds_result, operation
from engine.passes.runtime_info import copy_runtime_info
from engine.startup import dataclass

_MIN_PROJECTIONS = 3


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
    with zeros for those without one. Each element is computed by the same sum as before. Weights may also be the
    DequantizeLinear of constants with a scale for each column, or for each block of a column, if x is not quantized.
    """

    makes = frozenset({"Split"})

    def run_on_model(self, model: Model) -> bool:
        """Join the projections of each tensor, in one walk over the graph and its bodies."""
        changed = False
        groups: dict[tuple[Output, object], list[_Projection]] = {}
        for node in model.ordered_nodes():
            changed |= self.run_on_bodies(node)
            projection = _projection(node)
            if projection is not None and not self.transformation_callback(node):
                key = (projection.weights.shape[0], _form(projection.weights))
                groups.setdefault((projection.matmul.input_value(0), key), []).append(projection)
        for group in groups.values():
            if len(group) >= _MIN_PROJECTIONS and _join(group):
                self.rewrites += 1
                changed = True
        return changed


def _projection(node: Node) -> _Projection | None:
    if node.op_type != "MatMul" or node.domain or not node.input_value(0).element_type.is_real:
        return None
    weights, data = node.input_value(1), dims_of(node.input_value(0))
    if data is None or len(data) < 2 or weights.shape.rank != 2 or _form(weights) is None:
        return None
    if weights.node.op_type == "DequantizeLinear" and operation(node.input_value(0), "DequantizeLinear"):
        return None  # each product is quantized on its own
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


def _form(weights: Output) -> object:
    """The form that weights must share to be joined; None if they cannot be joined."""
    if isinstance(weights.node, Constant):
        return "constant"
    node = operation(weights, "DequantizeLinear")
    if node is None:
        return None
    operands = [value.node for value in node.input_values if value is not None]
    if not all(isinstance(operand, Constant) for operand in operands) or not weights.shape.is_static:
        return None
    spec, shapes = QuantizeSpec.of(node), [operand.output(0).shape.get_shape() for operand in operands]
    (rows, columns), parameters = shapes[0], set(shapes[1:])
    expected = (-(-rows // spec.block_size), columns) if spec.block_size else (columns,)
    if spec.axis != (0 if spec.block_size else 1) or parameters != {expected}:
        return None
    types = tuple(operand.output(0).element_type for operand in operands)
    return types, spec.block_size, weights.element_type


def _joined(parts: list[Node]) -> Node:
    """Weights of one form, side by side."""
    if parts[0].op_type != "DequantizeLinear":
        return _concatenated(parts)
    count = sum(value is not None for value in parts[0].input_values)
    operands = [_concatenated([part.input_value(index).node for part in parts]) for index in range(count)]
    made = ops.create("DequantizeLinear", operands, parts[0].attributes)
    made.friendly_name = parts[0].friendly_name
    copy_runtime_info(parts, made)
    return made


def _concatenated(parts: list[Node]) -> Constant:
    """Constants, joined along their last axis."""
    constants = [part for part in parts if isinstance(part, Constant)]
    shape = constants[0].shape
    total = (*shape[:-1], sum(constant.shape[-1] for constant in constants))
    return derived_constant(constants, total, JoinedColumns())


def _join(group: list[_Projection]) -> bool:
    """Replace the projections by a packed product; False if the budget has no room for their weights."""
    source = group[0].matmul.input_value(0)
    widths = [projection.weights.shape[1].get_length() for projection in group]
    try:
        weights = _joined([projection.weights.node for projection in group])
    except OverBudgetError:
        return False
    packed = ops.MatMul(source, weights)
    copy_runtime_info([projection.matmul for projection in group], packed)
    has_bias = any(projection.bias is not None for projection in group)
    whole = packed
    if has_bias:
        parts = [constant_data(projection.bias) for projection in group]
        dtype = source.element_type.numpy
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
    return True
