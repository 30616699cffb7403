"""Activations of fused operators: an ONNX operator's name and its parameters."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, Node, Output
from engine.ops import activations as _activations  # noqa: F401  it declares them
from engine.ops.create import create
from engine.ops.registry import attribute
from engine.ops.spec import check_choice, refuse
from engine.ops.traits import imported_operators_with, traits_of_operator
from engine.startup import dataclass

ACTIVATIONS: Final[dict[str, tuple[str, ...]]] = {
    **{
        name: traits_of_operator(name).activation or ()
        for name in imported_operators_with(lambda t: t.activation is not None)
    },
    "GeluTanh": (),
}
"""The parameters of each activation by name. `GeluTanh` is Gelu with `approximate="tanh"`; others are as in ONNX."""


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation: its name in `ACTIVATIONS`, and its parameters in the order given there."""

    name: str
    parameters: tuple[float, ...] = ()


def activation_of(node: Node) -> Activation | None:
    """The activation that the ONNX operator `node` applies to its first input; None if it is not an activation.

    A Clip is one only if its limits are constants that float32, the type of parameters, represents exactly.
    """
    if node.domain:
        return None
    if node.op_type == "Gelu":
        return Activation("GeluTanh" if attribute(node, "approximate") == "tanh" else "Gelu")
    names = ACTIVATIONS.get(node.op_type)
    if names is None:
        return None
    if node.op_type == "Clip":
        limits = _limits(node)
        return None if limits is None else Activation("Clip", limits)
    return Activation(node.op_type, tuple(float(attribute(node, name)) for name in names))


def fused_activation(node: Node) -> Activation | None:
    """The activation of a fused operator, according to its attributes; None if none. Raises `OperatorSpecError`."""
    name = attribute(node, "activation")
    if not name:
        return None
    check_choice(node, "activation", name, ACTIVATIONS)
    parameters = tuple(attribute(node, "activation_parameters") or ())
    if len(parameters) != len(ACTIVATIONS[name]):
        meaning = ", ".join(ACTIVATIONS[name])
        refuse(node, "activation_parameters", list(parameters), f"[{meaning}] for {name}")
    return Activation(name, parameters)


def apply_activation(value: Output, activation: Activation) -> Output:
    """`value` after the activation, as an ONNX node. Raises `ModelError` for unknown names and wrong parameters."""
    names = ACTIVATIONS.get(activation.name)
    if names is None:
        raise ModelError(f"activation {activation.name!r} is unknown; expected one of {', '.join(ACTIVATIONS)}")
    if len(names) != len(activation.parameters):
        raise ModelError(
            f"activation {activation.name} takes {len(names)} parameters ({', '.join(names) or 'none'}), "
            f"got {len(activation.parameters)}"
        )
    if activation.name == "Clip":
        element_type = value.element_type
        limits = [Constant(np.asarray(limit), element_type) for limit in activation.parameters]
        return create("Clip", [value, *limits]).output(0)
    if activation.name == "GeluTanh":
        return create("Gelu", [value], {"approximate": "tanh"}).output(0)
    return create(activation.name, [value], dict(zip(names, activation.parameters, strict=True))).output(0)


def _limits(node: Node) -> tuple[float, float] | None:
    if not node.input_value(0).element_type.is_real:
        return None
    limits = [-np.inf, np.inf]
    for index in (1, 2):
        if not node.has_input(index):
            continue
        constant = node.input_value(index).node
        if not isinstance(constant, Constant) or constant.data.size != 1:
            return None
        number = float(constant.data.reshape(-1)[0])
        if float(np.float32(number)) != number:
            return None
        limits[index - 1] = number
    return limits[0], limits[1]
