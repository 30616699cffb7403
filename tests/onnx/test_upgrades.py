"""Old operator versions give, upgraded, what they gave at their own opset.

Where onnxruntime still runs the old version it is the oracle; where it does not, the expectation is computed here from
the old version's text, and the case says how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from engine import ops
from engine.errors import ModelError, UnsupportedError
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, f32, undefined
from engine.onnx import read_model
from engine.onnx.opsets import canonical_version, resolve_version
from engine.onnx.upgrades import UPGRADES, OldCall, needs_upgrade, upgrade_call
from engine.onnx.upgrades.call import Transition

Array = NDArray[Any]
Expectation = Callable[..., Any]

KNOWLEDGE = ("static", "ranks", "nothing")


@dataclass(frozen=True, eq=False)
class Case:
    """One call at an old opset. `expected` takes the inputs; without it onnxruntime is asked."""

    op_type: str
    opset: int
    inputs: tuple[Array | None, ...]
    attributes: dict[str, Any]
    num_outputs: int = 1
    expected: Expectation | None = None
    constants: tuple[int, ...] = ()
    knowledge: tuple[str, ...] = KNOWLEDGE
    domain: str = ""

    def __str__(self) -> str:
        stated = ",".join(f"{name}={value}" for name, value in self.attributes.items())
        shapes = ";".join("none" if v is None else "x".join(map(str, v.shape)) for v in self.inputs)
        dtype = next((v.dtype.name for v in self.inputs if v is not None), "")
        return f"{self.op_type}@{self.opset}({shapes},{dtype},{stated})x{self.num_outputs}"


def case(op_type: str, opset: int, *inputs: Any, **options: Any) -> Case:
    """A case; options that are fields of `Case` are these, others are attributes."""
    fields = {"num_outputs", "expected", "constants", "knowledge", "domain"}
    chosen = {name: options.pop(name) for name in fields & options.keys()}
    arrays = tuple(None if value is None else np.asarray(value) for value in inputs)
    return Case(op_type, opset, arrays, options, **chosen)


_random = np.random.default_rng(7)


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(_random.normal(size=shape)).astype(dtype)


def positive(*shape: int) -> Array:
    return np.abs(floats(*shape)) + np.float32(0.5)


def f32s(*values: float) -> Array:
    return np.array(values, np.float32)


def i64s(*values: int) -> Array:
    return np.array(values, np.int64)


def column(vector: Array, rank: int) -> Array:
    """A vector over dimension 1 of a tensor of `rank`."""
    return vector.reshape(-1, *[1] * (rank - 2))


# -- what the old texts say, in numpy --------------------------------------------------------------------------


def batch_norm(x: Array, scale: Array, b: Array, mean: Array, var: Array, epsilon: float = 1e-5) -> Array:
    s, o, m, v = (column(value, x.ndim) for value in (scale, b, mean, var))
    return (x - m) / np.sqrt(v + np.float32(epsilon)) * s + o


def batch_norm_training(
    x: Array, scale: Array, b: Array, mean: Array, var: Array, epsilon: float = 1e-5, momentum: float = 0.9
) -> list[Array]:
    axes = (0, *range(2, x.ndim))
    m, v = x.mean(axes), x.var(axes)
    kept = [old * momentum + new * (1 - momentum) for old, new in ((mean, m), (var, v))]
    return [batch_norm(x, scale, b, m, v, epsilon), *kept, m, 1 / np.sqrt(v + epsilon)]


def instance_norm(x: Array, scale: Array, b: Array) -> Array:
    axes = tuple(range(2, x.ndim))
    normalized = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    return np.asarray(normalized * column(scale, x.ndim) + column(b, x.ndim))


def lp_pool_2x2(p: float) -> Expectation:
    """Over windows of 2 x 2, stride 1, of an image with one pixel of padding at the end of each axis."""

    def expected(x: Array) -> Array:
        padded = np.pad(np.abs(x) ** p, ((0, 0), (0, 0), (0, 1), (0, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 2), axis=(2, 3))
        return np.asarray(windows.sum((-2, -1)) ** (1 / p))

    return expected


def nearest_2x(x: Array) -> Array:
    return x.repeat(2, axis=2).repeat(3, axis=3)


def erf(x: Array) -> Array:
    return np.array([int(math.erf(v)) for v in x.ravel()], x.dtype).reshape(x.shape)


def quantize(x: Array, scale: Array, zero: Array) -> Array:
    return np.clip(np.rint(x.astype(np.float32) / scale) + zero, 0, 255).astype(np.uint8)


def split_sizes(axis: int, *lengths: int) -> Expectation:
    return lambda x, *_: np.split(x, np.cumsum(lengths)[:-1], axis)


# -- the cases -------------------------------------------------------------------------------------------------

X = floats(2, 3, 4, 5)
P = positive(2, 3)
Q = floats(2, 3)
BN = [floats(2, 3, 2, 4), positive(3), floats(3), floats(3), positive(3)]
PER_ACTIVATION = [floats(2, 3, 2, 4), positive(3, 2, 4), floats(3, 2, 4), floats(3, 2, 4), positive(3, 2, 4)]


def consumed_inputs_cases() -> Iterator[Case]:
    """Opset 1 with `consumed_inputs`, which never changes a result: what numpy computes."""
    unary: dict[str, Expectation] = {
        "Abs": np.abs,
        "Ceil": np.ceil,
        "Elu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
        "Exp": np.exp,
        "Floor": np.floor,
        "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
        "LeakyRelu": lambda x: np.where(x < 0, 0.01 * x, x),
        "Neg": np.negative,
        "Reciprocal": np.reciprocal,
        "Relu": lambda x: np.maximum(x, 0),
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "Tanh": np.tanh,
        "Clip": lambda x: x,
    }
    for op_type, function in unary.items():
        yield case(op_type, 1, Q, consumed_inputs=(0,), expected=function)
    for op_type, function in {"Log": np.log, "Sqrt": np.sqrt}.items():
        yield case(op_type, 1, P, consumed_inputs=(0,), expected=function)
    binary: dict[str, Expectation] = {
        "Add": np.add,
        "Div": np.divide,
        "Max": np.maximum,
        "Mean": lambda a, b: (a + b) / 2,
        "Min": np.minimum,
        "Mul": np.multiply,
        "Sub": np.subtract,
        "Sum": np.add,
    }
    for op_type, function in binary.items():
        yield case(op_type, 1, Q, P, consumed_inputs=(0, 0), expected=function)
    slope = lambda x, slope: np.where(x < 0, slope * x, x)  # noqa: E731
    yield case("PRelu", 1, Q, positive(3), consumed_inputs=(0, 0), expected=slope)
    yield case("Dropout", 1, Q, consumed_inputs=(0,), is_test=1, expected=lambda x: x)
    yield case("BatchNormalization", 1, *BN, consumed_inputs=(0, 0, 0, 1, 1), is_test=1, expected=batch_norm)
    yield case("InstanceNormalization", 1, X, positive(3), floats(3), consumed_inputs=(0, 0, 0), expected=instance_norm)
    selu = lambda x: 1.0507 * np.where(x < 0, 1.6732 * np.exp(x) - 1.6732, x)  # noqa: E731
    yield case("Selu", 1, Q, consumed_inputs=(0,), expected=selu)
    yield case("Selu", 1, Q, alpha=2.0, gamma=3.0, expected=lambda x: 3 * np.where(x < 0, 2 * np.exp(x) - 2, x))


def broadcast_cases() -> Iterator[Case]:
    """Limited broadcasting: B takes the dimensions of A from `axis` on, or the last ones; the text's own examples."""
    shapes: list[tuple[tuple[int, ...], int | None]] = [
        ((), None), ((1, 1), None), ((5,), None), ((4, 5), None), ((3, 4), 1), ((2,), 0), ((5,), -1), ((), 0),
        ((2, 3, 4, 5), 0), ((1, 1), 3),
    ]  # fmt: skip
    for shape, axis in shapes:
        start = X.ndim - len(shape) if axis in (None, -1) else axis
        trailing = max(0, X.ndim - start - len(shape))
        expected = lambda a, b, trailing=trailing: a - b.reshape(b.shape + (1,) * trailing)  # noqa: E731
        stated = {} if axis is None else {"axis": axis}
        # That a B of one element fits anywhere is seen by its shape alone.
        known = ("static",) if shape == (1, 1) and axis == 3 else KNOWLEDGE
        yield case("Sub", 6, X, floats(*shape), broadcast=1, expected=expected, knowledge=known, **stated)
    yield case("Sub", 6, X, floats(*X.shape), expected=np.subtract)
    operands = floats(2, 3, 4), floats(3)
    for op_type, function in {"Add": np.add, "Div": np.divide, "Mul": np.multiply}.items():
        under_axis_1 = lambda a, b, function=function: function(a, b[:, None])  # noqa: E731
        yield case(op_type, 6, *operands, broadcast=1, axis=1, expected=under_axis_1)
    base = positive(2, 3, 4), operands[1]
    yield case("Pow", 1, *base, broadcast=1, axis=1, expected=lambda a, b: np.power(a, b[:, None]))
    for op_type, function in {"Less": np.less, "Greater": np.greater}.items():
        under_axis_1 = lambda a, b, function=function: function(a, b[:, None])  # noqa: E731
        yield case(op_type, 1, *operands, broadcast=1, axis=1, expected=under_axis_1)
    integers = np.arange(24).reshape(2, 3, 4) % 5, np.array([1, 2, 3])
    yield case("Equal", 1, *integers, broadcast=1, axis=1, expected=lambda a, b: a == b[:, None])
    logic: dict[str, Expectation] = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
    for op_type, function in logic.items():
        under_axis_1 = lambda a, b, function=function: function(a, b[:, None])  # noqa: E731
        bits = floats(2, 3, 4) > 0, np.array([True, False, True])
        yield case(op_type, 1, *bits, broadcast=1, axis=1, expected=under_axis_1)
    row = lambda a, b, c: 0.5 * (a.T @ b) + 2.0 * c  # noqa: E731
    yield case(
        "Gemm", 6, floats(3, 2), floats(3, 4), floats(4), broadcast=1, transA=1, alpha=0.5, beta=2.0, expected=row
    )


def elementwise_cases() -> Iterator[Case]:
    by_channel = lambda x, slope: np.where(x < 0, column(slope, x.ndim) * x, x)  # noqa: E731
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5)):
        yield case("PRelu", 6, floats(*shape), positive(3), expected=by_channel)
    shared = lambda x, slope: np.where(x < 0, slope * x, x)  # noqa: E731
    yield case("PRelu", 6, X, positive(1), expected=shared)
    for name, dtype in {"INT32": np.int32, "DOUBLE": np.float64, "FLOAT16": np.float16}.items():
        yield case("Cast", 1, 10 * Q, to=name, expected=lambda x, dtype=dtype: x.astype(dtype))
    limit = float(np.finfo(np.float32).max)
    extremes = f32s(-limit, -2, 0.5, 7, limit)
    for stated in ({}, {"min": -1.0}, {"max": 6.0}, {"min": -1.0, "max": 6.0}):
        yield case("Clip", 6, extremes, **stated)
    wide = np.array([-1e300, -2, 0.5, 1e300])
    # The attributes are f32 whatever is clipped: without them an f64 is cut to the range of f32 from 6 on only.
    yield case("Clip", 6, wide, expected=lambda x: np.clip(x, -limit, limit))
    yield case("Clip", 1, wide, expected=lambda x: x)
    yield case("Clip", 1, wide, min=0.0, expected=lambda x: np.maximum(x, 0))
    half = np.array([-np.inf, -2, 0.5, np.inf], np.float16)
    yield case("Clip", 6, half, expected=lambda x: x)
    yield case("Clip", 1, half, expected=lambda x: np.clip(x, np.float16(-65504), np.float16(65504)))
    yield case("Clip", 6, half, min=0.0, max=6.0, expected=lambda x: np.clip(x, np.float16(0), np.float16(6)))
    # Truncated as every conversion to integers: |erf| is below 1 until it is rounded to it.
    yield case("Erf", 9, np.array([-9, -1, 0, 1, 9], np.int32), expected=erf)
    yield case("Erf", 9, np.array([0, 1, 9], np.uint8), expected=erf)
    yield case("Erf", 9, Q)
    # 2 and 0.5 divide without rounding, so that only the rule for halves decides.
    integers = np.array([-3, 1, 3, 5, 2000], np.int32)
    yield case("QuantizeLinear", 13, integers, f32s(2)[0], np.uint8(3), expected=quantize, constants=(1, 2))
    yield case("QuantizeLinear", 10, integers, f32s(2)[0], np.uint8(3), expected=quantize, constants=(1, 2))
    yield case("QuantizeLinear", 13, 10 * P, f32s(0.5)[0], np.uint8(3), constants=(1, 2))


def softmax_cases() -> Iterator[Case]:
    ties = np.round(2 * X)
    for op_type in ("Softmax", "LogSoftmax", "Hardmax"):
        x = ties if op_type == "Hardmax" else X
        for opset in (1, 11):
            yield case(op_type, opset, x)
            for axis in (0, 2, 3):
                yield case(op_type, opset, x, axis=axis)
        yield case(op_type, 11, x, axis=-2)
        yield case(op_type, 11, floats(2, 7, 1, 1))
        yield case(op_type, 11, floats(2, 7))
        yield case(op_type, 11, floats(3, 1, 1))
        yield case(op_type, 11, floats(5), axis=0)
        yield case(op_type, 11, floats(2, 0, 3))


def reduction_cases() -> Iterator[Case]:
    names = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum")
    for name in names:
        x = positive(2, 3, 4)
        yield case(f"Reduce{name}", 1, x, axes=(0, 2), keepdims=0)
        yield case(f"Reduce{name}", 11, x, axes=(-1,))
        yield case(f"Reduce{name}", 11, x, keepdims=0)
        if name != "Sum":
            yield case(f"Reduce{name}", 13, x, axes=(1,))
    for name in ("LogSum", "LogSumExp"):
        for dtype in (np.int32, np.int64):
            yield case(f"Reduce{name}", 18, np.array([[1, 2], [30, 44]], dtype), i64s(1), keepdims=0, constants=(1,))
        yield case(f"Reduce{name}", 13, np.array([[1, 2], [30, 44]], np.int32), axes=(0,))


def structure_cases() -> Iterator[Case]:
    yield case("Reshape", 1, X, shape=(0, -1, 5))
    yield case("Reshape", 1, X, shape=(6, 20), consumed_inputs=(0,), expected=lambda x: x.reshape(6, 20))
    unit = floats(1, 3, 1, 4)
    for opset in (1, 11):
        yield case("Squeeze", opset, unit, axes=(0, 2))
        yield case("Squeeze", opset, unit, axes=(2,))
        yield case("Unsqueeze", opset, unit, axes=(0, 5))
    # Which dimensions are removed is known at run time only: no upgrade depends on it.
    yield case("Squeeze", 11, unit)
    yield case("Unsqueeze", 11, unit, axes=(-1, 0))
    yield case("Concat", 1, X, X, expected=lambda a, b: np.concatenate([a, b], 1))
    yield case("Concat", 1, X, X, axis=2, expected=lambda a, b: np.concatenate([a, b], 2))
    yield case("Slice", 1, X, starts=(1,), ends=(-1,), axes=(3,))
    yield case("Slice", 1, X, starts=(0, 1), ends=(1, 1000))
    yield case("Slice", 1, X, starts=(-3, 0), ends=(-1, 2), axes=(2, 0))
    yield case("Split", 1, X, axis=3, split=(2, 3), num_outputs=2, expected=split_sizes(3, 2, 3))
    yield case("Split", 1, X, f32s(1, 3), axis=2, num_outputs=2, expected=split_sizes(2, 1, 3))
    for opset in (2, 11):
        yield case("Split", opset, X, num_outputs=2)
        yield case("Split", opset, X, axis=3, split=(1, 3, 1), num_outputs=3)
    yield case("Split", 13, X, axis=1, num_outputs=3)
    yield case("Split", 13, X, i64s(1, 3), axis=2, num_outputs=2, constants=(1,))
    for constants in ((1, 2), ()):
        tiled = lambda x, count, axis: np.concatenate([x] * int(count.item()), int(axis.item()))  # noqa: E731
        yield case("Tile", 1, X, f32s(3), f32s(2), constants=constants, expected=tiled)
        yield case("Tile", 1, X, f32s(2)[0], f32s(-1)[0], constants=constants, expected=tiled)
    yield case("Pad", 1, X, paddings=(1,) * 8, value=2.5, expected=lambda x: np.pad(x, 1, constant_values=2.5))
    yield case("Pad", 2, X, pads=(0, 0, 1, 2, 0, 0, 3, 4))
    yield case("Pad", 2, X, pads=(0, 0, 1, 2, 0, 0, 3, 4), value=-7.0)
    yield case("Pad", 2, X, pads=(0, 0, 1, 2, 0, 0, 3, 4), mode="reflect", value=1.0)
    yield case("Pad", 2, X.astype(np.float64), pads=(0, 0, 1, 2, 0, 0, 3, 4), value=0.1)
    ranked = np.argsort(floats(3, 8), axis=1).astype(np.float32)
    yield case("TopK", 1, ranked, k=3, num_outputs=2)
    yield case("TopK", 1, ranked, k=2, axis=0, num_outputs=2)
    indices = np.array([[1, 0, 2], [0, 2, 1]])
    yield case("Scatter", 9, np.zeros((3, 3), np.float32), indices, floats(2, 3))
    yield case("Scatter", 9, np.zeros((2, 4), np.float32), indices, floats(2, 3), axis=1)
    yield case("DFT", 17, floats(2, 4, 5, 1))
    yield case("DFT", 17, floats(2, 4, 5, 2), axis=2, inverse=1)
    yield case("DFT", 17, floats(2, 4, 5, 1), i64s(6)[0], axis=1, onesided=1, constants=(1,))


def normalization_cases() -> Iterator[Case]:
    """At opset 6 as its text says; a mask of inference is all ones, as in Dropout-12 (older texts are silent)."""
    yield case("BatchNormalization", 6, *BN, is_test=1, epsilon=0.1, expected=lambda *v: batch_norm(*v, epsilon=0.1))
    kept = lambda x, s, b, m, v: [batch_norm(x, s, b, m, v), m, v]  # noqa: E731
    yield case("BatchNormalization", 6, *BN, is_test=1, num_outputs=3, expected=kept)
    for outputs in (1, 3, 5):
        trained = lambda *v, outputs=outputs: batch_norm_training(*v)[:outputs]  # noqa: E731
        yield case("BatchNormalization", 6, *BN, num_outputs=outputs, expected=trained)
    for opset in (7, 9):
        yield case("BatchNormalization", opset, *BN, epsilon=0.01)
        yield case("BatchNormalization", opset, *BN, epsilon=0.01, momentum=0.7, num_outputs=5)
    yield case("BatchNormalization", 7, *PER_ACTIVATION, spatial=0)
    # Statistics are matrices here, which does not make X one.
    yield case("BatchNormalization", 7, PER_ACTIVATION[0][:, :, 0], *[v[:, 0] for v in PER_ACTIVATION[1:]], spatial=0)
    matrix = [floats(4, 3), *BN[1:]]
    yield case("BatchNormalization", 7, *matrix)
    yield case("BatchNormalization", 7, *matrix, spatial=0, expected=batch_norm)

    def trained_per_activation(x: Array, s: Array, b: Array, m: Array, v: Array) -> list[Array]:
        flat = batch_norm_training(x.reshape(len(x), -1), *(value.ravel() for value in (s, b, m, v)))
        return [value.reshape(x.shape if i == 0 else s.shape) for i, value in enumerate(flat)]

    yield case("BatchNormalization", 7, *PER_ACTIVATION, spatial=0, num_outputs=5, expected=trained_per_activation)
    for shape in ((2, 6), (2, 6, 4), (1, 6, 2, 3)):
        if len(shape) > 2:
            yield case("GroupNormalization", 18, floats(*shape), positive(3), floats(3), num_groups=3)
            yield case("GroupNormalization", 18, floats(*shape), positive(6), floats(6), num_groups=6, epsilon=0.1)
    yield case("GroupNormalization", 18, floats(2, 6, 4, dtype=np.float64), *np.ones((2, 2)), num_groups=2)
    ones = lambda dtype: lambda x: [x, np.ones(x.shape, dtype)]  # noqa: E731
    yield case("Dropout", 6, Q, is_test=1, ratio=0.9, expected=lambda x: x)
    for opset in (7, 10):
        yield case("Dropout", opset, Q, ratio=0.9)
    yield case("Dropout", 7, Q, num_outputs=2, expected=ones(np.float32))
    yield case("Dropout", 10, Q, num_outputs=2, expected=ones(np.bool_))


def pooling_cases() -> Iterator[Case]:
    """onnxruntime starts at version 2: windows are summed up here; whole exponents are compared with it as well."""
    window = {"kernel_shape": (2, 2), "pads": (0, 0, 1, 1)}
    for exponent in (2.0, 3.0, 2.5):
        yield case("LpPool", 1, X, p=exponent, expected=lp_pool_2x2(exponent), **window)
        total = lambda x, p=exponent: (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p)  # noqa: E731
        yield case("GlobalLpPool", 1, X, p=exponent, expected=total)
    yield case("LpPool", 1, X, expected=lp_pool_2x2(2), **window)
    same = lambda x: lp_pool_2x2(1.5)(x)[..., ::2, ::2]  # noqa: E731
    yield case(
        "LpPool", 1, X[..., :4], p=1.5, kernel_shape=(2, 2), strides=(2, 2), auto_pad="SAME_UPPER", expected=same
    )
    yield case("GlobalLpPool", 1, X, expected=lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)))


def sampling_cases() -> Iterator[Case]:
    image = np.arange(20, dtype=np.float32).reshape(1, 1, 4, 5)
    for mode in ("nearest", "linear"):
        for scales in ((1, 1, 2, 3), (1, 1, 0.6, 0.6), (1, 1, 1.5, 0.6), (1, 1, 0.5, 2.3), (1, 1, 1, 1)):
            for constants in ((1,), ()):
                yield case("Resize", 10, image, f32s(*scales), mode=mode, constants=constants)
        yield case("Upsample", 7, image, mode=mode, scales=(1.0, 1.0, 2.0, 1.5))
        yield case("Upsample", 9, image, f32s(1, 1, 2, 1.5), mode=mode, constants=(1,))
    yield case("Upsample", 1, image, height_scale=2.0, width_scale=3.0, expected=nearest_2x)
    # Linear sampling at x / scale, as onnxruntime does from 7 on.
    doubled = replace(case("Upsample", 7, image, mode="linear", scales=(1.0, 1.0, 2.0, 1.5)))
    yield case(
        "Upsample", 1, image, mode="bilinear", height_scale=2.0, width_scale=1.5, expected=lambda x: run_old(doubled)
    )
    nothing, resized = f32s(), i64s(1, 1, 3, 7)
    for mode in ("nearest", "linear", "cubic"):
        yield case("Resize", 11, image, nothing, f32s(1, 1, 1.5, 0.7), mode=mode, constants=(1, 2))
        yield case("Resize", 11, image, nothing, nothing, resized, mode=mode, constants=(1, 2, 3))
    region = f32s(0, 0, 0.2, 0.1, 1, 1, 0.7, 1.2)
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    yield case("Resize", 11, image, region, nothing, resized, constants=(1, 2, 3), **crop)
    for nearest_mode in ("floor", "round_prefer_floor"):
        for scales in ((1, 1, 0.6, 1.7), (1, 1, 2, 3), (1, 1, 0.5, 0.4)):
            yield case(
                "Resize", 11, image, nothing, f32s(*scales), constants=(1, 2), nearest_mode=nearest_mode,
                coordinate_transformation_mode="tf_half_pixel_for_nn",
            )  # fmt: skip
    grid = _random.uniform(-1.2, 1.2, size=(1, 3, 2, 2)).astype(np.float32)
    yield case("GridSample", 16, image, grid)
    for mode in ("bilinear", "bicubic", "nearest"):
        yield case("GridSample", 16, image, grid, mode=mode, align_corners=1)
    boxes = f32s(0.3, 0.2, 3.4, 3.1).reshape(1, 4)
    yield case("RoiAlign", 10, image, boxes, i64s(0), output_height=2, output_width=2, sampling_ratio=2)


def recurrent_cases() -> Iterator[Case]:
    """Version 1 computed what version 7 computes, which onnxruntime runs."""
    for op_type, gates in {"RNN": 1, "LSTM": 4, "GRU": 3}.items():
        arrays = floats(3, 2, 4), floats(1, 5 * gates, 4), floats(1, 5 * gates, 5), floats(1, 10 * gates)
        newer = case(op_type, 7, *arrays, hidden_size=5, num_outputs=2)
        for opset, stated in ((1, {"output_sequence": 1}), (1, {}), (3, {"output_sequence": 0})):
            expected = lambda *_, newer=newer: run_old(newer)  # noqa: E731
            yield case(op_type, opset, *arrays, hidden_size=5, num_outputs=2, expected=expected, **stated)
        if op_type == "GRU":
            yield case(op_type, 1, *arrays, hidden_size=5, num_outputs=2, direction="foward", expected=expected)


def ml_cases() -> Iterator[Case]:
    texts = ("red", "green", "blue")
    yield case("LabelEncoder", 1, i64s(2, 0, 5), classes_strings=texts, domain="ai.onnx.ml")
    yield case("LabelEncoder", 1, i64s(2, 0, 5), classes_strings=texts, default_string="none", domain="ai.onnx.ml")
    words = np.array(["blue", "pink", "red"], object)
    yield case("LabelEncoder", 1, words, classes_strings=texts, domain="ai.onnx.ml")
    yield case("LabelEncoder", 1, words, classes_strings=texts, default_int64=-9, domain="ai.onnx.ml")


CASES = [
    *consumed_inputs_cases(), *broadcast_cases(), *elementwise_cases(), *softmax_cases(), *reduction_cases(),
    *structure_cases(), *normalization_cases(), *pooling_cases(), *sampling_cases(), *recurrent_cases(), *ml_cases(),
]  # fmt: skip


# -- running them ----------------------------------------------------------------------------------------------


def run_old(old: Case) -> list[Array]:
    """The results of onnxruntime at the old opset."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(old.inputs)]
    feeds = {name: value for name, value in zip(names, old.inputs, strict=True) if value is not None}
    outputs = [f"y{i}" for i in range(old.num_outputs)]
    node = helper.make_node(old.op_type, names, outputs, domain=old.domain, **old.attributes)
    graph = helper.make_graph(
        [node],
        "old",
        [helper.make_tensor_value_info(n, ElementType.from_numpy(v.dtype).onnx, v.shape) for n, v in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    opsets = [helper.make_opsetid(old.domain, old.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def expected_of(old: Case) -> list[Array]:
    if old.expected is None:
        return run_old(old)
    with np.errstate(over="ignore"):
        value = old.expected(*old.inputs)
    return list(value) if isinstance(value, (list, tuple)) else [value]


def sources(old: Case, knowledge: str) -> list[Node | None]:
    """Parameters of which only `knowledge` is known, and constants."""
    made: list[Node | None] = []
    for i, value in enumerate(old.inputs):
        if value is None:
            made.append(None)
        elif i in old.constants:
            made.append(Constant(value))
        else:
            shape: Any = value.shape if knowledge == "static" else [None] * value.ndim if knowledge == "ranks" else None
            made.append(Parameter(ElementType.from_numpy(value.dtype), shape, f"x{i}"))
    return made


def old_call(old: Case, inputs: Sequence[Node | None]) -> OldCall:
    version = resolve_version(old.op_type, old.domain, old.opset)
    values = tuple(node and node.output(0) for node in inputs)
    return OldCall(old.op_type, old.domain, version, values, old.attributes, old.num_outputs, "node")


def upgraded(call: OldCall) -> list[Output]:
    """The outputs of the upgraded call, made as an importer would."""
    result = upgrade_call(call)
    if not isinstance(result, OldCall):
        return list(result)
    assert result.version == canonical_version(result.op_type, result.domain)
    node = ops.create(
        result.op_type, result.inputs, result.attributes, domain=result.domain, num_outputs=result.num_outputs
    )
    return list(node.outputs)


def evaluate(outputs: Sequence[Output], inputs: Sequence[Node | None], values: Sequence[Array | None]) -> list[Array]:
    parameters = [(node, value) for node, value in zip(inputs, values, strict=True) if isinstance(node, Parameter)]
    model = Model(outputs, [node for node, _ in parameters])
    return list(ops.evaluate_model(model, [value for _, value in parameters]))


def check(old: Case, knowledge: str) -> list[Output]:
    inputs = sources(old, knowledge)
    outputs = upgraded(old_call(old, inputs))
    assert len(outputs) == old.num_outputs
    expected = expected_of(old)
    for actual, wanted in zip(evaluate(outputs, inputs, old.inputs), expected, strict=True):
        assert actual.shape == wanted.shape
        if wanted.dtype == object:
            assert actual.tolist() == wanted.tolist()
            continue
        if old.expected is None:
            assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-5, strict=False)
    return outputs


@pytest.mark.parametrize(("old", "knowledge"), [(old, known) for old in CASES for known in old.knowledge], ids=str)
def test_an_upgraded_call_gives_the_old_result(old: Case, knowledge: str) -> None:
    check(old, knowledge)


# -- Scan-8, whose body is a graph ----------------------------------------------------------------------------


def running_sum(offset: Parameter | None) -> Model:
    """state, element -> state + element (+ a captured offset), the same."""
    state, element = Parameter(f32, [2], "state"), Parameter(f32, [2], "element")
    total = ops.create("Add", [state, element])
    if offset is not None:
        total = ops.create("Add", [total, offset])
    captures = [] if offset is None else [offset]
    return Model([total, ops.create("Identity", [total])], [state, element], captures=captures, name="body")


def run_scan_8(feeds: dict[str, Array], lengths: bool, directions: tuple[int, ...], offset: float) -> list[Array]:
    tensor = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "element"], ["partial"]),
            helper.make_node("Add", ["partial", "offset"], ["total"]),
            helper.make_node("Identity", ["total"], ["emitted"]),
        ],
        "body",
        [tensor("state", 1, [2]), tensor("element", 1, [2])],
        [tensor("total", 1, [2]), tensor("emitted", 1, [2])],
        initializer=[helper.make_tensor("offset", 1, [], [offset])],
    )
    stated = {"directions": directions} if directions else {}
    inputs = ["lengths" if lengths else "", "initial", "sequence"]
    node = helper.make_node("Scan", inputs, ["final", "all"], body=body, num_scan_inputs=1, **stated)
    values = [tensor(n, ElementType.from_numpy(v.dtype).onnx, v.shape) for n, v in feeds.items()]
    graph = helper.make_graph([node], "old", values, [tensor("final", 1, None), tensor("all", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("directions", [(), (0,), (1,)])
@pytest.mark.parametrize("lengths", [None, (2, 3), (3, 3)])
@pytest.mark.parametrize("knowledge", KNOWLEDGE)
def test_scan_8_runs_for_every_entry_of_the_batch(
    knowledge: str, lengths: tuple[int, ...] | None, directions: tuple[int, ...], captured: bool
) -> None:
    feeds: dict[str, Array] = {"initial": floats(2, 2), "sequence": floats(2, 3, 2)}
    if lengths is not None:
        feeds = {"lengths": i64s(*lengths), **feeds}
    offset = Parameter(f32, [], "offset") if captured else None
    outer = Parameter(f32, [], "outer_offset")
    old = case("Scan", 8, *feeds.values(), num_outputs=2)
    inputs = sources(old, knowledge)
    values = [node and node.output(0) for node in inputs]
    if lengths is None:
        values.insert(0, None)
    attributes: dict[str, Any] = {"body": running_sum(offset), "num_scan_inputs": 1}
    if directions:
        attributes["directions"] = directions
    if captured:
        values.append(outer.output(0))
    outputs = upgraded(OldCall("Scan", "", 8, tuple(values), attributes, 2, "scan"))
    extra: list[Any] = [outer] if captured else []
    actual = evaluate(outputs, [*inputs, *extra], [*feeds.values(), *([np.float32(0.5)] if captured else [])])
    expected = run_scan_8(feeds, lengths is not None, directions, 0.5 if captured else 0.0)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


# -- nothing is left out ----------------------------------------------------------------------------------------


def test_every_upgrade_has_a_case_and_leads_to_its_version_or_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it another one, an upgrade that is added in between would be skipped, or a call upgraded twice."""
    run: set[tuple[str, int]] = set()

    def recording(op_type: str, step: Transition) -> Transition:
        def function(call: OldCall) -> Any:
            run.add((op_type, step.since))
            result = step.function(call)
            if isinstance(result, OldCall):
                assert result.version >= step.to
                assert result.version == resolve_version(result.op_type, result.domain, result.version)
            return result

        return replace(step, function=function)

    for key, steps in UPGRADES.items():
        monkeypatch.setitem(UPGRADES, key, [recording(key[1], step) for step in steps])
    for old in CASES:
        upgraded(old_call(old, sources(old, "static")))
    missing = {(key[1], step.since) for key, steps in UPGRADES.items() for step in steps} - run
    assert missing == {("Scan", 8)}  # which has a test of its own


# -- what the upgraded graph looks like --------------------------------------------------------------------------


def plain(op_type: str, opset: int, shapes: Sequence[Any], **attributes: Any) -> OldCall | list[str]:
    """The upgraded call, or the op types of the nodes that stand for it."""
    inputs = [Parameter(f32, shape, f"x{i}") for i, shape in enumerate(shapes)]
    version = resolve_version(op_type, "", opset)
    call = OldCall(op_type, "", version, tuple(p.output(0) for p in inputs), attributes, 1, "node")
    result = upgrade_call(call)
    if isinstance(result, OldCall):
        return result
    order = Model(result, inputs).ordered_nodes()
    return [n.op_type for n in order if n.op_type not in ("Parameter", "Constant", "Result")]


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [([2, 1000], 1, 1), ([2, 1000, 1, 1], 1, 1), ([2, 3, 4], 2, 2), ([1, 1, 1], 0, 2), (["N", 7, 1], 1, 1)],
)
def test_softmax_over_one_long_dimension_stays_one_node(shape: Any, axis: int, expected: int) -> None:
    """Classifiers end so; a Flatten and a Reshape around it would hide the pattern from every later pass."""
    result = plain("Softmax", 11, [shape], axis=axis)
    assert isinstance(result, OldCall)
    assert result.attributes == {"axis": expected}


def test_static_shapes_leave_no_shape_computations() -> None:
    assert plain("Softmax", 11, [[2, 3, 4]]) == ["Flatten", "Softmax", "Reshape"]
    result = plain("Add", 6, [[2, 3, 4, 5], [3]], broadcast=1, axis=1)
    assert isinstance(result, OldCall)
    assert result.inputs[1] is not None
    assert result.inputs[1].node.op_type == "Unsqueeze"
    assert result.inputs[1].shape == [3, 1, 1]


@pytest.mark.parametrize(
    ("scales", "expected"),
    [((1, 1, 2, 1.5), "floor"), ((1, 1, 1, 1), "floor"), ((1, 1, 0.5, 0.6), "ceil"), ((1, 1, 2, 0.5), None)],
)
def test_known_scales_leave_one_resize(scales: tuple[float, ...], expected: str | None) -> None:
    """Only images that grow in one direction and shrink in the other are resized twice."""
    x, known = Parameter(f32, [1, 1, 4, 4], "x"), Constant(np.array(scales, np.float32))
    result = upgrade_call(OldCall("Resize", "", 10, (x.output(0), known.output(0)), {}, 1, "node"))
    if isinstance(result, OldCall):
        assert result.attributes["nearest_mode"] == expected
    else:
        assert expected is None


def test_a_call_that_needs_nothing_comes_back_with_the_canonical_version() -> None:
    x = Parameter(f32, [2], "x").output(0)
    call = OldCall("Relu", "", 6, (x,), {}, 1, "relu")
    assert not needs_upgrade("Relu", "", 6)
    assert upgrade_call(call) == replace(call, version=14)
    assert needs_upgrade("Relu", "", 1)


# -- bad calls ------------------------------------------------------------------------------------------------------


def bad(op_type: str, opset: int, *shapes: Any, element_type: ElementType = f32, **attributes: Any) -> None:
    inputs = tuple(Parameter(element_type, shape, f"x{i}").output(0) for i, shape in enumerate(shapes))
    version = resolve_version(op_type, "", opset)
    upgrade_call(OldCall(op_type, "", version, inputs, attributes, 1, "bad_node"))


@pytest.mark.parametrize(
    ("arguments", "attributes", "words"),
    [
        (("Cast", 1, [2]), {"to": "FLOAT7"}, "FLOAT7"),
        (("Cast", 1, [2]), {}, "`to` is missing"),
        (("Add", 6, [2, 3], [2, 3]), {"broadcast": 1, "axis": 1}, "does not broadcast"),
        (("Add", 6, [2, 3], [2]), {"broadcast": 1, "axis": -2}, "expected -1, or 0 or more"),
        (("Softmax", 11, [2, 3]), {"axis": 5}, "out of range for rank 2"),
        (("Slice", 1, [2, 3]), {"starts": (1,), "ends": (1, 2)}, "1 starts, 2 ends"),
        (("Reshape", 1, [2, 3]), {}, "`shape` is missing"),
        (("LpPool", 1, [1, 1, 4, 4]), {}, "`kernel_shape` is missing"),
        (("Unsqueeze", 11, [2]), {}, "`axes` is missing"),
        (("Upsample", 7, [1, 1, 2, 2]), {}, "`scales` is missing"),
        (("GroupNormalization", 18, [1, 4, 2], [3], [3]), {"num_groups": 3}, "does not divide the 4 channels"),
        (("TopK", 1, [4]), {"k": "three"}, "'three'; expected an integer"),
        (("TopK", 1), {"k": 3}, "input 0 is missing"),
    ],
)
def test_an_invalid_call_is_refused_by_name(arguments: tuple[Any, ...], attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match="bad_node") as caught:
        bad(*arguments, **attributes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "attributes", "words"),
    [
        (("Split", 1, [4]), {}, "set attribute `axis`"),
        (("Pad", 1, [2, 3]), {"paddings": (0, 0, 2, 0)}, "Pad-2"),
        (
            ("Resize", 11, [1, 1, 2, 2], [0], [4]),
            {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "mode": "linear"},
            "another coordinate_transformation_mode",
        ),
        (
            ("Resize", 11, [1, 1, 2, 2], [0], [4]),
            {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "ceil"},
            "nearest_mode ceil",
        ),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_the_way_out(
    arguments: tuple[Any, ...], attributes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError, match="bad_node") as caught:
        bad(*arguments, **attributes)
    assert words in str(caught.value)


def test_a_bound_of_unknown_type_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="element type of input 0 is unknown"):
        bad("Clip", 1, [2], element_type=undefined)


def test_a_bound_takes_the_type_of_the_data_where_that_is_unknown() -> None:
    x = Parameter(undefined, [2], "x").output(0)
    result = upgrade_call(OldCall("Clip", "", 6, (x,), {"min": 0.0, "max": 6.0}, 1, "clip"))
    assert isinstance(result, OldCall)
    assert [value and value.node.op_type for value in result.inputs[1:]] == ["CastLike", "CastLike"]


@pytest.mark.parametrize(("element_type", "made"), [(undefined, "CastLike"), (f32, "Cast")])
@pytest.mark.parametrize("version", [6, 7])
def test_a_mask_takes_the_type_of_the_data(version: int, element_type: ElementType, made: str) -> None:
    x = Parameter(element_type, [2], "x").output(0)
    result = upgrade_call(OldCall("Dropout", "", version, (x,), {"is_test": 1} if version == 6 else {}, 2, "drop"))
    assert not isinstance(result, OldCall)
    mask = result[1]
    assert mask.node.op_type == made
    assert mask.element_type is element_type


@pytest.mark.parametrize(("attributes", "kept"), [({}, 2.0), ({"ratio": 0.75, "is_test": 0}, 4.0)], ids=str)
def test_a_dropout_that_is_not_of_inference_drops(attributes: dict[str, Any], kept: float) -> None:
    """At opset 6 a model that does not say `is_test` trains: elements are dropped with probability `ratio`."""
    x = Parameter(f32, [1000], "x")
    result = upgrade_call(OldCall("Dropout", "", 6, (x.output(0),), attributes, 2, "drop"))
    assert not isinstance(result, OldCall)
    y, mask = evaluate(result, [x], [np.ones(1000, np.float32)])
    assert set(y) == {0, kept}
    assert abs(np.mean(y) - 1) < 0.5
    np.testing.assert_array_equal(mask, y / kept)


@pytest.mark.parametrize("opset", [5, 6])
@pytest.mark.parametrize("kind", [onnx.TensorProto.INT32, onnx.TensorProto.STRING, onnx.TensorProto.UINT8])
def test_a_clip_of_a_type_that_its_version_lacks_is_refused(opset: int, kind: int) -> None:
    node = helper.make_node("Clip", ["x"], ["y"], name="bad_node", max=1.0)
    x, y = (helper.make_tensor_value_info(name, kind, [2]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    with pytest.raises(ModelError, match=r"bad_node.*expected f16, f32 or f64"):
        read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
