"""Lengths that were open when a node was compiled: its type rule compares them once they are known.

An evaluation would broadcast some contradictions, or ignore the rest of an input that is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, ElementType, Node, Parameter, PartialShape, TensorType, ValueType
from engine.ir.node import OutputLike

Contradiction: TypeAlias = Callable[[Sequence[Any]], bool]
"""Whether the lengths of a node's inputs contradict each other."""

_MAX_VALUES: Final = 64
"""Type rules read constants with up to this many elements: shapes, axes, sizes."""
_KEPT: Final = 64
"""Sets of shapes that are remembered as valid; a loop may have new ones in each iteration."""


def contradiction_of(node: Node) -> Contradiction | None:
    """The check of the lengths of inputs of `node`, which is not kept.

    None if all of them are known, or it has bodies, or inputs that are not tensors. The check takes no time for shapes
    that the node had before.
    """
    types = [value.type for value in node.input_values if value is not None]
    if node.has_bodies or not all(isinstance(each, TensorType) for each in types) or all(map(_is_known, types)):
        return None
    op_type, domain, attributes, count = node.op_type, node.domain, node.attributes, node.num_outputs
    constants = [None if value is None else _small(value.node) for value in node.input_values]
    valid: set[tuple[tuple[int, ...] | None, ...]] = set()

    def contradicts(inputs: Sequence[Any]) -> bool:
        if not all(value is None or isinstance(value, np.ndarray) for value in inputs):
            return False  # of a type that was not known, either
        shapes = tuple([None if value is None else value.shape for value in inputs])
        if shapes in valid:
            return False
        sources: list[OutputLike | None] = [
            known if known is not None or value is None else _parameter(value)
            for value, known in zip(inputs, constants, strict=True)
        ]
        try:
            Node(op_type, sources, attributes, domain=domain, num_outputs=count)
        except ModelError:
            return True
        if len(valid) == _KEPT:
            valid.clear()
        valid.add(shapes)
        return False

    return contradicts


def _is_known(value_type: ValueType) -> bool:
    return isinstance(value_type, TensorType) and value_type.shape.is_static


def _parameter(value: np.ndarray[Any, Any]) -> Parameter:
    return Parameter(ElementType.from_numpy(value.dtype), PartialShape(value.shape))


def _small(node: Node) -> Constant | None:
    if not isinstance(node, Constant) or node.output(0).shape.size() > _MAX_VALUES:
        return None
    return Constant(node.data, node.output(0).element_type)
