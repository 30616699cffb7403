"""`read_layout`: the layout in which a model reads an input, as far as its operators tell."""

from __future__ import annotations

from typing import Final

from engine.ir import Output, TensorType
from engine.ops import attribute

_READ_BY: Final = {
    "Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "GlobalAveragePool",
    "GlobalMaxPool", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
}  # fmt: skip
"""Operators whose first input is N, C, and then what they slide over."""
_KEEP_AXES: Final = {
    "Abs", "Cast", "Clip", "DequantizeLinear", "Identity", "LeakyRelu", "Neg", "Pad", "QuantizeLinear", "Relu",
    "Resize", "Sigmoid", "Sqrt", "Tanh",
}  # fmt: skip
_BROADCAST: Final = {"Add", "Div", "Mul", "Pow", "Sub"}
_SLID_OVER: Final = {3: "W", 4: "HW", 5: "DHW"}
_MOST_NODES: Final = 64


def read_layout(value: Output) -> str:
    """The layout that the operators after `value` have for it, such as `NCHW` before a convolution; "" if unknown.

    Follows operators that keep or transpose the axes. Operators that disagree leave the layout unknown.
    """
    rank = _rank(value)
    found: set[str] = set()
    seen = {value}
    ahead = [(value, tuple(range(rank)))] if rank in _SLID_OVER else []
    while ahead and len(seen) < _MOST_NODES:
        current, origin = ahead.pop(0)  # axis i of `current` is axis origin[i] of `value`
        for target in current.target_inputs:
            node = target.node
            if node.domain:
                continue
            if node.op_type in _READ_BY and target.index == 0:
                letters = dict(zip(origin, f"NC{_SLID_OVER[rank]}", strict=True))
                found.add("".join(letters[axis] for axis in range(rank)))
                continue
            if node.op_type == "Transpose":
                perm = attribute(node, "perm") or tuple(reversed(range(rank)))
                onward = tuple(origin[axis] for axis in perm)
            elif (node.op_type in _KEEP_AXES and target.index == 0) or node.op_type in _BROADCAST:
                onward = origin
            else:
                continue
            if _rank(node.output(0)) == rank and node.output(0) not in seen:
                seen.add(node.output(0))
                ahead.append((node.output(0), onward))
    return found.pop() if len(found) == 1 else ""


def _rank(value: Output) -> int:
    value_type = value.type
    is_known = isinstance(value_type, TensorType) and value_type.shape.rank.is_static
    return len(value.shape) if is_known else 0
