"""Optimizers (`ai.onnx.preview.training`): the numbers of their inputs and outputs; evaluation of Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import Node
from engine.ops.spec import OperatorSpec, check_choice, evaluates_with_spec, specifies
from engine.ops.tensors import Array
from engine.startup import dataclass

_DOMAIN: Final = "ai.onnx.preview.training"
_SHARED: Final = 2  # the learning rate and the count of updates
PER_TENSOR: Final = {"Adagrad": (3, 2), "Adam": (4, 3), "Momentum": (3, 2)}
"""How many inputs and outputs there are for each updated tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec(OperatorSpec):
    """An update of any number of tensors, each of which has a gradient and accumulated values."""

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        inputs, outputs = PER_TENSOR[node.op_type]
        count, rest = divmod(node.num_inputs - _SHARED, inputs)
        if rest or count < 1 or None in node.sources:
            raise OperatorSpecError(
                f"{node}: it has {node.num_inputs} inputs; allowed: {_SHARED} and {inputs} for each updated tensor"
            )
        if node.num_outputs != count * outputs:
            raise OperatorSpecError(
                f"{node}: it has {node.num_outputs} outputs; allowed: {count * outputs}, {outputs} for each of {count} "
                "updated tensors"
            )


@specifies("Adagrad", domain=_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class AdagradSpec(OptimizerSpec):
    """Adagrad: steps divided by the root of the summed squares of gradients (ONNX Adagrad-1)."""


@specifies("Adam", domain=_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSpec(OptimizerSpec):
    """Adam: steps from moving averages of gradients and their squares (ONNX Adam-1)."""

    alpha: float
    beta: float
    epsilon: float
    norm_coefficient: float
    norm_coefficient_post: float


@evaluates_with_spec("Adam", domain=_DOMAIN)
def adam(spec: AdamSpec, rate: Array, updates: Array, *values: Array) -> tuple[Array, ...]:
    """The updated tensors, then their averaged gradients, then their averaged squares, each in its own type.

    onnx.reference rounds them to f32 if there are several.
    """
    count = len(values) // 4
    steps = [_adam_step(spec, rate, updates, values[index::count]) for index in range(count)]
    return tuple(step[part] for part in range(3) for step in steps)


def _adam_step(spec: AdamSpec, rate: Array, updates: Array, values: Sequence[Array]) -> tuple[Array, Array, Array]:
    """X, V and H after an update, for X, G, V and H."""
    x, gradient, v, h = values
    regularized = spec.norm_coefficient * x + gradient
    new_v = spec.alpha * v + (1 - spec.alpha) * regularized
    new_h = spec.beta * h + (1 - spec.beta) * (regularized * regularized)
    past = int(updates.reshape(-1)[0])
    correction = np.sqrt(1 - spec.beta**past) / (1 - spec.alpha**past) if past > 0 else 1.0
    new_x = x - rate.reshape(-1)[0] * correction * (new_v / (np.sqrt(new_h) + spec.epsilon))
    final = (1 - spec.norm_coefficient_post) * new_x
    return final.astype(x.dtype), new_v.astype(v.dtype), new_h.astype(h.dtype)


@specifies("Momentum", domain=_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumSpec(OptimizerSpec):
    """Momentum: steps along an average of the gradients, in `mode` standard or nesterov (ONNX Momentum-1)."""

    mode: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        super().resolve(node, given)
        check_choice(node, "mode", given["mode"], ("standard", "nesterov"))
