"""`read_layout`: the layout in which a model reads an input, as far as its operators determine it."""

from __future__ import annotations

from typing import Final

from engine.ir import Output, TensorType
from engine.ops import axes_of

_CHANNELS_SECOND: Final = ("N", "C")
"""The names of the first axes of an input that an operator, such as a convolution, reads as a batch and channels."""
_SLID_OVER: Final = {3: "W", 4: "HW", 5: "DHW"}
_MAX_NODES: Final = 64


def read_layout(value: Output) -> str:
    """The layout that the operators after `value` have for it, such as `NCHW` before a convolution; "" if unknown.

    Follows operators that keep or permute the axes. Operators that disagree leave the layout unknown.
    """
    rank = _rank(value)
    found: set[str] = set()
    seen = {value}
    ahead = [(value, tuple(range(rank)))] if rank in _SLID_OVER else []
    while ahead and len(seen) < _MAX_NODES:
        current, origin = ahead.pop(0)  # axis i of `current` is axis origin[i] of `value`
        for target in current.target_inputs:
            mapping = axes_of(target.node)
            if mapping is None:
                continue
            labels = mapping.inputs[target.index]
            if labels is not None and labels[:2] == _CHANNELS_SECOND:
                letters = dict(zip(origin, f"NC{_SLID_OVER[rank]}", strict=True))
                found.add("".join(letters[axis] for axis in range(rank)))
                continue
            result, places = target.node.output(0), [mapping.place(axis, target.index) for axis in range(rank)]
            if _rank(result) == rank and None not in places and result not in seen:
                seen.add(result)
                ahead.append((result, tuple(origin[places.index(axis)] for axis in range(rank))))
    return found.pop() if len(found) == 1 else ""


def _rank(value: Output) -> int:
    value_type = value.type
    is_known = isinstance(value_type, TensorType) and value_type.shape.rank.is_static
    return len(value.shape) if is_known else 0
