"""How operators change when the layout of their inputs changes: the rules behind `TransposeSinking`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from engine import ops
from engine.ir import Constant, Node, Output, TensorType
from engine.ops import attribute
from engine.ops.axes import parameter_of
from engine.ops.traits import traits_of
from engine.passes.fusion import charge, dims_of, integers

Perm: TypeAlias = "tuple[int, ...]"


def data_inputs(node: Node) -> range:
    """The inputs that have the layout of the output; the others are parameters."""
    return range(min(node.num_inputs, traits_of(node).data))


def follows_layout(node: Node, perm: Perm) -> bool:
    """True if `in_layout` can bring `node`, whose output has the rank of `perm`, into another layout."""
    if not (_is_alike(node) or _has_known_axes(node, len(perm))):
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
    """The permutation that undoes `perm`: a Transpose by it restores the order of the axes."""
    return tuple(int(axis) for axis in np.argsort(perm))


def in_layout(node: Node, inputs: list[Output | None], perm: Perm) -> Node:
    """`node` for inputs in another layout: axis j of the old layout is axis perm[j] of the new one."""
    inputs, attributes, parameter = [*inputs], dict(node.attributes), parameter_of(node)
    if parameter is not None and parameter.attribute:
        attributes[parameter.attribute] = perm[int(attribute(node, parameter.attribute)) % len(perm)]
    elif parameter is not None and parameter.axes is not None and parameter.axes < len(inputs):
        axes = integers(inputs[parameter.axes])
        if axes:
            inputs[parameter.axes] = _vector([perm[axis % len(perm)] for axis in axes])
    elif parameter is not None and parameter.amounts is not None:
        amounts = integers(inputs[parameter.amounts])
        assert amounts is not None
        inputs[parameter.amounts] = _vector(_moved_amounts(amounts, perm))
    return ops.create(node.op_type, inputs, attributes, domain=node.domain, num_outputs=node.num_outputs)


def _moved_amounts(amounts: Sequence[int], perm: Perm) -> list[int]:
    rank = len(perm)
    moved = [0] * (2 * rank)
    for axis, target in enumerate(perm):
        moved[target], moved[target + rank] = amounts[axis], amounts[axis + rank]
    return moved


def _vector(values: Sequence[int]) -> Output:
    return Constant(np.array(values, np.int64)).output(0)


def _is_alike(node: Node) -> bool:
    """Whether a node treats all axes alike, such as a quantization with one scale."""
    traits = traits_of(node)
    if not traits.pointwise and not (traits.quantizes and traits.product is None and node.num_outputs == 1):
        return False
    return all(
        value is None or (isinstance(value.type, TensorType) and value.type.shape.rank == 0)
        for value in node.input_values[traits.data :]
    )


def _has_known_axes(node: Node, rank: int) -> bool:
    """Whether a node states the axes along which it computes, as numbers, and keeps them."""
    parameter = parameter_of(node)
    if parameter is None or (traits_of(node).reduces and not attribute(node, "keepdims")):
        return False
    if parameter.axes is not None:
        is_given = node.has_input(parameter.axes)
        return integers(node.input_value(parameter.axes)) is not None if is_given else traits_of(node).reduces
    if parameter.amounts is not None:
        amounts = integers(node.input_value(parameter.amounts))
        return amounts is not None and len(amounts) == 2 * rank and not node.has_input(3)
    return True
