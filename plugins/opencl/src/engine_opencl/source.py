"""OpenCL C code that is generated for given shapes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib import resources
from typing import Final

from engine.ir import ElementType
from engine.ir.element_type import bf16, f16, f32, f64
from engine_opencl.elements import c_type, load_code, moved_c_type, store_code, stored_c_type

_CONVERSIONS: Final = {
    "bfloat": re.compile(r"\bbfloat_|_to_bfloat\b"), "small_types": re.compile(r"\b(small|power)_(value|code)\b"),
}  # fmt: skip
"""The files with conversions of element types, and the names of their functions."""


def kernel_source(name: str, real: ElementType = f32, /, **defines: object) -> str:
    """The text of `kernels/NAME.cl` after definitions of its parameters; `real` is its floating-point storage type."""
    given = "".join(f"#define {key} {value}\n" for key, value in defines.items())
    return real_access(real) + given + kernel_text(name)


def ending(code: str, bias: object | None, residual: object | None) -> dict[str, object]:
    """Definitions for kernels with an epilogue: its code, and the parameters ADDED for its buffers."""
    added = {"bias": bias, "residual": residual}
    parameters = [f", __global const real* restrict {name}" for name, each in added.items() if each is not None]
    return {"EPILOGUE": code, "ADDED": "".join(parameters)}


def real_access(real: ElementType) -> str:
    """Definitions of `real`, `load_real` and `store_real` for elements that are f32, f16, bf16 or f64 in memory."""
    kinds = f"#define REAL_IS_HALF {int(real is f16)}\n#define REAL_IS_BFLOAT {int(real is bf16)}\n"
    kinds += f"#define REAL_IS_DOUBLE {int(real is f64)}\n"
    return kinds + kernel_text("real_bfloat" if real is bf16 else "real") + kernel_text("factors")


def element_access(element_type: ElementType, name: str = "T") -> str:
    """Definitions of `T`, the computation type of elements, and `stored_T`, `load_T`, `store_T` for memory.

    `name` replaces T in all of them.
    """
    return (
        f"#define {name} {c_type(element_type)}\n#define stored_{name} {stored_c_type(element_type)}\n"
        f"#define load_{name}(from, at) {load_code(element_type, '(from)', '(at)')}\n"
        f"#define store_{name}(to, at, value) {store_code(element_type, '(to)', '(at)', '(value)').rstrip(';')}\n"
    )


def moved_access(element_type: ElementType) -> str:
    """The same for kernels that copy elements bit by bit, of any type on any device."""
    return (
        f"#define T {moved_c_type(element_type)}\n#define stored_T T\n"
        "#define load_T(from, at) (from)[at]\n#define store_T(to, at, value) (to)[at] = (value)\n"
    )


def lanes_access(element_type: ElementType, name: str, count: int, what: str) -> str:
    """Definitions of `load_NAME_WHAT` and `store_NAME_WHAT` for `count` neighbours from an index on, as floats."""
    half, rounded = ("_half", "_rte") if element_type is f16 else ("", "")
    decoded, encoded = f"vload{half}{count}(0, (from) + (at))", "(value)"
    if element_type is bf16:
        decoded, encoded = f"bfloat_value{count}({decoded})", f"bfloat_code{count}(value)"
    return (
        f"#define load_{name}_{what}(from, at) {decoded}\n"
        f"#define store_{name}_{what}(to, at, value) vstore{half}{count}{rounded}({encoded}, 0, (to) + (at))\n"
    )


def lanes_source(real: ElementType, count: int) -> str:
    """Common code of kernels with vectors of `count` results; `real` is their storage type."""
    access = real_access(real) + lanes_access(real, "real", count, "lanes")
    return f"#define LANES {count}\n" + access + kernel_text("lanes")


def with_conversions(source: str) -> str:
    """The text of a program after the functions for the element types that it converts."""
    return "".join(kernel_text(name) for name, functions in _CONVERSIONS.items() if functions.search(source)) + source


@functools.cache
def kernel_text(name: str) -> str:
    """The content of the file `kernels/NAME.cl`."""
    return resources.files("engine_opencl").joinpath("kernels", f"{name}.cl").read_text(encoding="utf-8")


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides in elements along each axis of a row-major tensor."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def collapsed(shape: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Merge adjacent axes if the strides of all tensors allow it; drop axes of length 1."""
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        here = [each[axis] for each in strides]
        if lengths and all(each[-1] == step * length for each, step in zip(steps, here, strict=True)):
            lengths[-1] *= length
            for each, step in zip(steps, here, strict=True):
                each[-1] = step
        else:
            lengths.append(length)
            for each, step in zip(steps, here, strict=True):
                each.append(step)
    return lengths, steps


def index_code(
    lengths: Sequence[int], strides: Sequence[Sequence[int]], names: Sequence[str], item: str = "i", of: str = "ulong"
) -> str:
    """Statements that convert a work item's index to an element's index in each tensor, in integer type `of`."""
    u = "ul" if of == "ulong" else "u"
    lines = [f"{of} r = {item};"] + [f"{of} {name} = 0;" for name in names]
    for axis in range(len(lengths) - 1, -1, -1):
        last = axis == 0
        lines.append(f"{{ {of} k = {'r' if last else f'r % {lengths[axis]}{u}'};")
        if not last:
            lines.append(f"r /= {lengths[axis]}{u};")
        lines += [f"{name} += k * {each[axis]}{u};" for name, each in zip(names, strides, strict=True) if each[axis]]
        lines.append("}")
    return "\n  ".join(lines)
