"""Operators that are defined by an expression of other operators: their types, evaluation and decomposition follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from engine.errors import ModelError
from engine.ir import ElementType, Model, Node, Output, Parameter, TensorType
from engine.ops.evaluator import ModelEvaluator

ExpressionFunction: TypeAlias = Callable[..., Any]
"""Takes the inputs as values (None if omitted) and the attributes by keyword; returns a node, a value, or several."""
_KEPT = 8
"""The types of inputs for which an evaluation keeps the compiled expression."""


def expand(
    expression: ExpressionFunction, inputs: Sequence[Output | None], attributes: Mapping[str, Any], count: int
) -> list[Output]:
    """The values of the expression for these inputs, one for each of `count` outputs.

    Raises `ModelError` if the function does not return that many nodes or values, and the errors of the function.
    """
    found = expression(*inputs, **attributes)
    values = list(found) if isinstance(found, (list, tuple)) else [found]
    values = [value.output(0) if isinstance(value, Node) and value.num_outputs == 1 else value for value in values]
    if len(values) != count or not all(isinstance(value, Output) for value in values):
        raise ModelError(f"its expression returns {found!r:.200}; expected {count} nodes or values of the engine's IR")
    return values


def expression_types(
    expression: ExpressionFunction, types: Sequence[TensorType | None], attributes: Mapping[str, Any], count: int
) -> list[Any]:
    """The types of the outputs for inputs of these types. Raises as `expand`."""
    inputs = [None if each is None else Parameter(each).output(0) for each in types]
    return [value.type for value in expand(expression, inputs, attributes, count)]


class ExpressionEvaluator:
    """Evaluates an operator by the reference evaluation of its expression; safe for concurrent calls."""

    __slots__ = ("_attributes", "_count", "_expression", "_known")

    def __init__(self, expression: ExpressionFunction, attributes: Mapping[str, Any], count: int) -> None:
        self._expression = expression
        self._attributes = attributes
        self._count = count
        self._known: dict[tuple[object, ...], ModelEvaluator] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs for these arrays, None for an omitted input."""
        key = tuple(None if value is None else (value.dtype, value.shape) for value in inputs)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            found = self._known[key] = self._compiled(inputs)
        return tuple(found.run([value for value in inputs if value is not None]))

    def _compiled(self, inputs: Sequence[Any]) -> ModelEvaluator:
        sources = [
            None if value is None else Parameter(ElementType.from_numpy(value.dtype), value.shape) for value in inputs
        ]
        values = [None if source is None else source.output(0) for source in sources]
        results = expand(self._expression, values, self._attributes, self._count)
        return ModelEvaluator(Model(results, [source for source in sources if source is not None]))
