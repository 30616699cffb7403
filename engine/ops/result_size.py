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
from engine.ops.creation import range_length
from engine.ops.tensors import Array
from engine.ops.traits import traits_of

Guard: TypeAlias = Callable[[Sequence[Any]], None]
Measure: TypeAlias = Callable[[Sequence[Any]], int]
"""The bytes of the results for the values of the inputs."""

_SMALL: Final = 1 << 24
"""If the lengths of the inputs multiply to fewer elements, a result that broadcasts them is not checked."""
_MOST_VALUES: Final = 64
"""Type inference reads the values of inputs with so many elements: shapes, pads, scales, sizes."""
_REFERENCE: Final = 8
_VIEW: Final = 128
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
    """Bytes of a value: of text, also those of each string, as often as it occurs."""
    if isinstance(value, np.ndarray):
        return _text_bytes(value) if value.dtype == object else value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(_REFERENCE + value_bytes(item) for item in value)
    return 0


def _measure(node: Node) -> Measure | None:
    name, item = node.op_type, _item_size(node)
    traits = traits_of(node)
    is_broadcast = traits.pointwise and traits.data > 1
    if is_broadcast or (name in _ELEMENTS and not node.domain):
        count = _broadcast if is_broadcast else _ELEMENTS[name]
        axis = node.attributes.get("axis", -1 if name == "OneHot" else 0)
        return lambda inputs: item * count(inputs, axis)
    if (factory := _BYTES.get(name)) is not None and not node.domain:
        return factory(node)
    return _inferred(node) if traits.inflates else None


def _item_size(node: Node) -> int:
    """Bytes of an element of the first result."""
    value_type = node.output(0).type
    if not isinstance(value_type, TensorType) or value_type.element_type in (undefined, string):
        return _REFERENCE
    return np.dtype(value_type.element_type.numpy).itemsize


def _known_bytes(value_type: ValueType) -> int:
    """Bytes of a result by its type; 0 if that is not known, or not large."""
    if not isinstance(value_type, TensorType) or value_type.shape.is_dynamic or value_type.element_type is undefined:
        return 0
    nbytes = value_type.shape.size() * max(1, value_type.element_type.bits // 8)
    return nbytes if nbytes >= LARGE_BYTES else 0


def _text_bytes(array: Array) -> int:
    return _REFERENCE * array.size + sum(len(text) for text in array.reshape(-1).tolist())


# -- numbers of elements -----------------------------------------------------------------------------------


def _expand(inputs: Sequence[Any], axis: int) -> int:
    return _product_of_broadcast([inputs[0].shape, tuple(_numbers(inputs[1]))])


def _tile(inputs: Sequence[Any], axis: int) -> int:
    return int(inputs[0].size) * math.prod(_numbers(inputs[1]))


def _range(inputs: Sequence[Any], axis: int) -> int:
    start, limit, delta = (value.item() for value in inputs)
    return (range_length(start, limit, delta) or 0) if delta else 0  # numpy rejects the others


def _constant_of_shape(inputs: Sequence[Any], axis: int) -> int:
    return math.prod(_numbers(inputs[0]))


def _one_hot(inputs: Sequence[Any], axis: int) -> int:
    return int(inputs[0].size) * max(0, int(inputs[1].reshape(-1)[0]))


def _gather(inputs: Sequence[Any], axis: int) -> int:
    data, indices = inputs[:2]
    return int(data.size) // max(1, int(data.shape[axis])) * int(indices.size)


def _gather_nd(inputs: Sequence[Any], axis: int) -> int:
    data, indices = inputs
    depth = int(indices.shape[-1])
    return int(indices.size) // max(1, depth) * int(math.prod(data.shape[depth:]))


def _concat(inputs: Sequence[Any], axis: int) -> int:
    return sum(int(value.size) for value in inputs)


def _broadcast(inputs: Sequence[Any], axis: int) -> int:
    shapes = [value.shape for value in inputs if value is not None]
    return _product_of_broadcast(shapes) if math.prod(map(math.prod, shapes)) > _SMALL else 0


def _product(inputs: Sequence[Any], axis: int) -> int:
    a, b = inputs[:2]
    if a.size * b.size <= _SMALL or min(a.ndim, b.ndim) < 2:
        return 0
    return _product_of_broadcast([a.shape[:-2], b.shape[:-2]]) * int(a.shape[-2]) * int(b.shape[-1])


def _product_of_broadcast(shapes: Sequence[tuple[int, ...]]) -> int:
    """The number of elements of the common shape; shapes that do not broadcast are the evaluator's error."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return math.prod(0 if 0 in lengths else max(lengths) for lengths in zip(*padded, strict=True))


def _numbers(value: Any) -> list[int]:
    """The values of a shape; Python's numbers do not overflow."""
    return [int(number) for number in value.reshape(-1).tolist()]


_ELEMENTS: Final[dict[str, Callable[[Sequence[Any], int], int]]] = {
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "OneHot": _one_hot,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "MatMul": _product,
    "MatMulInteger": _product,
}
"""Elements of the result, for the inputs and the attribute `axis`."""


# -- bytes of text and of sequences ------------------------------------------------------------------------


def _string_concat(node: Node) -> Measure:
    def measure(inputs: Sequence[Any]) -> int:
        count = _product_of_broadcast([value.shape for value in inputs])
        return sum(count // max(1, value.size) * _text_bytes(value) for value in inputs)

    return measure


def _string_split(node: Node) -> Measure:
    separator, most = node.attributes.get("delimiter") or None, node.attributes.get("maxsplit")

    def measure(inputs: Sequence[Any]) -> int:
        texts = inputs[0].reshape(-1).tolist()
        parts = max((len(text.split(separator, -1 if most is None else most)) for text in texts), default=0)
        return _text_bytes(inputs[0]) + _REFERENCE * len(texts) * parts

    return measure


def _split_to_sequence(node: Node) -> Measure:
    axis = node.attributes.get("axis", 0)

    def measure(inputs: Sequence[Any]) -> int:
        split = inputs[1] if len(inputs) > 1 else None
        if split is not None and split.ndim:
            return int(split.size) * _VIEW
        step = 1 if split is None else max(1, int(split.item()))
        return -(-int(inputs[0].shape[axis]) // step) * _VIEW

    return measure


def _concat_from_sequence(node: Node) -> Measure:
    return lambda inputs: sum(value_bytes(value) for value in inputs[0])


def _tfidf(node: Node) -> Measure:
    columns = max(node.attributes["ngram_indexes"], default=0) + 1
    item = _item_size(node)
    return lambda inputs: item * columns * (inputs[0].shape[0] if inputs[0].ndim > 1 else 1)


_BYTES: Final[dict[str, Callable[[Node], Measure]]] = {
    "StringConcat": _string_concat,
    "StringSplit": _string_split,
    "SplitToSequence": _split_to_sequence,
    "ConcatFromSequence": _concat_from_sequence,
    "TfIdfVectorizer": _tfidf,
}


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
    if value.size <= _MOST_VALUES:
        return Constant(value)
    return Parameter(ElementType.from_numpy(value.dtype), PartialShape(value.shape))
