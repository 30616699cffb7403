"""Pieces of OpenCL C that are written for the shapes at hand."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources


def kernel_source(name: str, **defines: object) -> str:
    """The text of `kernels/NAME.cl` after definitions of its parameters."""
    text = resources.files("engine_opencl").joinpath("kernels", f"{name}.cl").read_text(encoding="utf-8")
    return "".join(f"#define {key} {value}\n" for key, value in defines.items()) + text


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next, along each axis of a row-major tensor."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def collapsed(shape: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Neighbouring axes along which all tensors go on evenly, as one; axes of length 1 disappear."""
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


def index_code(lengths: Sequence[int], strides: Sequence[Sequence[int]], names: Sequence[str], item: str = "i") -> str:
    """Statements that turn a work item's number into an element's index in each tensor."""
    lines = [f"ulong r = {item};"] + [f"ulong {name} = 0;" for name in names]
    for axis in range(len(lengths) - 1, -1, -1):
        last = axis == 0
        lines.append(f"{{ ulong k = {'r' if last else f'r % {lengths[axis]}ul'};")
        if not last:
            lines.append(f"r /= {lengths[axis]}ul;")
        lines += [f"{name} += k * {each[axis]}ul;" for name, each in zip(names, strides, strict=True) if each[axis]]
        lines.append("}")
    return "\n  ".join(lines)
