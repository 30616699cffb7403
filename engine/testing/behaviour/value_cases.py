"""Values at the limits: NaN, infinities, both zeros, denormals, and what float16 does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from engine.testing.behaviour.cases import Array
from engine.testing.behaviour.numeric import Expected, NumericCase, f32, several_inputs

_UNARY: Final[dict[str, Callable[[Array], Array]]] = {
    "Abs": np.abs,
    "Identity": lambda x: x,
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, np.float32(0)),
    "Sigmoid": lambda x: np.asarray(1 / (1 + np.exp(-x.astype(np.float64))), np.float32),
    "Tanh": lambda x: np.asarray(np.tanh(x.astype(np.float64)), np.float32),
    "Exp": lambda x: np.asarray(np.exp(x.astype(np.float64)), np.float32),
    "Sqrt": np.sqrt,
}
_LIMITS: Final = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, 3e38, -3e38], np.float32)
_PRECISE: Final = np.array([1 + 2.0**-18, -1 - 2.0**-20, 70000.25, -1e6, 3e-9, -(2.0**-30), 1e20, 2049.0], np.float32)
"""Each is changed beyond 1e-5 of itself, or in its last bits, by float16; half of them overflow or vanish."""


def _unary() -> Iterator[NumericCase]:
    with np.errstate(all="ignore"):
        for op_type, function in _UNARY.items():
            grid = np.resize(_LIMITS, (3, len(_LIMITS)))  # as a vector's main loop, and as its tail
            yield NumericCase(f"{op_type}: NaN and infinities", op_type, (grid,), (Expected(function(grid)),))
        for op_type in ("Abs", "Identity", "Neg", "Relu"):
            yield NumericCase(
                f"{op_type}: more digits than float16",
                op_type,
                (_PRECISE,),
                (Expected(_UNARY[op_type](_PRECISE)),),
                rtol=2.0**-22,
            )
    low, high = np.array(-2, np.float32), np.array(2, np.float32)
    clipped = Expected(np.clip(_LIMITS, low, high))
    yield NumericCase("Clip: NaN and infinities", "Clip", (_LIMITS, low, high), (clipped,), constants=(1, 2))


def _binary() -> Iterator[NumericCase]:
    a, b = np.meshgrid(_LIMITS, _LIMITS)
    for op_type, function in (("Add", np.add), ("Mul", np.multiply), ("Max", np.maximum), ("Min", np.minimum)):
        yield several_inputs(f"{op_type}: NaN and infinities", (a.copy(), b.copy()), function)
    ones, thirds = np.ones_like(_PRECISE), np.full_like(_PRECISE, 1 / 3)
    yield several_inputs("Mul: more digits than float16", (_PRECISE, thirds), np.multiply, 2.0**-21)
    yield several_inputs("Add: more digits than float16", (_PRECISE, ones), np.add, 2.0**-21)
    yield several_inputs("Sub: more digits than float16", (_PRECISE, ones), np.subtract, 2.0**-20)


def _sums() -> Iterator[NumericCase]:
    """Products and reductions over numbers that float16 rounds, and sums that it cannot hold."""
    x = (1 + np.arange(1, 33, dtype=np.float64).reshape(4, 8) * 2.0**-16).astype(np.float32)
    w = (np.resize([1 + 2.0**-14, -1 + 2.0**-13, 0.5, 3e4], (8, 3))).astype(np.float32)
    wide = x.astype(np.float64), w.astype(np.float64)
    product = f32(wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1]))
    yield NumericCase("MatMul: more digits than float16", "MatMul", (x, w), (product,), {}, (1,), rtol=2.0**-19)
    yield NumericCase("Gemm: more digits than float16", "Gemm", (x, w), (product,), {}, (1,), rtol=2.0**-19)
    image, kernel = x.reshape(1, 2, 4, 4), w.reshape(3, 8)[:, :2].reshape(3, 2, 1, 1)
    mixed = np.einsum("nchw,oc->nohw", image.astype(np.float64), kernel[:, :, 0, 0].astype(np.float64))
    size = np.einsum("nchw,oc->nohw", np.abs(image).astype(np.float64), np.abs(kernel[:, :, 0, 0]).astype(np.float64))
    answer = f32(mixed, size)
    yield NumericCase("Conv: more digits than float16", "Conv", (image, kernel), (answer,), {}, (1,), rtol=2.0**-19)
    axes = np.array([1], np.int64)
    for op_type, reduce in (("ReduceSum", np.sum), ("ReduceMean", np.mean), ("ReduceMax", np.max)):
        special = _rows() if op_type != "ReduceMax" else _rows()[3:]  # whether a maximum sees NaN differs
        for what, value in (("more digits than float16", x * np.float32(30000)), ("NaN and infinities", special)):
            with np.errstate(all="ignore"):
                result = f32(reduce(value.astype(np.float64), axis=1, keepdims=True))
            yield NumericCase(f"{op_type}: {what}", op_type, (value, axes), (result,), {}, (1,), rtol=2.0**-19)


def _rows() -> Array:
    """Rows without a special value, with NaN first, NaN last, either infinity, and both."""
    rows = np.arange(30, dtype=np.float32).reshape(6, 5)
    rows[1, 0] = rows[2, 4] = np.nan
    rows[3, 1], rows[4, 2], rows[5, :2] = np.inf, -np.inf, (np.inf, -np.inf)
    return rows


def _softmax() -> Iterator[NumericCase]:
    x = np.array(
        [[1, 2, 3, 4], [-np.inf, 0, 0, -np.inf], [np.nan, 0, 1, 2], [np.inf, 0, 1, 2], [1e38, -1e38, 0, 1e38],
         [-1000, -1000.5, -1001, -1002]], np.float32
    )  # fmt: skip
    with np.errstate(all="ignore"):
        powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        answer = f32(powers / powers.sum(axis=1, keepdims=True))
    yield NumericCase("Softmax: NaN, infinities and large values", "Softmax", (x,), (answer,), {"axis": 1})


VALUES: Final = (*_unary(), *_binary(), *_sums(), *_softmax())
