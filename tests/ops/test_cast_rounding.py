"""Casts to narrow floats round once: what lies next to a tie is not rounded to it first."""

from __future__ import annotations

import bisect
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import (
    Constant,
    ElementType,
    Model,
    Parameter,
    bf16,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f16,
    f32,
    f64,
    i32,
    i64,
    string,
    u32,
    u64,
)
from engine.ops import evaluate_model
from engine.ops.tensors import Array

SOURCES = (f64, f32, i64, u64, i32, u32)
TARGETS = (bf16, f16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f4e2m1)


@cache
def finite_values(target: ElementType) -> list[tuple[Fraction, int]]:
    """The numbers of a type that are 0 or above, in order, each with the lowest bit of its code."""
    bits = np.dtype(target.numpy).itemsize * 8 if target.bits > 4 else 4
    codes = np.arange(1 << (bits - 1), dtype=np.uint16 if bits > 8 else np.uint8)
    with np.errstate(invalid="ignore"):
        wide = codes.view(target.numpy).astype(np.float64)
    return [(Fraction(float(v)), int(code) & 1) for v, code in zip(wide, codes, strict=True) if np.isfinite(v)]


def probes(target: ElementType, source: ElementType) -> Array:
    """Numbers of the source type: numbers of the target, the ties between them, and the nearest neighbours of both."""
    values = [value for value, _ in finite_values(target)]
    step = max(1, len(values) // 200)
    chosen = sorted({*range(0, len(values) - 1, step), *range(min(8, len(values) - 1)), len(values) - 2})
    points = [values[i] for i in chosen] + [(values[i] + values[i + 1]) / 2 for i in chosen]
    if source.is_real:
        near = np.array([float(p) for p in points])
        kind = np.dtype(source.numpy)
        middle = near.astype(kind)
        relative = (middle * (1 + kind.type(2.0**-40))).astype(kind)
        found = np.concatenate(
            [middle, np.nextafter(middle, kind.type(np.inf)), np.nextafter(middle, kind.type(0)), relative]
        )
        return np.concatenate([found, -found])
    info = np.iinfo(source.numpy)
    whole = {int(p) + d for p in points if p.denominator == 1 or p > 1 for d in (-1, 0, 1)}
    whole |= {sign * w for w in whole for sign in (1, -1)}
    return np.array(sorted(w for w in whole if info.min <= w <= info.max), source.numpy)


def rounded(x: Array, target: ElementType) -> Array:
    """The nearest number of the target by exact arithmetic, ties to the even code; beyond the largest, NaN (open)."""
    values = finite_values(target)
    numbers = [value for value, _ in values]
    result = np.full(x.shape, np.nan)
    for index, element in enumerate(x.tolist()):
        exact = abs(Fraction(element))
        if exact > numbers[-1]:
            continue  # whether it saturates is another matter
        at = bisect.bisect_left(numbers, exact)
        if numbers[at] != exact:
            low, high = values[at - 1], values[at]
            below, above = exact - low[0], high[0] - exact
            nearest = low if below < above or (below == above and low[1] == 0) else high
        else:
            nearest = values[at]
        result[index] = float(nearest[0]) * (-1 if element < 0 else 1)
    return result


def cast_model(source: ElementType, target: ElementType, count: int, name: str) -> Model:
    x = Parameter(source, [count], "x")
    if name == "Cast":
        return Model([ops.Cast(ops.Cast(x, to=target), to=f64)], [x])
    like = Parameter(target, [1], "like")
    return Model([ops.Cast(ops.CastLike(x, like), to=f64)], [x, like])


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", pytest.param("OPENCL", marks=pytest.mark.opencl)])
@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_cast_gives_the_nearest_number(source: ElementType, target: ElementType, device: str) -> None:
    x = probes(target, source)
    expected = rounded(x, target)
    known = ~np.isnan(expected)
    assert known.sum() >= 5
    like = {"like": np.zeros(1, target.numpy)}
    for name in ("Cast", "CastLike"):
        network = Core().compile_model(cast_model(source, target, len(x), name), device)
        found = np.asarray(network({"x": x, **(like if name == "CastLike" else {})})[0])
        np.testing.assert_array_equal(found[known], expected[known], err_msg=name)


@pytest.mark.parametrize("target", [bf16, f8e4m3fn, f8e5m2, f4e2m1], ids=str)
def test_a_constant_and_an_input_are_cast_alike(target: ElementType) -> None:
    numbers = probes(target, f64)
    x = Parameter(f64, [len(numbers)], "x")
    outputs = [ops.Cast(ops.Cast(value, to=target), to=f32) for value in (x, Constant(numbers))]
    computed, folded = Core().compile_model(Model(outputs, [x]), "CPU")({"x": numbers}).values()
    np.testing.assert_array_equal(np.asarray(computed), np.asarray(folded))


def test_quotients_are_rounded_once_when_they_are_quantized() -> None:
    x, scale = Parameter(f32, [2], "x"), Parameter(f32, [], "scale")
    node = ops.QuantizeLinear(x, scale, output_dtype=f8e4m3fn.onnx, precision=f64.onnx)
    (codes,) = evaluate_model(
        Model([node], [x, scale]), [np.float32([1.0625 + 2**-19, 1.0625]), np.float32(1 + 15 * 2**-23)]
    )
    assert codes.astype(np.float32).tolist() == [1.125, 1.0]  # in f32, the first quotient is the tie 1.0625


def test_texts_become_narrow_floats() -> None:
    x = Parameter(string, [3], "x")
    (found,) = evaluate_model(Model([ops.Cast(x, to=bf16)], [x]), [np.array(["1.00390625001", "-INF", "1e3"], object)])
    assert found.astype(np.float64).tolist() == [1.0078125, -np.inf, 1000.0]
