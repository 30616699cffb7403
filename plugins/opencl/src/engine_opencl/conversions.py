"""OpenCL C code for element types that kernels only read and write: types of up to 8 bits."""

from __future__ import annotations

from typing import Final

from engine.ir import ElementType
from engine.ir.element_type import f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0
from engine_opencl.elements import CONVERTED, SMALL_INTEGERS, c_type, load_code, moved_c_type, store_code, stored_c_type

_SPECIALS: Final = {f8e5m2: "INFINITE", f8e4m3fn: "ONLY_NAN", f8e4m3fnuz: "UNSIGNED_ZERO", f8e5m2fnuz: "UNSIGNED_ZERO"}
_ROUNDING: Final = {"down": 0, "up": 1, "nearest": 2}


def register_type(element_type: ElementType) -> str:
    """The OpenCL C type of a value in registers: `c_type`, or the type to which a type of `CONVERTED` is converted."""
    if element_type in SMALL_INTEGERS:
        return "char" if element_type.is_signed else "uchar"
    return "float" if element_type in CONVERTED else c_type(element_type)


def memory_type(element_type: ElementType) -> str:
    """The OpenCL C type of elements in memory, also for `CONVERTED`."""
    return moved_c_type(element_type) if element_type in CONVERTED else stored_c_type(element_type)


def read_code(element_type: ElementType, pointer: str, index: str) -> str:
    """OpenCL code that reads the element at `index` of `pointer`, as `register_type`."""
    if element_type in CONVERTED:
        return _value(element_type, f"{pointer}[{index}]")
    return load_code(element_type, pointer, index)


def write_code(element_type: ElementType, pointer: str, index: str, value: str) -> str:
    """A statement that stores a value which the element type holds, or 0 where the device flushes 2^-127."""
    if element_type in CONVERTED:
        saturate = element_type is f8e8m0
        return f"{pointer}[{index}] = {_code(element_type, value, 'nearest', saturate=saturate)};"
    return store_code(element_type, pointer, index, value)


def rounded_code(element_type: ElementType, value: str, round_mode: str, *, saturate: bool) -> str:
    """A number rounded to the nearest value of a type of `CONVERTED`, as `register_type` (ONNX Cast-25)."""
    return _value(element_type, _code(element_type, value, round_mode, saturate=saturate))


def _value(element_type: ElementType, code: str) -> str:
    if element_type is f8e8m0:
        return f"power_value({code})"
    if element_type not in SMALL_INTEGERS:
        return f"small_value({code}, {_format(element_type)})"
    if not element_type.is_signed:
        return f"(uchar)({code} & {(1 << element_type.bits) - 1})"
    unused = 8 - element_type.bits
    return f"(char)((char)({code} << {unused}) >> {unused})"


def _code(element_type: ElementType, value: str, round_mode: str, *, saturate: bool) -> str:
    if element_type is f8e8m0:
        return f"power_code({value}, {_ROUNDING[round_mode]}, {int(saturate)})"
    if element_type not in SMALL_INTEGERS:
        return f"small_code({value}, {_format(element_type)}, {int(saturate)})"
    return f"((int)({value}) & {(1 << element_type.bits) - 1})"


def _format(element_type: ElementType) -> str:
    limits = element_type.finfo
    return f"{limits.nexp}, {limits.nmant}, {1 - limits.minexp}, {_SPECIALS.get(element_type, 'NO_SPECIALS')}"
