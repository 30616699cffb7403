"""Storage and computation types of elements on the device."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.ir import ElementType, Output
from engine.ir.element_type import boolean, f16, f32, i8, i32, i64, u8

_C_TYPES: Final = {
    f32: "float", f16: "float", i32: "int", i64: "long", boolean: "uchar", u8: "uchar", i8: "char",
}  # fmt: skip
"""Bool is stored as 0 or 1 in a byte. f16 is a storage type, which every device supports; registers hold float."""

FLOATS: Final = frozenset({f32, f16})
INTEGERS: Final = frozenset({i32, i64, u8, i8})
STORED: Final = frozenset(_C_TYPES)


def c_type(element_type: ElementType) -> str:
    """The OpenCL C type that elements are computed in."""
    return _C_TYPES[element_type]


def stored_c_type(element_type: ElementType) -> str:
    """The OpenCL C type of elements in memory; that for f16 is accessed only through `load_code` and `store_code`."""
    return "half" if element_type is f16 else _C_TYPES[element_type]


def moved_c_type(element_type: ElementType) -> str:
    """An OpenCL C type whose assignment copies an element bit by bit, and whose 0 is that of the element."""
    return "ushort" if element_type is f16 else _C_TYPES[element_type]


def moved_scalar(element_type: ElementType, value: Any) -> np.generic:
    """A number as an argument of type `moved_c_type`."""
    if element_type is boolean:
        return np.uint8(bool(value))
    number: np.generic = np.dtype(element_type.numpy).type(value)
    return number.view(np.uint16) if element_type is f16 else number


def load_code(element_type: ElementType, pointer: str, index: str) -> str:
    """The element at an index, in its computation type."""
    return f"vload_half({index}, {pointer})" if element_type is f16 else f"{pointer}[{index}]"


def store_code(element_type: ElementType, pointer: str, index: str, value: str) -> str:
    """A statement that stores an element, rounded to nearest for f16."""
    if element_type is f16:
        return f"vstore_half_rte((float)({value}), {index}, {pointer});"
    return f"{pointer}[{index}] = {value};"


def stored_type(value: Output) -> np.dtype[Any]:
    """The numpy type of a value's elements on the device."""
    return np.dtype(value.element_type.numpy)
