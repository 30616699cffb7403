"""Where type inference plugs in: `engine.ops` registers the one function that knows every operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from engine.errors import TypeInferenceError
from engine.ir.types import ValueType

Inferencer: TypeAlias = Callable[[Any], Sequence[ValueType]]
"""Of a `Node`, which imports this module."""


def _missing(node: object) -> Sequence[ValueType]:
    raise TypeInferenceError(f"no operator set is loaded to infer the types of {node}; import engine.ops first")


current: Inferencer = _missing
"""The registered function itself: what makes a node for every rewrite of a pass spares a call."""


def set_inferencer(inferencer: Inferencer) -> None:
    """Make `inferencer` the function that gives the output types of every operator node."""
    global current
    current = inferencer


def infer(node: object) -> Sequence[ValueType]:
    """The output types of `node` from its inputs and attributes. Raises `TypeInferenceError`."""
    return current(node)
