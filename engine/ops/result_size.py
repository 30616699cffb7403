"""How large the result of an operation will be, known before it is evaluated.

Results of most operators are hardly larger than their inputs. Broadcasting, and operators that are declared to inflate,
may make them larger by any factor: these are measured by the functions below, or by type inference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import EngineError, ModelError
from engine.ir import Constant, ElementType, Node, Parameter, PartialShape, TensorType, ValueType, string, undefined
from engine.limits import LARGE_BYTES, check_bytes
from engine.ops.families import Declarations
from engine.ops.tensors import Array
from engine.ops.traits import traits_of

Guard: TypeAlias = Callable[[Sequence[Any]], None]
Measure: TypeAlias = Callable[[Sequence[Any]], int]
"""The bytes of the results for the values of the inputs."""
Factory: TypeAlias = Callable[[Node], Measure]

SMALL: Final = 1 << 24
"""If the lengths of the inputs multiply to fewer elements, a result that broadcasts them is not checked."""
_MAX_VALUES: Final = 64
"""Type inference reads the values of inputs with up to this many elements: shapes, pads, scales, sizes."""
REFERENCE: Final = 8
VIEW: Final = 128
"""Bytes of a reference and of an array that is a view."""


def guard(node: Node, limit: int) -> Guard | None:
    """A function that raises `OutOfMemoryError`, naming `node`, if a result for given inputs is too large.

    `limit`: see `check_bytes`. None if the results cannot be much larger than the inputs. The function does not keep
    the graph of the node alive.
    """
    measure = _measure(node)
    known = sum(_known_bytes(output.type) for output in node.outputs)
    if measure is None and not known:
        return None
    title = str(node)

    def check(inputs: Sequence[Any]) -> None:
        check_bytes(max(known, measure(inputs) if measure is not None else 0), title, limit)

    return check


def value_bytes(value: Any) -> int:
    """Bytes of a value: for text, also the bytes of each string, as often as it occurs."""
    if isinstance(value, np.ndarray):
        return text_bytes(value) if value.dtype == object else value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(REFERENCE + value_bytes(item) for item in value)
    return 0


def _measure(node: Node) -> Measure | None:
    traits = traits_of(node)
    if traits.pointwise and traits.data > 1:
        return _broadcast(node)
    factory = _FACTORIES[node.domain, node.op_type]
    if factory is not None:
        return factory(node)
    return _inferred(node) if traits.inflates else None


def _known_bytes(value_type: ValueType) -> int:
    """Bytes of a result by its type; 0 if that is not known, or not large."""
    if not isinstance(value_type, TensorType) or value_type.shape.is_dynamic or value_type.element_type is undefined:
        return 0
    nbytes = value_type.shape.size() * max(1, value_type.element_type.bits // 8)
    return nbytes if nbytes >= LARGE_BYTES else 0


# -- for the families of operators -------------------------------------------------------------------------


def measures(*op_types: str) -> Callable[[Factory], Factory]:
    """Decorator: the function of a node of these operators gives the bytes of its results for values of its inputs."""

    def register(factory: Factory) -> Factory:
        _FACTORIES.update({("", op_type): factory for op_type in op_types})
        return factory

    return register


def item_size(node: Node) -> int:
    """Bytes of an element of the first result; of text, of the reference to it."""
    value_type = node.output(0).type
    if not isinstance(value_type, TensorType) or value_type.element_type in (undefined, string):
        return REFERENCE
    return np.dtype(value_type.element_type.numpy).itemsize


def text_bytes(array: Array) -> int:
    """Bytes of text, including the bytes of each string as often as it occurs."""
    return REFERENCE * array.size + sum(len(text) for text in array.reshape(-1).tolist())


def size_of_broadcast(shapes: Sequence[tuple[int, ...]]) -> int:
    """The number of elements of the common shape; shapes that do not broadcast are the evaluator's error."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return math.prod(0 if 0 in lengths else max(lengths) for lengths in zip(*padded, strict=True))


def numbers(value: Any) -> list[int]:
    """The values of a shape; Python's numbers do not overflow."""
    return [int(number) for number in value.reshape(-1).tolist()]


def _broadcast(node: Node) -> Measure:
    item = item_size(node)

    def measure(inputs: Sequence[Any]) -> int:
        shapes = [value.shape for value in inputs if value is not None]
        return item * size_of_broadcast(shapes) if math.prod(map(math.prod, shapes)) > SMALL else 0

    return measure


_FACTORIES: Final[Declarations[Factory]] = Declarations()


# -- by type inference -------------------------------------------------------------------------------------


def _inferred(node: Node) -> Measure:
    """From the types that follow from the types of the inputs, and the values of small ones."""
    op_type, domain, attributes, count = node.op_type, node.domain, dict(node.attributes), node.num_outputs
    name = node.friendly_name

    def measure(inputs: Sequence[Any]) -> int:
        sources = [None if value is None else _source(value) for value in inputs]
        try:
            alone = Node(op_type, sources, attributes, domain=domain, num_outputs=count, friendly_name=name)
            alone.infer_types()
        except ModelError:
            raise  # before an evaluator makes as much as the values ask for
        except EngineError:
            return 0
        return sum(_known_bytes(output.type) for output in alone.outputs)

    return measure


def _source(value: Any) -> Node:
    if value.size <= _MAX_VALUES:
        return Constant(value)
    return Parameter(ElementType.from_numpy(value.dtype), PartialShape(value.shape))
