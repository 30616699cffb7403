"""GELU in its forms, and the activations that other operators have as an attribute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.ir import Output
from engine.onnx.contrib.call import REALS, ContribCall, contrib
from engine.onnx.upgrades.emit import emit, scalar_like

_QUICK_GELU: Final = 1.702
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""The parameters of activations by name, in the order of a list of numbers."""
_CLIP: Final = ("min", "max")


@contrib("Gelu", "X", outputs="Y")
def _gelu(call: ContribCall) -> list[Output]:
    return [emit("Gelu", call.typed(0, REALS))]


@contrib("BiasGelu", "A B", outputs="C")
def _bias_gelu(call: ContribCall) -> list[Output]:
    return [emit("Gelu", _biased(call))]


@contrib("FastGelu", "X bias?", outputs="Y")
def _fast_gelu(call: ContribCall) -> list[Output]:
    return [emit("Gelu", _biased(call), approximate="tanh")]


@contrib("QuickGelu", "X", "alpha", outputs="Y")
def _quick_gelu(call: ContribCall) -> list[Output]:
    return [emit("Swish", call.typed(0, REALS), alpha=call.number("alpha", _QUICK_GELU))]


def _biased(call: ContribCall) -> Output:
    """The first input and a bias for each of its last positions, if there is one."""
    x = call.typed(0, REALS)
    if not call.has_input(1):
        return x
    call.ranked(1, 1)
    return emit("Add", x, call.real(1))


def activated(call: ContribCall, value: Output, parameters: Mapping[str, float] | tuple[float, ...]) -> Output:
    """`value` after the attribute `activation`, whose parameters are by name, or in the order of its definition.

    Raises `UnsupportedError` for an unknown activation, and `ModelError` for parameters that it does not have.
    """
    name = call.text("activation", "")
    if not name:
        return value
    names = _CLIP if name == "Clip" else _PARAMETERS.get(name)
    if names is None:
        known = ", ".join(sorted([*_PARAMETERS, "Clip"]))
        call.unsupported(f"attribute `activation` is {name!r}", f"known ones are {known}")
    if isinstance(parameters, tuple):
        if len(parameters) not in (0, len(names)):
            call.invalid(
                f"attribute `activation_params` has {len(parameters)} numbers; expected {len(names)} for {name}"
            )
        parameters = dict(zip(names, parameters, strict=False))
    unknown = [each for each in parameters if each not in names]
    if unknown:
        call.invalid(f"attribute `activation_{unknown[0]}` is given; expected none for {name}")
    if name == "Clip":
        return emit("Clip", value, *(scalar_like(parameters[each], value) for each in _CLIP if each in parameters))
    return emit(name, value, **parameters)
