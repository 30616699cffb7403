"""Storage and computation types of elements on the device."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.ir import ElementType, Output
from engine.ir.element_type import (
    bf16,
    boolean,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
    u16,
    u32,
    u64,
)

_C_TYPES: Final = {
    f32: "float", f16: "float", bf16: "float", boolean: "uchar", i8: "char", u8: "uchar", i16: "short", u16: "ushort",
    i32: "int", u32: "uint", i64: "long", u64: "ulong", f64: "double",
}  # fmt: skip
"""Bool is stored as 0 or 1 in a byte. f16 and bf16 are storage types, on every device; registers hold float."""
C_BYTES: Final = {
    "float": 4, "float2": 8, "double": 8, "double2": 16,
    "char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "long": 8, "ulong": 8,
}  # fmt: skip
"""Bytes of an element in temporary memory, by its computation type."""

_STORED_AS: Final = {f16: "half", bf16: "ushort"}

FLOATS: Final = frozenset({f32, f16, bf16})
"""Computed in float."""
REALS: Final = FLOATS | {f64}
"""f64 only on devices with such arithmetic: see `lowering.registry`."""
INTEGERS: Final = frozenset({i8, u8, i16, u16, i32, u32, i64, u64})
SMALL_INTEGERS: Final = frozenset({i4, u4, i2, u2})
"""Each is stored in a byte, whose other bits are ignored when it is read."""
SMALL_REALS: Final = frozenset({f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f6e2m3, f6e3m2, f4e2m1})
CONVERTED: Final = frozenset({f8e8m0, *SMALL_REALS, *SMALL_INTEGERS})
"""Only moved, and converted to and from the types that kernels compute in: see `conversions.py`."""
COMPUTED: Final = frozenset(_C_TYPES)
STORED: Final = frozenset({*COMPUTED, *CONVERTED})
"""The types that can be in the device's memory."""
_MOVED_AS: Final = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


def c_type(element_type: ElementType) -> str:
    """The OpenCL C type that elements are computed in."""
    return _C_TYPES[element_type]


def stored_c_type(element_type: ElementType) -> str:
    """The OpenCL C type of elements in memory; f16 and bf16 are accessed only through `load_code` and `store_code`."""
    return _STORED_AS.get(element_type) or _C_TYPES[element_type]


def moved_c_type(element_type: ElementType) -> str:
    """An OpenCL C type whose assignment copies an element bit by bit, and whose 0 is the element's 0."""
    return _MOVED_AS[np.dtype(element_type.numpy).itemsize]


def moved_scalar(element_type: ElementType, value: Any) -> np.generic:
    """A number as an argument of type `moved_c_type`."""
    with np.errstate(over="ignore"):
        number: NDArray[Any] = np.array(value).astype(element_type.numpy)
    moved: np.generic = number.reshape(1).view(f"u{number.itemsize}")[0]
    return moved


def load_code(element_type: ElementType, pointer: str, index: str) -> str:
    """OpenCL code that reads the element at `index` of `pointer`; f16 and bf16 become f32."""
    if element_type is f16:
        return f"vload_half({index}, {pointer})"
    return f"bfloat_value({pointer}[{index}])" if element_type is bf16 else f"{pointer}[{index}]"


def store_code(element_type: ElementType, pointer: str, index: str, value: str) -> str:
    """A statement that stores an element, rounded to nearest for f16 and bf16."""
    if element_type is f16:
        return f"vstore_half_rte((float)({value}), {index}, {pointer});"
    if element_type is bf16:
        return f"{pointer}[{index}] = bfloat_code({value});"
    return f"{pointer}[{index}] = {value};"


def stored_type(value: Output) -> np.dtype[Any]:
    """The numpy type of a value's elements on the device."""
    return np.dtype(value.element_type.numpy)
