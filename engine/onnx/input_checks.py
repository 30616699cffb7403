"""Checks the inputs of nodes whose types whole-graph inference has found.

That inference does not check every element type, and for some operators compares only some of the inputs' lengths.
"""

from __future__ import annotations

from typing import Final

from engine.ir import Constant, Node, Output, TensorType
from engine.ops import get_op
from engine.ops.inference import check
from engine.ops.spec import has_spec

_MAX_SCALES: Final = 8


class InputChecker:
    """Checks the nodes of one model, equal calls only once: large models repeat most of their calls."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()

    def check(self, node: Node) -> None:
        """Raise `TypeInferenceError` or `OperatorSpecError` if the operator does not accept the inputs of `node`."""
        op = get_op(node.op_type, node.domain)
        is_plain = op.rule is None and op.agreement is None and not has_spec(node)
        key = _key_of_elements(node) if is_plain else _key_of_types(node)
        if not self._has_seen(key):
            check(node)
        if op.restriction is not None:
            op.restriction(node)

    def _has_seen(self, key: tuple[object, ...]) -> bool:
        try:
            if key in self._seen:
                return True
            self._seen.add(key)
        except TypeError:  # an unhashable attribute
            pass
        return False


def _key_of_elements(node: Node) -> tuple[object, ...]:
    key: list[object] = [node.op_type, node.domain]
    for value in node.input_values:
        value_type = None if value is None else value.type
        key.append(value_type.element_type if isinstance(value_type, TensorType) else value_type)
    return tuple(key)


def _key_of_types(node: Node) -> tuple[object, ...]:
    """Everything of a node that a type rule or a spec reads."""
    key: list[object] = [node.op_type, node.domain, node.num_outputs, *node.attributes.items()]
    for value in node.input_values:
        key.append(None if value is None else value.type)
        if value is not None and type(value.node) is Constant and _may_decide(value):
            key.append(value.node)
    return tuple(key)


def _may_decide(constant: Output) -> bool:
    """Whether a type rule may read the values of a constant: a shape, axes, or the scales of a Resize."""
    shape = constant.shape
    return len(shape) < 2 and (constant.element_type.is_integral or shape.size() <= _MAX_SCALES)
