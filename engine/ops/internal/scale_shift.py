"""`ScaleShift`: a factor and a summand for each channel, and an activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ir import Constant, Node, Output, OutputLike, PartialShape, TensorType, ValueType
from engine.ops.create import create
from engine.ops.fused_activation import Activation, fused_activation
from engine.ops.internal.definition import define, padded
from engine.ops.internal.fused_conv import finish
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import broadcast_shapes, fail
from engine.ops.spec import OperatorSpec, specifies
from engine.startup import dataclass


def ScaleShift(  # noqa: N802 - constructors of operators are called as the operators are
    x: OutputLike, scale: OutputLike, shift: OutputLike, *, activation: Activation | None = None
) -> Node:
    """`activation(x * scale + shift)` by channel: `x` is [N, C, ...], `scale` and `shift` are [C].

    It replaces a BatchNormalization at inference and subsequent products, sums and activations.
    """
    own: dict[str, Any] = {}
    if activation is not None:
        own = {"activation": activation.name, "activation_parameters": activation.parameters or None}
    return create("ScaleShift", [x, scale, shift], own, domain=INTERNAL_DOMAIN)


@specifies("ScaleShift", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleShiftSpec(OperatorSpec):
    """A factor and a summand for each channel, and the activation."""

    activation: Activation | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given["activation"] = fused_activation(node)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    x, scale, shift = padded(inputs, 3)
    assert x is not None
    if x.shape.rank.is_dynamic or len(x.shape) < 2:
        fail(node, f"input 0 (X) must have a known rank of 2 or more ([N, C, ...]), got {x.type}")
    axes = Constant(np.arange(1, len(x.shape) - 1))
    for value, name in ((scale, "scale"), (shift, "shift")):
        assert value is not None
        if not value.shape.compatible(PartialShape([x.shape[1]])):
            fail(node, f"{name} must have one value per channel, [{x.shape[1]}], got {value.type}")
    factor, summand = (create("Unsqueeze", [value, axes]) for value in (scale, shift))
    scaled = create("Mul", [x, factor])
    return [finish(node, create("Add", [scaled, summand]).output(0), None, ScaleShiftSpec.of(node).activation)]


def _infer(node: Node) -> Sequence[ValueType] | None:
    """The type of x, made more specific by the number of channels; None if the decomposition must explain an error."""
    x, *others = (node.input_value(index).type for index in range(3))
    if not isinstance(x, TensorType) or x.shape.rank.is_dynamic or len(x.shape) < 2:
        return None
    spread = []
    for each in others:
        if not isinstance(each, TensorType) or each.element_type is not x.element_type or each.shape.rank != 1:
            return None
        if not each.shape.compatible(PartialShape([x.shape[1]])):
            return None
        spread.append(PartialShape([each.shape[0], *[1] * (len(x.shape) - 2)]))
    return (TensorType(x.element_type, broadcast_shapes(node, (x.shape, *spread))),)


define(
    "ScaleShift",
    [("X", False), ("scale", False), ("shift", False)],
    {"activation": "", "activation_parameters": ()},
    _decompose,
    "activation(X * scale + shift), with one factor and one summand for each channel.",
    rule=_infer,
)
