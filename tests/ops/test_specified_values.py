"""Results that ONNX's text defines and `onnx.reference` computes: every type, infinities, NaN, signed zeros.

They are compared with Python's own arithmetic, not with numpy's, which `onnx.reference` uses.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from engine import ops
from engine.ir import ElementType, Parameter, bf16, boolean, f16, f32, f64, string
from engine.ops import get_op

INF, NAN = math.inf, math.nan
REALS = (f16, bf16, f32, f64)
SHAPES = (
    ((40,), (40,)),
    ((), ()),
    ((3, 4, 1), (4, 5)),
    ((), (7,)),
    ((2, 0, 3), (1, 3)),
    ((0,), ()),
    ((5, 1, 2), (3, 1)),
)


def run(op_type: str, *arrays: NDArray[Any], **attributes: Any) -> NDArray[Any]:
    inputs = [Parameter(ElementType.from_numpy(array.dtype), array.shape) for array in arrays]
    (value,) = ops.evaluate(ops.create(op_type, inputs, attributes), arrays)
    assert isinstance(value, np.ndarray)
    return value


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INF


def _sinh(x: float) -> float:
    try:
        return math.sinh(x)
    except OverflowError:
        return math.copysign(INF, x)


def _cosh(x: float) -> float:
    return abs(_sinh(x)) if abs(x) > 700 else math.cosh(x)


def _atanh(x: float) -> float:
    return math.copysign(INF, x) if abs(x) == 1 else math.atanh(x)


def _whole(round_: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: math.copysign(round_(x), x) if math.isfinite(x) else x


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "Sin": math.sin, "Cos": math.cos, "Tan": math.tan, "Asin": math.asin, "Acos": math.acos, "Atan": math.atan,
    "Sinh": _sinh, "Cosh": _cosh, "Asinh": math.asinh, "Acosh": math.acosh, "Atanh": _atanh, "Exp": _exp,
    "Ceil": _whole(math.ceil), "Floor": _whole(math.floor),
}  # fmt: skip


def _numbers(element_type: ElementType) -> NDArray[Any]:
    info = ml_dtypes.finfo(element_type.numpy)  # type: ignore[no-untyped-call]
    limits = [float(x) for x in (info.max, info.tiny, info.smallest_subnormal, 1 + info.eps, 1 - info.eps)]
    values = [0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 3.14159, 11.0, 88.8, 104.0, 710.0, 1e4, INF, *limits]
    with np.errstate(all="ignore"):
        return np.array([*values, *(-value for value in values), NAN], np.float64).astype(element_type.numpy)


@pytest.mark.parametrize("element_type", REALS, ids=str)
@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_functions_of_one_number(op_type: str, element_type: ElementType) -> None:
    """numpy's functions of f32 are right to 4 units in the last place; those of f16 and bf16 round once."""
    x = _numbers(element_type)
    found = run(op_type, x)
    assert found.dtype == x.dtype
    info = ml_dtypes.finfo(x.dtype)  # type: ignore[no-untyped-call]
    for value, result in zip(x.astype(np.float64), found.astype(np.float64), strict=True):
        try:
            exact = FUNCTIONS[op_type](value)
        except ValueError:  # out of the function's domain
            exact = NAN
        with np.errstate(all="ignore"):
            wanted = float(np.float64(exact).astype(x.dtype))
        if not math.isfinite(wanted) or wanted == 0:
            np.testing.assert_array_equal(result, wanted, f"{op_type}({value})")
            assert math.isnan(wanted) or math.copysign(1, result) == math.copysign(1, wanted), f"{op_type}({value})"
        else:
            unit = max(abs(exact), float(info.tiny)) * float(info.eps)
            assert abs(result - exact) <= (0.51 if element_type in (f16, bf16) else 4) * unit, f"{op_type}({value})"


@pytest.mark.parametrize("op_type", [*FUNCTIONS, "Not", "BitwiseNot", "Transpose"])
def test_scalars_and_no_elements(op_type: str) -> None:
    for element_type in get_op(op_type).inputs[0].elements:
        dtype = np.dtype(object if element_type is string else element_type.numpy)
        for shape in ((), (0,), (2, 0)):
            result = run(op_type, np.zeros(shape, dtype))
            assert (result.shape, result.dtype) == (shape[::-1] if op_type == "Transpose" else shape, dtype)


PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "And": operator.and_, "Or": operator.or_, "Xor": operator.xor, "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_, "BitwiseXor": operator.xor, "Equal": operator.eq, "Greater": operator.gt,
    "Less": operator.lt, "GreaterOrEqual": operator.ge, "LessOrEqual": operator.le,
}  # fmt: skip


def _values(element_type: ElementType) -> list[Any]:
    if element_type is string:
        return ["", "a", "A", "a\0", " a", "aa", "é", "é"]
    if element_type is boolean:
        return [True, False]
    if element_type.is_real:
        info = ml_dtypes.finfo(element_type.numpy)  # type: ignore[no-untyped-call]
        some = [0.0, INF, NAN, 1.0, *(float(x) for x in (1 + info.eps, info.max, info.smallest_subnormal))]
        return [*some, *(-value for value in some)]
    whole = np.iinfo(element_type.numpy)
    return [int(whole.min), int(whole.min) + 1, 0, 1, int(whole.max) - 1, int(whole.max)]


@pytest.mark.parametrize("op_type", PAIRS)
def test_functions_of_two_values(op_type: str) -> None:
    """Integers of 64 bits are not compared as real numbers; NaN is not equal to itself."""
    random = np.random.default_rng(7)
    for element_type in get_op(op_type).inputs[0].elements:
        dtype = object if element_type is string else element_type.numpy
        pool = np.array(_values(element_type), dtype)
        for first, second in SHAPES:
            a, b = (np.asarray(pool[random.integers(pool.size, size=shape)], dtype) for shape in (first, second))
            with np.errstate(all="ignore"):
                wanted = np.frompyfunc(PAIRS[op_type], 2, 1)(a.astype(object), b.astype(object))
            found = run(op_type, a, b)
            assert found.dtype == (a.dtype if op_type.startswith("Bitwise") else np.dtype(bool))
            np.testing.assert_array_equal(found.astype(object), wanted, f"{element_type.name}{first}{second}")


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2, 3, 5), None),
        ((2, 3, 5), (1, 0, 2)),
        ((2, 3, 5), (1, 2, 0)),
        ((4,), (0,)),
        ((2, 3, 1, 5, 2), (4, 3, 1, 0, 2)),
    ],
)
def test_axis_i_of_a_transpose_is_axis_perm_i(shape: tuple[int, ...], perm: tuple[int, ...] | None) -> None:
    for element_type in get_op("Transpose").inputs[0].elements:
        dtype = np.dtype(object if element_type is string else element_type.numpy)
        values = [i % 2 + (element_type is not boolean) for i in range(math.prod(shape))]  # all types have 1 and 2
        x = np.array([str(i) if element_type is string else i for i in values]).astype(dtype).reshape(shape)
        found = run("Transpose", x, **({} if perm is None else {"perm": perm}))
        order = perm or tuple(range(len(shape)))[::-1]
        assert found.dtype == dtype
        assert found.shape == tuple(shape[axis] for axis in order)
        for index in np.ndindex(*found.shape):
            source = [0] * len(shape)
            for axis, place in zip(order, index, strict=True):
                source[axis] = place
            assert found[index] == x[tuple(source)]


def _linear_attention(rule: str, q: Any, k: Any, v: Any, state: Any, decay: Any, beta: Any, scale: float) -> Any:
    """The formulas for one sample in f64: `q` [T, Q, dk], `k` [T, H, dk], `v` [T, H, dv], `state` [H, dk, dv]."""
    tokens, queries, _ = q.shape
    heads = k.shape[1]
    state, out = state.copy(), np.zeros((tokens, queries, v.shape[2]))
    for token in range(tokens):
        for head in range(heads):
            key, value, old = k[token, head], v[token, head], state[head]
            if rule in ("gated", "gated_delta"):
                old = np.exp(decay[token, head])[:, None] * old
            if rule in ("delta", "gated_delta"):
                value = beta[token, head] * (value - old.T @ key)
            state[head] = old + np.outer(key, value)
            for query in range(head * (queries // heads), (head + 1) * (queries // heads)):
                out[token, query] = scale * (state[head].T @ q[token, query])
    return out, state


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("of_values", "of_state"), [("f32", "f32"), ("f16", "f32"), ("bf16", "bf16"), ("f32", "f16")])
@pytest.mark.parametrize("is_per_head", [False, True], ids=["per key", "per head"])
def test_linear_attention_by_its_formulas(rule: str, of_values: str, of_state: str, is_per_head: bool) -> None:
    """Also of states of another type, decays for each key or head, and one beta for all heads."""
    types = {each.name: each for each in REALS}
    values, kept = types[of_values], types[of_state]
    random = np.random.default_rng(3)
    batch, tokens, heads, queries, keys, width = 2, 4, 2, 6, 3, 5

    def some(*shape: int, element_type: ElementType = values) -> NDArray[Any]:
        return (random.uniform(-1, 1, shape)).astype(element_type.numpy)

    q, k, v = some(batch, tokens, queries * keys), some(batch, tokens, heads * keys), some(batch, tokens, heads * width)
    past = some(batch, heads, keys, width, element_type=kept)
    decay = -np.abs(some(batch, tokens, heads * (1 if is_per_head else keys)))
    beta = np.abs(some(batch, tokens, 1 if is_per_head else heads))
    given = [q, k, v, past, decay if "gated" in rule else None, beta if "delta" in rule else None]
    inputs = [None if x is None else Parameter(ElementType.from_numpy(x.dtype), x.shape) for x in given]
    node = ops.LinearAttention(*inputs, update_rule=rule, q_num_heads=queries, kv_num_heads=heads, num_outputs=2)
    found, state = ops.evaluate(node, given)
    assert (found.dtype, state.dtype) == (values.numpy, kept.numpy)
    wide = [np.asarray(x, np.float64) for x in (q, k, v, past, decay, beta)]
    for sample in range(batch):
        wanted, last = _linear_attention(
            rule,
            wide[0][sample].reshape(tokens, queries, keys),
            wide[1][sample].reshape(tokens, heads, keys),
            wide[2][sample].reshape(tokens, heads, width),
            wide[3][sample],
            np.broadcast_to(wide[4][sample].reshape(tokens, heads, -1), (tokens, heads, keys)),
            np.broadcast_to(wide[5][sample].reshape(tokens, -1), (tokens, heads)),
            1 / math.sqrt(keys),
        )
        # Computed in f32 in at most 20 steps, and rounded once.
        for result, exact in ((found[sample].reshape(wanted.shape), wanted), (state[sample], last)):
            unit = float(ml_dtypes.finfo(result.dtype).eps)  # type: ignore[no-untyped-call]
            bound = (unit + 20 * 2.0**-23) * max(1.0, float(np.abs(exact).max()))
            np.testing.assert_allclose(result.astype(np.float64), exact, rtol=0, atol=bound)
