"""The amount of computation and data movement of a node, from its types."""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.ir import ElementType, Node, Output, TensorType
from engine.ops.cost import lengths_of, operations_of
from engine.ops.scan import ScanSpec
from engine.ops.traits import Moves, Traits, traits_of
from engine.passes.runtime_info import is_operation

ASSUMED_TRIPS: Final = 8
"""The assumed number of iterations of a Loop, and of a Scan over unknown lengths."""


class Work(NamedTuple):
    """The arithmetic operations of a node, and the bytes that it reads and writes."""

    operations: float
    bytes: float


def work_of(node: Node) -> Work:
    """The work of a node; exact if all lengths are known; unknown lengths count as 1.

    Matrix products, convolutions, attention and recurrent layers count their multiplications and additions; other
    operators, one operation per element of the results. Bodies count once per iteration.
    """
    traits = traits_of(node)
    if traits.moves is Moves.VIEW or (node.op_type in ("Shape", "Size") and not node.domain):
        return Work(0.0, 0.0)
    values = [value for value in (*node.input_values, *node.outputs) if value is not None]
    if _picks(traits) and node.num_outputs == 1:
        values[0] = node.output(0)  # a lookup reads as many bytes of its table as it writes
    moved = float(sum(byte_size(value) for value in values))
    operations = operations_of(node)
    for body in node.bodies.values():
        inner = [work_of(each) for each in body.ordered_nodes() if is_operation(each)]
        trips = _trips(node)
        operations += trips * sum(each.operations for each in inner)
        moved += trips * sum(each.bytes for each in inner)
    return Work(operations, moved)


def byte_size(value: Output, unknown: int = 1) -> int:
    """The bytes of a value; unknown lengths count as `unknown`; 0 for a value that is not a tensor."""
    if not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        return 0
    count = 1
    for dimension in value.shape:
        count *= dimension.get_length() if dimension.is_static else unknown
    return bytes_of(value.element_type, count)


def bytes_of(element_type: ElementType, count: int) -> int:
    """The size of `count` unpacked elements in bytes."""
    return count * element_type.numpy.itemsize


def _picks(traits: Traits) -> bool:
    """Whether an operator reads only the elements that are its results."""
    return traits.moves in (Moves.SELECTION, Moves.REPETITION) and not traits.fills and not traits.inflates


def _trips(node: Node) -> int:
    if node.op_type == "If":
        return 1
    if node.op_type == "Scan":
        spec = ScanSpec.of(node)
        shape, axis = lengths_of(node.input_values[spec.num_states]), spec.scan_input_axes[0]
        if -len(shape) <= axis < len(shape):
            return shape[axis] if shape[axis] > 1 else ASSUMED_TRIPS
    return ASSUMED_TRIPS
