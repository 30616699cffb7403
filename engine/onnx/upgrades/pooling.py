"""Upgrades of LpPool and GlobalLpPool, whose exponent is a float in version 1."""

from __future__ import annotations

import math

from engine.ir import Output
from engine.onnx.upgrades.call import OldCall, Upgraded, upgrade
from engine.onnx.upgrades.emit import emit, scalar_like


@upgrade("LpPool", since=1, to=2)
def _integer_exponent(call: OldCall) -> Upgraded:
    kernel = call.integers("kernel_shape")
    if not kernel:
        call.invalid("attribute `kernel_shape` is missing")
    exponent = call.number("p", 2.0)
    if exponent.is_integer():
        return call.at(2, p=int(exponent))
    window = {name: value for name, value in call.attributes.items() if name != "p"}
    powers = _powers(call.input(0), exponent)
    mean = emit("AveragePool", powers, **window, count_include_pad=1)
    return [_root(emit("Mul", mean, scalar_like(float(math.prod(kernel)), mean)), exponent)]


@upgrade("GlobalLpPool", since=1, to=2)
def _global_integer_exponent(call: OldCall) -> Upgraded:
    exponent = call.number("p", 2.0)
    if exponent.is_integer():
        return call.at(2, p=int(exponent))
    x = call.input(0)
    mean = emit("GlobalAveragePool", _powers(x, exponent))
    spatial_shape = emit("Shape", x, start=2)
    count = emit("CastLike", emit("ReduceProd", spatial_shape, keepdims=0), x)
    return [_root(emit("Mul", mean, count), exponent)]


def _powers(x: Output, exponent: float) -> Output:
    return emit("Pow", emit("Abs", x), scalar_like(exponent, x))


def _root(value: Output, exponent: float) -> Output:
    return emit("Pow", value, scalar_like(1.0 / exponent, value))
