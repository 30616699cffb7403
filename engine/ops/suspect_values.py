"""Values of inputs that an operator does not allow, but an evaluation would take: it would give some result.

The reason, as for a failed evaluation, is the type rule's: see `engine.ops.refusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from engine.ir import Node
from engine.ops.families import Declarations

Suspicion: TypeAlias = Callable[[Sequence[Any]], bool]
"""Whether the values of a node's inputs are not allowed."""
Factory: TypeAlias = Callable[[Node], Suspicion]


def suspicion_of(node: Node) -> Suspicion | None:
    """The check of the values of inputs of `node`, which is not kept; None if its evaluation fails for all others."""
    factory = _FACTORIES[node.domain, node.op_type]
    return None if factory is None else factory(node)


def suspects(*op_types: str) -> Callable[[Factory], Factory]:
    """Decorator: the function of a node of these operators gives the check."""

    def register(factory: Factory) -> Factory:
        _FACTORIES.update({("", op_type): factory for op_type in op_types})
        return factory

    return register


def least(index: int, low: int) -> Factory:
    """No element of input `index` is below `low`."""

    def factory(node: Node) -> Suspicion:
        def is_suspect(inputs: Sequence[Any]) -> bool:
            value = given(inputs, index)
            return value is not None and value.size > 0 and bool(value.min() < low)

        return is_suspect

    return factory


def is_outside(values: Any, low: int, high: int) -> bool:
    """Whether an element is below `low` or above `high`."""
    return values.size > 0 and (int(values.min()) < low or int(values.max()) > high)


def given(inputs: Sequence[Any], index: int) -> Any:
    """An input, or None if it is omitted."""
    return inputs[index] if index < len(inputs) else None


_FACTORIES: Final[Declarations[Factory]] = Declarations()
