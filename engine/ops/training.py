"""Optimizers (`ai.onnx.preview.training`): the numbers of their inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from engine.errors import OperatorSpecError
from engine.ir import Node
from engine.ops.spec import OperatorSpec, check_choice, specifies

_DOMAIN: Final = "ai.onnx.preview.training"
_SHARED: Final = 2  # the learning rate and the count of updates
PER_TENSOR: Final = {"Adagrad": (3, 2), "Adam": (4, 3), "Momentum": (3, 2)}
"""How many inputs and outputs there are for each updated tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec(OperatorSpec):
    """An update of any number of tensors, each of which has a gradient and accumulated values."""

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
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
    """Adagrad (ONNX Adagrad-1)."""


@specifies("Adam", domain=_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSpec(OptimizerSpec):
    """Adam (ONNX Adam-1)."""


@specifies("Momentum", domain=_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumSpec(OptimizerSpec):
    """Momentum (ONNX Momentum-1)."""

    mode: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        super(MomentumSpec, cls).resolve(node, given)
        check_choice(node, "mode", given["mode"], ("standard", "nesterov"))
