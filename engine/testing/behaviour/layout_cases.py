"""Operators that move or combine elements: axes, permutations, shapes with 0 and -1, broadcasting, integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from engine.testing.behaviour.cases import Array
from engine.testing.behaviour.numeric import Expected, NumericCase, drawn, f32, several_inputs

_SHAPE: Final = (2, 3, 4)


def _softmax(x: Array, axis: int) -> Array:
    wide = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
    return np.asarray(wide / wide.sum(axis=axis, keepdims=True))


def _axes() -> Iterator[NumericCase]:
    for axis in (0, 1, 2, -1, -2, -3):
        x = drawn(*_SHAPE, seed=1)
        yield NumericCase(f"Softmax: axis {axis}", "Softmax", (x,), (f32(_softmax(x, axis)),), {"axis": axis})
    yield NumericCase("Softmax: default axis", "Softmax", (x,), (f32(_softmax(x, -1)),))
    for axis in (0, 1, 2, -1, -3):
        lengths = [list(_SHAPE) for _ in range(3)]
        for index, each in enumerate(lengths):
            each[axis] = index + 1
        parts = tuple(drawn(*each, seed=index) for index, each in enumerate(lengths))
        joined = Expected(np.concatenate(parts, axis=axis))
        yield NumericCase(f"Concat: axis {axis}", "Concat", parts, (joined,), {"axis": axis})
    x = drawn(2, 3, 4, 5)
    for perm in ([0, 2, 3, 1], [0, 3, 1, 2], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 1, 3]):
        yield NumericCase(f"Transpose: perm {perm}", "Transpose", (x,), (Expected(x.transpose(perm)),), {"perm": perm})
    yield NumericCase("Transpose: default perm", "Transpose", (x,), (Expected(x.transpose()),))
    for axis in (0, 1, 3, 4, -1):
        cut = int(np.prod(x.shape[: axis if axis >= 0 else axis + 4]))
        yield NumericCase(f"Flatten: axis {axis}", "Flatten", (x,), (Expected(x.reshape(cut, -1)),), {"axis": axis})


def _with_shape(what: str, op_type: str, x: Array, values: list[int], answer: Array, **given: Any) -> NumericCase:
    """A node whose second input is a constant list."""
    return NumericCase(
        f"{op_type}: {what}", op_type, (x, np.array(values, np.int64)), (Expected(answer),), given, constants=(1,)
    )


def _reshapes() -> Iterator[NumericCase]:
    x, empty = drawn(2, 3, 4), np.zeros((0, 3), np.float32)
    yield _with_shape("-1", "Reshape", x, [4, -1], x.reshape(4, 6))
    yield _with_shape("0 copies a length", "Reshape", x, [0, 0, 2, 2], x.reshape(2, 3, 2, 2))
    yield _with_shape("0 and -1", "Reshape", x, [0, -1], x.reshape(2, 12))
    yield _with_shape("to one axis", "Reshape", x, [-1], x.reshape(-1))
    yield _with_shape("allowzero", "Reshape", empty, [3, 0], empty.reshape(3, 0), allowzero=1)
    yield _with_shape("axes from the end", "Unsqueeze", x, [-1, 0], x[None, ..., None])
    yield _with_shape("between", "Unsqueeze", x, [1, 3], x[:, None, :, None])
    y = x.reshape(1, 2, 1, 12)
    yield _with_shape("one axis", "Squeeze", y, [2], y[:, :, 0])
    yield _with_shape("axes from the end", "Squeeze", y, [-4, -2], y[0, :, 0])


_BINARY: Final[dict[str, Callable[..., Array]]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip
_SHAPES: Final = (
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((2, 3, 4), (2, 1, 1)),
    ((2, 1, 4), (3, 1)),
    ((4,), (2, 3, 4)),
    ((2, 3, 4), ()),
    ((3, 3), (3, 1)),
)


def _broadcasts() -> Iterator[NumericCase]:
    for op_type, function in _BINARY.items():
        for left, right in _SHAPES:
            a, b = drawn(*left, seed=1), drawn(*right, seed=2)
            if op_type == "Div":
                b = np.asarray(np.abs(b) + 0.5, np.float32)
            yield several_inputs(f"{op_type}: {list(left)} and {list(right)}", (a, b), function)
    for op_type, function in (("Max", np.maximum), ("Min", np.minimum), ("Sum", np.add)):
        a, b, c = drawn(2, 1, 4, seed=1), drawn(3, 1, seed=2), drawn(1, seed=3)
        yield several_inputs(f"{op_type}: three inputs", (a, b, c), lambda a, b, c, f=function: f(f(a, b), c))


def _slice(what: str, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> NumericCase:
    x, lists = drawn(4, 5, 6, seed=1), (starts, ends, axes, steps)
    answer = x
    for start, end, axis, step in zip(*lists, strict=True):
        # Beyond -length, an end of a negative step is the place before the first element.
        stop = None if step < 0 and end < -x.shape[axis] else end
        answer = np.moveaxis(np.moveaxis(answer, axis, 0)[slice(start, stop, step)], 0, axis)
    given = tuple(np.array(each, np.int64) for each in lists)
    expected = Expected(np.ascontiguousarray(answer))
    return NumericCase(f"Slice: {what}", "Slice", (x, *given), (expected,), constants=(1, 2, 3, 4))


def _parts() -> Iterator[NumericCase]:
    yield _slice("two axes", [1, 2], [3, 5], [0, 2], [1, 1])
    yield _slice("axes out of order", [1, 2], [3, 5], [2, 0], [1, 1])
    yield _slice("steps", [0, 1], [4, 6], [0, -1], [2, 3])
    yield _slice("negative steps", [-1, 3], [-(2**31), 0], [1, 2], [-1, -2])
    yield _slice("bounds beyond the end", [-100, 2], [100, 2**40], [0, 1], [1, 1])
    x = drawn(3, 4, 5, seed=2)
    for axis in (0, 1, -1):
        index = np.array([[0, -1], [2, -3]], np.int64)
        name, taken = f"Gather: axis {axis}, from the end too", Expected(np.take(x, index, axis=axis))
        yield NumericCase(name, "Gather", (x, index), (taken,), {"axis": axis}, (1,))
    y, pads = drawn(2, 3, 4, seed=3), [(0, 1), (2, 0), (1, 2)]
    flat = np.array([*(before for before, _ in pads), *(after for _, after in pads)], np.int64)
    value = np.array(2.5, np.float32)
    filled = Expected(np.pad(y, pads, constant_values=2.5))
    yield NumericCase("Pad: constant", "Pad", (y, flat, value), (filled,), constants=(1, 2))
    for mode in ("edge", "reflect"):
        pads = [(0, 1), (2, 0), (1, 2)]
        answer = Expected(np.pad(y, pads, mode=mode))
        yield NumericCase(f"Pad: {mode}", "Pad", (y, flat), (answer,), {"mode": mode}, (1,))


def _integers() -> Iterator[NumericCase]:
    """Integers that float32 or float64 cannot represent, and sums that wrap around as in two's complement."""
    for name, odd in (("int32", 2**24 + 1), ("int64", 2**53 + 1)):
        dtype: np.dtype[Any] = np.dtype(name)
        info = np.iinfo(dtype)
        a = np.array([odd, -odd, 7, odd, 0, -3], dtype)
        b = np.array([2, 1, -5, odd, -1, odd], dtype)
        for op_type in ("Add", "Sub", "Max", "Min"):
            yield several_inputs(f"{op_type}: {name} beyond its reals", (a, b), _BINARY[op_type])
        small = np.array([3, -1, 5, 1, 9, 2], dtype)
        yield several_inputs(f"Mul: {name} beyond its reals", (a, small), np.multiply)
        top = np.array([info.max, info.min, info.max], dtype)
        one = np.array([1, -1, -1], dtype)
        yield several_inputs(f"Add: {name} wraps around", (top, one), np.add)
        yield several_inputs(f"Mul: {name} wraps around", (top, np.array([2, 1, 3], dtype)), np.multiply)
    bytes_ = np.array([200, 255, 0], np.uint8), np.array([100, 1, 1], np.uint8)
    yield several_inputs("Add: uint8 wraps around", bytes_, np.add)
    yield several_inputs("Sub: uint8 wraps around", bytes_[::-1], np.subtract)


def _splits() -> Iterator[NumericCase]:
    """Several outputs, of one shape, so that only their values tell them apart."""
    x, halves = drawn(4, 6, seed=1), np.array([2, 2, 2], np.int64)
    parts = tuple(Expected(part) for part in np.split(x, 3, axis=1))
    yield NumericCase("Split: equal parts", "Split", (x, halves), parts, {"axis": 1}, constants=(1,))
    x = np.random.default_rng(3).permuted(np.arange(40, dtype=np.float32).reshape(4, 10), axis=1)
    order = np.argsort(-x, axis=1, kind="stable")[:, :3]
    top, count = np.take_along_axis(x, order, axis=1), np.array([3], np.int64)
    both = Expected(top), Expected(order.astype(np.int64))
    yield NumericCase("TopK: values and indices", "TopK", (x, count), both, constants=(1,))


LAYOUTS: Final = (*_axes(), *_reshapes(), *_parts(), *_broadcasts(), *_integers(), *_splits())
