"""Gathering, scattering, padding and running sums, where `onnx.reference` loops in Python or covers only a part."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ops.registry import evaluates
from engine.ops.tensors import Array


@evaluates("Gather")
def gather(data: Array, indices: Array, *, axis: int) -> Array:
    """Slices of data along an axis (ONNX Gather-13)."""
    return np.take(data, _checked(indices, data.shape[axis]), axis=axis)


@evaluates("GatherElements")
def gather_elements(data: Array, indices: Array, *, axis: int) -> Array:
    """One element of data for each index; other axes may be shorter than those of data (ONNX GatherElements-13)."""
    index = _checked(indices, data.shape[axis])
    return data[_grid(indices.shape, axis % data.ndim, index)]


@evaluates("GatherND")
def gather_nd(data: Array, indices: Array, *, batch_dims: int) -> Array:
    """Slices of data that the last axis of indices addresses (ONNX GatherND-13)."""
    depth = indices.shape[-1]
    batch: Any = np.indices(indices.shape[:batch_dims], sparse=True) if batch_dims else ()
    extra = indices.ndim - 1 - batch_dims
    leading = [b.reshape(*b.shape, *(1,) * extra) for b in batch]
    places = [_checked(indices[..., i], data.shape[batch_dims + i]) for i in range(depth)]
    result: Array = data[(*leading, *places)]
    return result


@evaluates("ScatterElements")
def scatter_elements(data: Array, indices: Array, updates: Array, *, axis: int, reduction: str) -> Array:
    """data with single elements replaced by, or combined with, updates (ONNX ScatterElements-18)."""
    place = _grid(indices.shape, axis % data.ndim, _checked(indices, data.shape[axis]))
    return _scatter(data, place, updates, reduction)


@evaluates("ScatterND")
def scatter_nd(data: Array, indices: Array, updates: Array, *, reduction: str) -> Array:
    """data with slices, addressed by the last axis of indices, replaced or combined (ONNX ScatterND-18)."""
    place = tuple(_checked(indices[..., i], data.shape[i]) for i in range(indices.shape[-1]))
    return _scatter(data, place, updates, reduction)


def _scatter(data: Array, place: Any, updates: Array, reduction: str) -> Array:
    result = data.copy()
    if reduction == "none":
        result[place] = updates
        return result
    ufunc: Any = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(reduction)
    if ufunc is None:
        raise ModelError(f"reduction {reduction!r} must be none, add, mul, min or max")
    ufunc.at(result, place, updates)
    return result


def _grid(shape: tuple[int, ...], axis: int, index: Array) -> tuple[Array, ...]:
    """An index for every axis of the data: `index` along `axis`, its own position along the others."""
    grid = list(np.indices(shape, sparse=True))
    grid[axis] = index
    return tuple(grid)


def _checked(indices: Array, length: int) -> Array:
    if indices.size and (indices.min() < -length or indices.max() >= length):
        raise ModelError(
            f"indices {indices.min()}..{indices.max()} are out of range for length {length}; "
            f"expected {-length}..{length - 1}"
        )
    return indices


@evaluates("Unique")
def unique(x: Array, *, axis: int | None, sorted: int) -> tuple[Array, Array, Array, Array]:
    """The unique values or slices, by value or by first occurrence, with their first indices, the inverse and their
    counts (ONNX Unique-11)."""
    data = x.astype(str) if x.dtype == object else x
    values, first, inverse, count = np.unique(
        data, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    order = np.arange(first.size) if sorted else np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    values = np.take(values, order, axis=axis or 0).astype(x.dtype)
    return values, first[order], rank[inverse.reshape(-1)], count[order]


@evaluates("OneHot")
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int) -> Array:
    """`values[1]` where the new axis equals the index, else `values[0]`; out of range is off (ONNX OneHot-11)."""
    count = int(depth.reshape(-1)[0])
    # In a type that holds the depth, which that of the indices need not.
    wrapped = indices
    if indices.dtype.kind != "u":
        wide = indices.astype(np.int64 if indices.dtype.kind == "i" else np.float64)
        wrapped = np.where(wide < 0, wide + count, wide)
    place = axis % (indices.ndim + 1)
    classes = np.arange(count).reshape(-1, *(1,) * (indices.ndim - place))
    result: Array = np.where(np.expand_dims(wrapped, place) == classes, values[1], values[0])
    return result.astype(values.dtype)


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


@evaluates("CumSum")
def cum_sum(x: Array, axis: Array, *, exclusive: int, reverse: int) -> Array:
    """Running sums along an axis (ONNX CumSum-14)."""
    return _running(np.add, 0, x, axis, exclusive, reverse)


@evaluates("CumProd")
def cum_prod(x: Array, axis: Array, *, exclusive: int, reverse: int) -> Array:
    """Running products along an axis (ONNX CumProd-26)."""
    return _running(np.multiply, 1, x, axis, exclusive, reverse)


def _running(ufunc: Any, neutral: int, x: Array, axis: Array, exclusive: int, reverse: int) -> Array:
    place = int(axis.reshape(-1)[0])
    if not -x.ndim <= place < x.ndim:
        raise ModelError(f"axis {place} is out of range for rank {x.ndim}")
    data = np.flip(x, place) if reverse else x
    if exclusive and data.shape[place]:
        first = np.full_like(np.take(data, [0], axis=place), neutral)
        data = np.concatenate([first, np.take(data, range(data.shape[place] - 1), axis=place)], axis=place)
    result = ufunc.accumulate(data, axis=place, dtype=x.dtype)
    return np.ascontiguousarray(np.flip(result, place)) if reverse else result
