"""Slice and Pad: evaluation where `onnx.reference` covers only a part."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ops.registry import evaluates
from engine.ops.tensors import Array


@evaluates("Slice")
def slice_of(data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """The elements of data between bounds (ONNX Slice-13), which clamps a backward start to the first element."""
    chosen = range(starts.size) if axes is None else axes.reshape(-1).tolist()
    strides = [1] * starts.size if steps is None else steps.reshape(-1).tolist()
    cut = [slice(None)] * data.ndim
    for start, end, axis, step in zip(
        starts.reshape(-1).tolist(), ends.reshape(-1).tolist(), chosen, strides, strict=True
    ):
        first = max(start, -data.shape[axis]) if step < 0 else start
        cut[axis] = slice(first, end, step)
    return data[tuple(cut)]


@evaluates("Pad")
def pad(data: Array, pads: Array, value: Array | None = None, axes: Array | None = None, *, mode: str) -> Array:
    """data padded, or cut where a pad is negative (ONNX Pad-25)."""
    chosen = range(data.ndim) if axes is None else [int(a) % data.ndim for a in axes]
    if pads.size != 2 * len(chosen):
        raise ModelError(f"{pads.size} pads do not fit {len(chosen)} axes; expected two an axis")
    widths = [(0, 0)] * data.ndim
    for position, axis in enumerate(chosen):
        widths[axis] = (int(pads[position]), int(pads[position + len(chosen)]))
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(data.shape, widths, strict=True))
    kept = data[cut]
    grown = [(max(0, a), max(0, b)) for a, b in widths]
    if mode == "constant":
        return _constant_pad(kept, grown, value)
    if mode not in ("reflect", "edge", "wrap"):
        raise ModelError(f"mode {mode!r} must be constant, reflect, edge or wrap")
    return np.pad(kept, grown, mode=mode)  # type: ignore[call-overload, no-any-return]


def _constant_pad(data: Array, widths: list[tuple[int, int]], value: Array | None) -> Array:
    fill: Any = ("" if data.dtype == object else 0) if value is None else value.reshape(-1)[0]
    result = np.full([a + n + b for n, (a, b) in zip(data.shape, widths, strict=True)], fill, dtype=data.dtype)
    result[tuple(slice(a, a + n) for n, (a, _) in zip(data.shape, widths, strict=True))] = data
    return result
