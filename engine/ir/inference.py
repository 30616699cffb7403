"""The hook for type inference: `engine.ops` registers the function that implements it for all operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from engine.errors import TypeInferenceError
from engine.ir.types import ValueType

Inferencer: TypeAlias = Callable[[Any], Sequence[ValueType]]
"""Takes a `Node`, whose module imports this one."""


def _missing(node: object) -> Sequence[ValueType]:
    raise TypeInferenceError(f"no operator set is loaded to infer the types of {node}; import engine.ops first")


current: Inferencer = _missing
"""The registered function, for callers that create many nodes and avoid the call of `infer`."""


def set_inferencer(inferencer: Inferencer) -> None:
    """Register `inferencer` as the function that returns the output types of operator nodes."""
    global current
    current = inferencer


def infer(node: object) -> Sequence[ValueType]:
    """The output types of `node` from its inputs and attributes. Raises `TypeInferenceError`."""
    return current(node)
