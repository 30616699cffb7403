"""Float attributes: ONNX stores them as f32, so every node holds the f32 values, wherever it was made."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.ir.long_list import LONG, LongList

_LARGEST: Final = float(np.finfo(np.float32).max)
_UNCHANGED: Final = frozenset([int, str, bytes, np.ndarray])

MAX_SHOWN: Final = 64
"""Elements of tuples that messages and texts of models show; of longer ones they show the first `FIRST_SHOWN`."""
FIRST_SHOWN: Final = 8


class _Plain(str):
    """A text whose repr has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def as_stored(name: str, value: Any) -> Any:
    """The value of attribute `name` as ONNX stores it: floats, alone or in a tuple or list, become their f32 values.

    A tuple of floats and integers becomes one of floats, and a long tuple a `LongList`. All other values are returned
    as they are. A model then computes the same before it is written and after it is read. Raises `ModelError` for a
    finite number beyond f32.
    """
    if type(value) in _UNCHANGED or type(value) is LongList:
        return value
    if isinstance(value, (float, np.floating)):
        return as_float(name, float(value))
    if isinstance(value, (tuple, list)):
        kinds = set(map(type, value))
        if any(issubclass(kind, (float, np.floating)) for kind in kinds) and all(map(_is_number, kinds)):
            stored = _stored(name, value)
            return _shared(stored) if isinstance(value, tuple) else list(stored)
        return _shared(value) if type(value) is tuple else value
    return value


def _shared(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """A long tuple as the one object that a node and its copies have."""
    return LongList(value) if len(value) >= LONG else value


def as_float(name: str, value: float) -> float:
    """The value of float attribute `name` as ONNX stores it. Raises `ModelError` for a finite number beyond f32."""
    return _stored(name, (value,))[0]


def shortest_float(value: float) -> float:
    """The shortest decimal that rounds to the same f32 as `value`, for texts: 0.1 for the attribute 0.1."""
    return float(str(np.float32(value)))


def shown_attribute(value: Any) -> Any:
    """The value of an attribute for messages: f32 values, alone or in a tuple, as their shortest decimals.

    Of a long tuple, the beginning and the length, as a text whose repr has no quotes.
    """
    if isinstance(value, tuple) and len(value) > MAX_SHOWN:
        first = ", ".join(repr(shown_attribute(each)) for each in value[:FIRST_SHOWN])
        return _Plain(f"({first}, ...; {len(value)} values)")
    if isinstance(value, float):
        return shortest_float(value) if abs(value) <= _LARGEST and np.float32(value) == value else value
    return tuple(map(shown_attribute, value)) if isinstance(value, tuple) else value


def _is_number(kind: type) -> bool:
    return issubclass(kind, (int, float, np.integer, np.floating))


def _stored(name: str, values: Sequence[Any]) -> tuple[float, ...]:
    try:
        stored = tuple(array("f", values))
    except OverflowError:  # an integer beyond f64
        stored = (math.inf,)
    if any(map(math.isinf, stored)):
        for value in values:
            if abs(value) > _LARGEST and value not in (math.inf, -math.inf):
                raise ModelError(
                    f"attribute {name!r} is {value!r:.40}, beyond f32, the type of ONNX's float attributes; "
                    f"expected -{_LARGEST:g}..{_LARGEST:g}, or an infinity"
                )
    return stored
