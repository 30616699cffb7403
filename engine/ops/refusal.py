"""Why an operator does not allow the values of its inputs: decided by its own type rule, once they are known.

Axes, shapes and indices may be computed, and lengths may be open, when a model is read. An error that an evaluation
finds in them is a fault of the data, not of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import EngineError, ModelError
from engine.ir import Constant, ElementType, Node, Parameter, PartialShape
from engine.ir.node import OutputLike

Refusal: TypeAlias = "Callable[[Sequence[Any], Exception], str | None]"
"""The reason why the operator does not allow the inputs for which the exception was raised; None if it does."""

_FEW: Final = 8


def refusal_of(node: Node) -> Refusal:
    """The reason for a failure of `node`, which is not kept."""
    title, op_type, domain, name = str(node), node.op_type, node.domain, node.friendly_name
    has_bodies, count = node.has_bodies, node.num_outputs
    attributes = {} if has_bodies else node.attributes

    def reason(inputs: Sequence[Any], error: Exception) -> str | None:
        if isinstance(error, ModelError):
            return str(error).removeprefix(f"{title}: ")
        if has_bodies or not all(value is None or isinstance(value, np.ndarray) for value in inputs):
            return None
        try:
            sources = [None if value is None else _source(value) for value in inputs]
            Node(op_type, sources, attributes, domain=domain, num_outputs=count, friendly_name=name)
        except ModelError as e:
            return str(e).removeprefix(f"{title}: ")
        except EngineError:
            return None
        return None

    return reason


def _source(value: np.ndarray[Any, Any]) -> OutputLike:
    """A constant where rules read values, such as axes and indices, otherwise a parameter of the same shape."""
    if value.dtype.kind in "iub" or (value.ndim < 2 and value.size <= _FEW and value.dtype != object):
        return Constant(value)
    return Parameter(ElementType.from_numpy(value.dtype), PartialShape(value.shape))
