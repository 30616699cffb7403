"""`FusedConv`: convolution, bias, residual and activation in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.ir import Node, Output, OutputLike, TensorType, ValueType
from engine.ops.conv import ConvSpec, convolved_type
from engine.ops.create import create
from engine.ops.fused_activation import Activation, apply_activation
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.rules import broadcast_shapes, fail
from engine.startup.onnx_library import onnx

_CONV: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_TRANSPOSED: Final = (*_CONV, "output_padding", "output_shape")
_INTS: Final = onnx.defs.OpSchema.AttrType.INTS


def FusedConv(  # noqa: N802 - constructors of operators are called as the operators are
    x: OutputLike,
    weights: OutputLike,
    bias: OutputLike | None = None,
    residual: OutputLike | None = None,
    *,
    activation: Activation | None = None,
    transposed: bool = False,
    **attributes: Any,
) -> Node:
    """`activation(Conv(x, weights, bias) + residual)`; all parts except the convolution are optional.

    Args:
        x: [N, C, ...].
        weights: as for Conv, or for ConvTranspose if `transposed`.
        bias: [M].
        residual: a tensor of the output's shape, added before the activation.
        activation: applied last.
        transposed: whether it is a ConvTranspose.
        attributes: the attributes of Conv or ConvTranspose.
    """
    own: dict[str, Any] = {"transposed": int(transposed), **attributes}
    if activation is not None:
        own["activation"] = activation.name
        own["activation_parameters"] = activation.parameters or None
    return create("FusedConv", [x, weights, bias, residual], own, domain=INTERNAL_DOMAIN)


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    x, weights, bias, residual = padded(inputs, 4)
    spec = ConvSpec.of(node)
    kind, names = ("ConvTranspose", _TRANSPOSED) if spec.transposed else ("Conv", _CONV)
    attributes = {name: node.attributes[name] for name in names if name in node.attributes}
    return [finish(node, create(kind, [x, weights, bias], attributes).output(0), residual, spec.activation)]


def _infer(node: Node) -> Sequence[ValueType] | None:
    """The type of a convolution; None if it is transposed."""
    spec = ConvSpec.of(node)
    return None if spec.transposed else (finished_type(node, convolved_type(spec), spec.input(3)),)


def finish(node: Node, value: Output, residual: Output | None, activation: Activation | None) -> Output:
    """The common end of fused operators: the residual, then the activation."""
    if residual is not None:
        finished_type(node, TensorType(value.element_type, value.shape), residual)
        value = create("Add", [value, residual]).output(0)
    return value if activation is None else apply_activation(value, activation)


def finished_type(node: Node, value_type: TensorType, residual: Output | None) -> TensorType:
    """The type of a value after `finish`; no activation changes it. Raises `TypeInferenceError`."""
    if residual is None:
        return value_type
    if not residual.shape.compatible(value_type.shape):
        fail(node, f"the residual is {residual.type} and must have the type of the convolution, {value_type}")
    return TensorType(value_type.element_type, broadcast_shapes(node, (value_type.shape, residual.shape)))


define(
    "FusedConv",
    [("X", False), ("W", False), ("B", True), ("residual", True)],
    {
        "transposed": 0,
        "activation": "",
        "activation_parameters": (),
        "auto_pad": "NOTSET",
        "group": 1,
        **dict.fromkeys(("dilations", "kernel_shape", "pads", "strides", "output_padding", "output_shape"), _INTS),
    },
    _decompose,
    "activation(Conv(X, W, B) + residual), or with ConvTranspose if `transposed` is 1.",
    rule=_infer,
)
