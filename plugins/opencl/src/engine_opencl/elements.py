"""How elements are stored and computed on the device."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.ir import ElementType, Output
from engine.ir.element_type import boolean, f32, i8, i32, i64, u8

_C_TYPES: Final = {f32: "float", i32: "int", i64: "long", boolean: "uchar", u8: "uchar", i8: "char"}
"""Bool is stored as 0 or 1 in a byte."""

FLOATS: Final = frozenset({f32})
INTEGERS: Final = frozenset({i32, i64, u8, i8})
STORED: Final = frozenset(_C_TYPES)


def c_type(element_type: ElementType) -> str:
    """The name of an element type in OpenCL C."""
    return _C_TYPES[element_type]


def stored_type(value: Output) -> np.dtype[Any]:
    """The numpy type of a value's elements on the device."""
    return np.dtype(value.element_type.numpy)
