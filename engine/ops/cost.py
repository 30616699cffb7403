"""The cost of a node: its arithmetic operations, and how long its reference evaluation takes.

Both depend only on the operator and the types of its values (and the values of small constants), so that a compiler's
decisions by them are the same on every machine. A family declares what is not proportional to the elements:

    @operations("MatMul")
    def _product(node: Node) -> float: ...     # 2 x m x k x n
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

from engine.ir import Constant, Node, Output, TensorType, f32, f64
from engine.ops.families import Declarations
from engine.ops.traits import Traits, traits_of

Count: TypeAlias = Callable[[Node], float]

CALL: Final = 5000
"""Units of one step of a loop in Python that calls numpy a few times."""
_FAST: Final = 8
"""Units per element of an operator that numpy computes in a few passes over its arrays."""
_SLOW: Final = 1000
"""Units per element of an operator that may loop in Python."""
_PRODUCTS_PER_UNIT: Final = 16
"""Multiply-adds per unit of a product in f32 or f64, which numpy passes to BLAS; other types have none."""
_UNITS_PER_OTHER_PRODUCT: Final = 4


def operations(*op_types: str, domain: str = "") -> Callable[[Count], Count]:
    """Decorator: the function gives the arithmetic operations of a node, if not one per element of the results.

    A multiplication and an addition count as two.
    """

    def register(count: Count) -> Count:
        _OPERATIONS.update({(domain, op_type): count for op_type in op_types})
        return count

    return register


def more_time(*op_types: str, domain: str = "") -> Callable[[Count], Count]:
    """Decorator: the function gives units of time beyond those for the elements of inputs and results.

    For evaluations that do more than a fixed number of things for each: for pairs of boxes, windows, support vectors.
    """

    def register(count: Count) -> Count:
        _MORE_TIME.update({(domain, op_type): count for op_type in op_types})
        return count

    return register


def operations_of(node: Node) -> float:
    """The arithmetic operations of a node, without its bodies; unknown lengths count as 1."""
    count = _OPERATIONS[node.domain, node.op_type]
    return float(sum(size_of(output) for output in node.outputs)) if count is None else float(count(node))


def evaluation_time(node: Node) -> int:
    """How long the reference evaluation takes, in units of about one nanosecond; unknown lengths count as 1."""
    traits, key = traits_of(node), (node.domain, node.op_type)
    values = [*(value for value in node.input_values if value is not None), *node.outputs]
    time = _unit(traits) * sum(size_of(value) for value in values)
    if (more := _MORE_TIME[key]) is not None:
        return time + int(more(node))
    if traits.product is not None and _OPERATIONS[key] is not None:
        return time + _time_of_products(node, int(operations_of(node)) // 2)
    return time


def _unit(traits: Traits) -> int:
    return _FAST if traits.vectorized or traits.pointwise else _SLOW


def _time_of_products(node: Node, count: int) -> int:
    is_fast = node.output(0).element_type in (f32, f64)
    return count // _PRODUCTS_PER_UNIT if is_fast else count * _UNITS_PER_OTHER_PRODUCT


def size_of(value: Output | None) -> int:
    """The number of elements of a tensor; unknown lengths, and values other than tensors, count as 1."""
    return math.prod(lengths_of(value))


def lengths_of(value: Output | None) -> tuple[int, ...]:
    """The lengths of a tensor, 1 for unknown ones; empty for other types and for unknown rank."""
    if value is None or not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        return ()
    return tuple(dim.get_length() if dim.is_static else 1 for dim in value.shape)


def attribute_length(node: Node, name: str) -> int:
    """The number of elements of an attribute; 0 without it."""
    given = node.attributes.get(name)
    return 0 if given is None else len(given)


def number_of(node: Node, index: int) -> int | None:
    """The single element of a constant input; 0 without the input, and None if it is not known."""
    if not node.has_input(index):
        return 0
    source = node.input_value(index).node
    return int(source.data.reshape(-1)[0]) if isinstance(source, Constant) and source.data.size == 1 else None


_OPERATIONS: Final[Declarations[Count]] = Declarations()
_MORE_TIME: Final[Declarations[Count]] = Declarations()
