"""How operators change when the layout of their inputs changes: the rules behind `TransposeSinking`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, TensorType
from engine.ops import attribute
from engine.passes.fusion import charge, dims_of, integers

Perm: TypeAlias = "tuple[int, ...]"
Rule: TypeAlias = "Callable[[Node, list[Output | None], Perm], Node]"
"""Makes `node` for inputs in another layout: axis j of the old layout is axis perm[j] of the new one."""
Test: TypeAlias = "Callable[[Node, Perm], bool]"

_UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos", "Cosh",
    "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
    "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
_BROADCAST = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip
_ALONG_AXIS = ("Softmax", "LogSoftmax", "Hardmax", "Concat", "Split")
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_WITH_SCALARS = ("Clip", "QuantizeLinear", "DequantizeLinear")


def data_inputs(node: Node) -> range:
    """The inputs that have the layout of the output; the others are parameters."""
    return range(node.num_inputs) if node.op_type in (*_BROADCAST, "Concat") else range(min(node.num_inputs, 1))


def follows_layout(node: Node, perm: Perm) -> bool:
    """True if a rule can bring `node`, whose output has the rank of `perm`, into another layout."""
    test = TESTS.get(node.op_type) if not node.domain else None
    if test is None or not test(node, perm):
        return False
    if not all(len(dims_of(output) or ()) == len(perm) for output in node.outputs):
        return False
    for index in data_inputs(node):
        source = node.input_values[index]
        dims = None if source is None else dims_of(source)
        if source is None or dims is None:
            return False
        if dims and len(dims) != len(perm) and not isinstance(source.node, Constant):
            return False
    return True


def constant_in_layout(value: Output, perm: Perm) -> Output:
    """A constant that broadcasts to tensors of the old layout, rearranged for the new one."""
    source = value.node
    assert isinstance(source, Constant)
    data = source.data
    if data.size == 1 and data.ndim == 0:
        return value
    charge([source], source.byte_size)
    full = data.reshape((1,) * (len(perm) - data.ndim) + data.shape)
    return Constant(np.ascontiguousarray(np.transpose(full, inverse(perm)))).output(0)


def inverse(perm: Sequence[int]) -> Perm:
    """The permutation that undoes `perm`."""
    return tuple(int(axis) for axis in np.argsort(perm))


def _as_it_is(node: Node, inputs: list[Output | None], perm: Perm) -> Node:
    return ops.create(node.op_type, inputs, node.attributes, domain=node.domain, num_outputs=node.num_outputs)


def _along_axis(node: Node, inputs: list[Output | None], perm: Perm) -> Node:
    axis = perm[int(attribute(node, "axis")) % len(perm)]
    return ops.create(node.op_type, inputs, {**node.attributes, "axis": axis}, num_outputs=node.num_outputs)


def _reduction(node: Node, inputs: list[Output | None], perm: Perm) -> Node:
    axes = integers(inputs[1]) if len(inputs) > 1 else None
    if not axes:
        return _as_it_is(node, inputs, perm)
    moved = Constant(np.array([perm[axis % len(perm)] for axis in axes], np.int64))
    return ops.create(node.op_type, [inputs[0], moved.output(0)], node.attributes)


def _slice(node: Node, inputs: list[Output | None], perm: Perm) -> Node:
    axes = integers(inputs[3])
    assert axes is not None
    moved = Constant(np.array([perm[axis % len(perm)] for axis in axes], np.int64))
    return ops.create("Slice", [*inputs[:3], moved.output(0), *inputs[4:]], node.attributes)


def _pad(node: Node, inputs: list[Output | None], perm: Perm) -> Node:
    amounts, rank = integers(inputs[1]), len(perm)
    assert amounts is not None
    moved = [0] * (2 * rank)
    for axis, target in enumerate(perm):
        moved[target], moved[target + rank] = amounts[axis], amounts[axis + rank]
    return ops.create("Pad", [inputs[0], Constant(np.array(moved, np.int64)), *inputs[2:]], node.attributes)


def _always(node: Node, perm: Perm) -> bool:
    return True


def _is_kept_reduction(node: Node, perm: Perm) -> bool:
    if not attribute(node, "keepdims"):
        return False
    return not node.has_input(1) or integers(node.input_value(1)) is not None


def _has_constant_axes(node: Node, perm: Perm) -> bool:
    return node.has_input(3) and integers(node.input_value(3)) is not None


def _has_constant_pads(node: Node, perm: Perm) -> bool:
    pads = integers(node.input_value(1))
    return pads is not None and len(pads) == 2 * len(perm) and not node.has_input(3)


def _has_scalars(node: Node, perm: Perm) -> bool:
    return all(
        value is None or (isinstance(value.type, TensorType) and value.type.shape.rank == 0)
        for value in node.input_values[1:]
    )


RULES: dict[str, Rule] = {
    **dict.fromkeys((*_UNARY, *_BROADCAST, *_WITH_SCALARS), _as_it_is),
    **dict.fromkeys(_ALONG_AXIS, _along_axis),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "Slice": _slice,
    "Pad": _pad,
}
TESTS: dict[str, Test] = {
    **dict.fromkeys((*_UNARY, *_BROADCAST, *_ALONG_AXIS), _always),
    **dict.fromkeys(_WITH_SCALARS, _has_scalars),
    **dict.fromkeys(_REDUCTIONS, _is_kept_reduction),
    "Slice": _has_constant_axes,
    "Pad": _has_constant_pads,
}
