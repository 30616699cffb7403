"""Einsum: what an equation may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from engine.ir import Node, ValueType
from engine.ops.registry import infers
from engine.ops.rules import fail

EQUATION_FORM: Final = "terms of letters and '...' between commas, and perhaps '->' and a last one"

_TERM: Final = r"[A-Za-z\s]*(?:\.\.\.)?[A-Za-z\s]*"
_EQUATION: Final = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?", re.ASCII)


def is_equation(text: str) -> bool:
    """Whether `text` has the form of an equation (ONNX Einsum-28). ONNX's own inference never ends on some others."""
    return _EQUATION.fullmatch(text) is not None


@infers("Einsum")
def _einsum(node: Node) -> Sequence[ValueType] | None:
    equation = node.attributes.get("equation")
    if not isinstance(equation, str) or not is_equation(equation):
        fail(node, f"{equation!r} is no equation; expected {EQUATION_FORM}")
    return None
