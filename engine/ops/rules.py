"""Functions that type rules share: errors with node and inputs, type checks, and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from engine.errors import TypeInferenceError
from engine.ir import (
    Constant,
    Dimension,
    ElementType,
    Node,
    PartialShape,
    SparseTensorType,
    TensorType,
    ValueType,
    as_dimension,
    undefined,
)
from engine.ir.single_floats import shown_attribute
from engine.ops.registry import OpDef, OpPort, find_op, get_op


def fail(node: Node, problem: str, cause: Exception | None = None) -> NoReturn:
    """Raise `TypeInferenceError` with the node, the problem, and the type of each input."""
    attributes = [
        f"{k}={shown_attribute(v)!r}" for k, v in node.attributes.items() if isinstance(v, (int, float, str, tuple))
    ]
    text = f"{node}: {problem}; {describe_inputs(node)}"
    if attributes:
        text += f"; attributes: {', '.join(attributes)}"
    raise TypeInferenceError(text) from cause


def describe_inputs(node: Node) -> str:
    """The inputs with their types, for the end of a message."""
    op = find_op(node.op_type, node.domain)
    parts = []
    for index, source in enumerate(node.input_values):
        if op is None:
            name = f"input {index}"
        else:
            name = op.input_name(index) if op.is_variadic or index < len(op.inputs) else "captured"
        parts.append(f"{name} {'omitted' if source is None else source.type}")
    return f"inputs: {', '.join(parts) or 'none'}"


def tensor_type(node: Node, index: int) -> TensorType:
    """The type of tensor input `index`. Raises `TypeInferenceError` if it is omitted or not a tensor."""
    # Access only one input: a list of all of them for each of 100,000 would take quadratic time.
    value_type = node.input_value(index).type if node.has_input(index) else None
    if not isinstance(value_type, TensorType):
        name = get_op(node.op_type, node.domain).input_name(index)
        fail(node, f"input {index} ({name}) must be a tensor, got {value_type or 'nothing'}")
    return value_type


def known_vector(node: Node, index: int) -> list[int] | None:
    """The values of integer input `index`; None if it is omitted or not a constant."""
    source = node.input_value(index).node if node.has_input(index) else None
    return [int(value) for value in source.data.reshape(-1)] if isinstance(source, Constant) else None


def check_inputs(node: Node, op: OpDef, count: int | None = None) -> None:
    """Check the first `count` (default: all) inputs against the operator's allowed types and type variables."""
    bound: dict[str, tuple[int, str]] = {}
    for index, source in enumerate(node.input_values[:count]):
        port = op.input_port(index) if op.inputs else None
        if port is None:
            fail(node, f"{op} takes no inputs")
        if source is None:
            if not port.is_optional:
                fail(node, f"required input {index} ({op.input_name(index)}) is omitted")
            continue
        name = _checked_name(node, op, index, port, source.type)
        if name is None or (port.is_variadic and not port.is_homogeneous):
            continue
        first, expected = bound.setdefault(port.type_name, (index, name))
        if name != expected:
            fail(
                node,
                f"input {index} ({op.input_name(index)}) is {source.type} and must have the element type of "
                f"input {first} ({op.input_name(first)}); insert a Cast",
            )
    if node.num_inputs < op.min_inputs:
        fail(node, f"required input {node.num_inputs} ({op.input_name(node.num_inputs)}) is missing")


def _checked_name(node: Node, op: OpDef, index: int, port: OpPort, value_type: ValueType) -> str | None:
    """The type of an input without its shape; None if it is not known. Fails if the port does not allow it."""
    if isinstance(value_type, TensorType):
        if value_type.element_type is undefined:
            return None
        if value_type.element_type in port.elements:
            return value_type.element_type.name
    elif not isinstance(value_type, SparseTensorType) and port.others:
        return None  # sequences, optionals and maps: ONNX's own inference checks them
    allowed = [t.name for t in sorted(port.elements, key=lambda t: t.onnx)] + sorted(port.others)
    fail(node, f"input {index} ({op.input_name(index)}) is {value_type}; expected one of {', '.join(allowed)}")


def normalize_axis(node: Node, axis: int, rank: int, what: str = "axis", of: str = "input 0") -> int:
    """`axis` as 0..rank-1. Raises `TypeInferenceError` if it is out of range."""
    if not -rank <= axis < rank:
        expected = f"{-rank}..{rank - 1}" if rank else "none, the rank is 0"
        fail(node, f"{what} {axis} is out of range for rank {rank} of {of}; expected {expected}")
    return axis + rank if axis < 0 else axis


def broadcast_shapes(node: Node, shapes: Sequence[PartialShape]) -> PartialShape:
    """The shape to which all `shapes` broadcast, by numpy's rule. Raises `TypeInferenceError`."""
    result = shapes[0]
    for shape in shapes[1:]:
        if shape is result or shape == result:
            continue
        if result.rank.is_dynamic or shape.rank.is_dynamic:
            return PartialShape.dynamic()
        result = _broadcast_two(node, result, shape)
    return result


def _broadcast_two(node: Node, a: PartialShape, b: PartialShape) -> PartialShape:
    long, short = (a.dims, b.dims) if len(a) >= len(b) else (b.dims, a.dims)
    offset = len(long) - len(short)
    dims = list(long[:offset])
    for position, (x, y) in enumerate(zip(long[offset:], short, strict=True)):
        dim = _broadcast_dims(x, y)
        if dim is None:
            fail(
                node,
                f"shapes {a} and {b} do not broadcast: dimension {position - len(short)} is {x} against {y}; "
                "expected equal lengths or 1",
            )
        dims.append(dim)
    return PartialShape(dims)


def _broadcast_dims(x: Dimension, y: Dimension) -> Dimension | None:
    """The dimension to which two broadcast; None if they do not."""
    if x is y or x == y:
        return x
    if x.min == x.max == 1:
        return y
    if y.min == y.max == 1:
        return x
    # A length that cannot be 1 is the result's, independently of the other.
    if x.min > 1 or x.max == 0:
        return (x.merge(y) if x.is_dynamic and y.min > 1 else x) if _may_meet(x, y) else None
    if y.min > 1 or y.max == 0:
        return y if _may_meet(y, x) else None
    if x.max is None or y.max is None:
        return Dimension.at_least(min(x.min, y.min))
    return Dimension(min(x.min, y.min), max(x.max, y.max))


def _may_meet(fixed: Dimension, other: Dimension) -> bool:
    return other.accepts(1) or fixed.compatible(other)


def with_element(value_type: TensorType, element_type: ElementType) -> TensorType:
    """A tensor type with the same shape and this element type."""
    return value_type if value_type.element_type is element_type else TensorType(element_type, value_type.shape)


def sum_dims(dims: Sequence[Dimension]) -> Dimension:
    """The length of a concatenation; an interval if some lengths are only bounded."""
    if len(dims) == 1:
        return dims[0]
    highs = [dim.max for dim in dims]
    low = sum(dim.min for dim in dims)
    known = [high for high in highs if high is not None]
    if len(known) == len(highs):
        return as_dimension(low) if sum(known) == low else Dimension(low, sum(known))
    return Dimension.at_least(low)
