"""Operators of models with states of fixed size, such as Qwen3.5 and LFM2: on each device, the answers of onnxruntime.

If one fails, models that onnxruntime-genai's builder wrote cannot be read, or generate other tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Core
from engine.errors import EngineError, ModelError, UnsupportedError
from engine.onnx import read_model
from engine.onnx.contrib import OPERATORS, gated, linear_attention
from tests.onnx.test_transformer_operators import (
    ARRAYS,
    DEVICES,
    VALUES,
    Inputs,
    Make,
    at,
    check_answers,
    having,
    naming,
    proto_of,
)

F32 = np.float32
CASES: dict[str, Make] = {}
HALVES = (
    "CausalConvWithState/silu", "GatedAdd", "GatedRMSNorm", "GatedRMSNorm/groups", "LinearAttention/more-values",
    "LinearAttentionGate",
)  # fmt: skip
"""Cases that also run in f16."""


def attention(
    x: Inputs,
    queries: int = 2,
    keys: int = 2,
    values: int = 2,
    *,
    rule: str = "gated_delta",
    past: bool = True,
    per_key: bool = False,
    shared: bool = False,
    extra: bool = False,
    tokens: int = 5,
    **attributes: Any,
) -> dict[str, Any]:
    """With keys of 8 and values of 6 elements; `extra` adds inputs that the rule does not read."""
    x.real(2, tokens, queries * 8, scale=0.3)
    x.real(2, tokens, keys * 8, scale=0.3)
    x.real(2, tokens, values * 6)
    x.real(2, values, 8, 6) if past else x.skip()
    if "gated" in rule or extra:
        x.add(-np.abs(x.random.normal(size=(2, tokens, values * (8 if per_key else 1)))).astype(x.dtype))
    else:
        x.skip()
    if "delta" in rule or extra:
        x.add(x.random.uniform(0, 1, (2, tokens, 1 if shared else values)).astype(x.dtype))
    x.outputs = 2
    return {"q_num_heads": queries, "kv_num_heads": values, "update_rule": rule, **attributes}


HEADS = {
    "": (2, 2, 2), "more-queries": (4, 2, 2), "more-values": (2, 2, 4), "fewer-queries": (2, 4, 4),
    "one-key": (4, 1, 2), "one-key-of-few-queries": (2, 1, 4), "all-of-one": (1, 1, 4),
}  # fmt: skip
for form, heads in HEADS.items():
    for rule in ("linear", "gated", "delta", "gated_delta"):
        CASES[f"LinearAttention/{rule}-{form}"] = lambda x, heads=heads, rule=rule: attention(x, *heads, rule=rule)
CASES["LinearAttention"] = attention
CASES["LinearAttention/more-values"] = lambda x: attention(x, 2, 2, 4)
CASES["LinearAttention/default-rule"] = lambda x: {k: v for k, v in attention(x).items() if k != "update_rule"}
CASES["LinearAttention/decay-of-keys"] = lambda x: attention(x, 2, 2, 4, per_key=True, scale=0.5)
CASES["LinearAttention/one-beta"] = lambda x: attention(x, shared=True, chunk_size=2)
CASES["LinearAttention/no-past"] = lambda x: attention(x, 4, 1, 2, past=False)
CASES["LinearAttention/token"] = lambda x: attention(x, 2, 2, 4, tokens=1, scale=-0.25)
for rule in ("linear", "gated", "delta"):
    CASES[f"LinearAttention/{rule}-ignored"] = lambda x, rule=rule: attention(x, rule=rule, extra=True)


def conv(
    x: Inputs,
    *,
    bias: bool = True,
    past: bool = True,
    width: int = 4,
    tokens: int = 5,
    last: Sequence[int] = (),
    **attributes: Any,
) -> dict[str, Any]:
    """With 6 channels, or the lengths `last` of several axes at the end."""
    state = (width - 1) * attributes.get("dilation", 1)
    x.real(*((2, tokens, *last) if last else (2, 6, tokens)))
    x.real(6, 1, width, constant=True)
    x.real(6, constant=True) if bias else x.skip()
    if past:
        x.real(*((2, state, *last) if last else (2, 6, state)))
    x.outputs = 2
    return {**attributes, **({"channels_last": 1} if last else {})}


CASES["CausalConvWithState"] = conv
CASES["CausalConvWithState/none"] = lambda x: conv(x, activation="none", ndim=1)
CASES["CausalConvWithState/silu"] = lambda x: conv(x, activation="silu")
CASES["CausalConvWithState/swish"] = lambda x: conv(x, activation="swish", bias=False)
CASES["CausalConvWithState/no-past"] = lambda x: conv(x, past=False)
CASES["CausalConvWithState/token"] = lambda x: conv(x, tokens=1, activation="silu")
CASES["CausalConvWithState/two-tokens"] = lambda x: conv(x, tokens=2, width=3)
CASES["CausalConvWithState/dilated"] = lambda x: conv(x, dilation=2, activation="silu")
CASES["CausalConvWithState/dilated-token"] = lambda x: conv(x, dilation=3, tokens=1)
CASES["CausalConvWithState/dilated-no-past"] = lambda x: conv(x, dilation=2, past=False, bias=False)
CASES["CausalConvWithState/last"] = lambda x: conv(x, last=(6,), activation="silu")
CASES["CausalConvWithState/last-no-past"] = lambda x: conv(x, last=(6,), past=False)
CASES["CausalConvWithState/last-axes"] = lambda x: conv(x, last=(2, 3), dilation=2)
CASES["CausalConvWithState/one"] = lambda x: conv(x, width=1, past=False)


def gates(x: Inputs, shape: Sequence[int] = (2, 5, 3), *, beta: bool = True, outputs: int = 2) -> dict[str, Any]:
    x.real(*shape, scale=5)
    x.add(x.random.normal(size=3).astype(F32), constant=True)
    x.add(-np.abs(x.random.normal(size=3)).astype(F32), constant=True)
    if beta:
        x.real(*shape)
    x.outputs = outputs
    return {}


CASES["LinearAttentionGate"] = gates
CASES["LinearAttentionGate/no-beta"] = lambda x: gates(x, beta=False, outputs=1)
CASES["LinearAttentionGate/unread-beta"] = lambda x: gates(x, outputs=1)
CASES["LinearAttentionGate/rank-2"] = lambda x: gates(x, (5, 3))


def norm(x: Inputs, size: int = 8, shape: Sequence[int] = (2, 5, 8), **attributes: Any) -> dict[str, Any]:
    x.real(*shape)
    x.real(size, constant=True)
    x.real(*shape, scale=3)
    return attributes


CASES["GatedRMSNorm"] = norm
CASES["GatedRMSNorm/groups"] = lambda x: norm(x, 4, activation="swish")
CASES["GatedRMSNorm/sigmoid"] = lambda x: norm(x, 2, activation="sigmoid", epsilon=0.1)
CASES["GatedRMSNorm/rank-1"] = lambda x: norm(x, 4, (8,), activation="silu")
CASES["GatedRMSNorm/rank-4"] = lambda x: norm(x, 8, (2, 3, 2, 8))


def gated_add(x: Inputs, *rows: int) -> dict[str, Any]:
    for width in (8, 8, 1):
        x.real(*rows, width)
    return {}


CASES["GatedAdd"] = lambda x: gated_add(x, 2, 5)
CASES["GatedAdd/rank-1"] = gated_add
CASES["GatedAdd/rank-2"] = lambda x: gated_add(x, 4)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_onnxruntime(name: str, dynamic: bool) -> None:
    x = Inputs()
    check_answers(x, proto_of(name, x, CASES[name](x), dynamic=dynamic))


@pytest.mark.parametrize("name", HALVES)
def test_the_answer_in_f16(name: str) -> None:
    x = Inputs(dtype=np.float16, tolerance=4e-3)
    check_answers(x, proto_of(name, x, CASES[name](x)))


def test_every_operator_has_a_case() -> None:
    modules = {family.__name__ for family in (gated, linear_attention)}
    known = {name for name, operator in OPERATORS.items() if operator.function.__module__ in modules}
    assert {name.split("/")[0] for name in CASES} == known


def test_a_state_for_another_batch_is_an_error() -> None:
    """Its length is known when the network runs."""
    for name, index, shape in (
        ("LinearAttention", 3, (1, 2, 8, 6)),
        ("LinearAttention", 4, (1, 5, 2)),
        ("CausalConvWithState", 3, (1, 6, 3)),
    ):
        x = Inputs()
        model = proto_of(name, x, CASES[name](x), dynamic=True)
        for device in DEVICES:
            network = Core().compile_model(model, device)
            with pytest.raises(EngineError):
                network({**x.feed, f"x{index}": np.zeros(shape, F32)})


# -- what is refused --------------------------------------------------------------------------------------


def changed(name: str, change: Any) -> Any:
    """A case, changed."""
    x = Inputs()
    attributes = CASES[name](x)
    change(x, attributes)
    return proto_of(name, x, attributes)


LINEAR, CONV, LAST = "LinearAttention", "CausalConvWithState", "CausalConvWithState/last-axes"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (LINEAR, having(state_window=2), "attribute `state_window` is 2"),
        (CONV, having(state_window=2), "attribute `state_window` is 2"),
        (CONV, having(ndim=2), "attribute `ndim` is 2"),
        (LAST, having(state_length=9), "attribute `state_length` is 9"),
        (LAST, having(state_channels_last=0), "attribute `state_channels_last` is 0"),
        (LAST, having(input_channels=3), "attribute `input_channels` is 3"),
        (CONV, naming(3), "output 2 (state_update, `y2`) has no form"),
        ("GatedAdd", lambda x, _: x.real(1, 1), "input 3 (gate_weight, `x3`) is given"),
    ],
)
def test_what_has_no_form_in_onnx(name: str, change: Any, words: str) -> None:
    with pytest.raises(UnsupportedError) as found:
        read_model(changed(name, change))
    assert f"{name.split('/')[0]} `node`" in str(found.value)
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (LINEAR, having(update_rule="x"), "attribute `update_rule` is 'x'; expected 'linear' or 'gated' or"),
        (LINEAR, having(q_num_heads=0), "attribute `q_num_heads` is 0; expected 1 or more"),
        (LINEAR, having(q_num_heads=3, kv_num_heads=2), "is 3; expected a multiple or a divisor of kv_num_heads, 2"),
        (LINEAR, having(kv_num_heads=4, q_num_heads=4), "has shape [2,2,8,6]; expected [batch, 4, 4, 3]"),
        (LINEAR, at(0, np.zeros((2, 5, 17), F32)), "has shape [2,5,17]; expected 2 heads in its rows"),
        (LINEAR, at(1, np.zeros((2, 5, 12), F32)), "has shape [2,5,12]; expected heads of 8 elements"),
        (LINEAR, at(1, np.zeros((2, 5, 32), F32)), "as many as the values have, 2, or a divisor of it"),
        (LINEAR, at(3, np.zeros((2, 2, 6, 8), F32)), "has shape [2,2,6,8]; expected [batch, 2, 8, 6]"),
        (LINEAR, at(4, None), "input 4 is missing, which the update rule 'gated_delta' needs"),
        (LINEAR, at(5, None), "input 5 is missing, which the update rule 'gated_delta' needs"),
        (LINEAR, at(4, np.zeros((2, 5, 3), F32)), "has shape [2,5,3]; expected rows of 2 or 16"),
        (LINEAR, at(5, np.zeros((2, 5, 3), F32)), "has shape [2,5,3]; expected rows of 1 or 2"),
        (LINEAR, at(2, np.zeros((2, 5, 12), np.float16)), "input 2 (value, `x2`) is f16; expected f32"),
        (LINEAR, at(0, np.zeros((2, 5, 4, 4), F32)), "has shape [2,5,4,4]; expected rank 3"),
        (CONV, having(activation="relu"), "attribute `activation` is 'relu'; expected 'none' or 'silu' or 'swish'"),
        (CONV, having(dilation=0), "attribute `dilation` is 0; expected 1 or more"),
        (CONV, at(1, np.zeros((6, 2, 4), F32)), "has shape [6,2,4]; expected [channels, 1, 1 or more]"),
        (CONV, at(1, np.zeros((7, 1, 4), F32)), "input 2 (bias, `x2`) has shape [6]; expected [7], one for each"),
        (CONV, at(2, np.zeros(5, F32)), "has shape [5]; expected [6], one for each channel"),
        (CONV, at(0, np.zeros((2, 5, 5), F32)), "input 0 (input, `x0`) has shape [2,5,5]; expected [batch, 6, ...]"),
        (CONV, at(3, np.zeros((2, 6, 4), F32)), "has shape [2,6,4]; expected [batch, 6, 3]"),
        (LAST, at(0, np.zeros((2, 5, 2, 2), F32)), "has shape [2,5,2,2]; expected [batch, ...] and 6 channels"),
        (LAST, at(3, np.zeros((2, 3, 2, 3), F32)), "has shape [2,3,2,3]; expected [batch, 6] and 6 channels"),
        ("LinearAttentionGate", at(3, None), "input 3 (b) is missing; expected it, as output 1 (beta)"),
        ("LinearAttentionGate", at(1, np.zeros(1, F32)), "has shape [1]; expected [3], one for each head"),
        ("LinearAttentionGate", at(2, np.zeros(3, np.float16)), "input 2 (decay_scale, `x2`) is f16; expected f32"),
        ("LinearAttentionGate", at(3, np.zeros((2, 5, 1), F32)), "has shape [2,5,1]; expected [2,5,3], as input 0"),
        ("GatedRMSNorm", having(activation="none"), "attribute `activation` is 'none'; expected 'silu' or 'swish'"),
        ("GatedRMSNorm", at(1, np.zeros(3, F32)), "has shape [2,5,8]; expected rows of groups of 3"),
        ("GatedRMSNorm", at(2, np.zeros((2, 1, 8), F32)), "has shape [2,1,8]; expected [2,5,8], as input 0"),
        ("GatedAdd", at(1, np.zeros((1, 5, 8), F32)), "has shape [1,5,8]; expected [2,5,8], as input 0"),
        ("GatedAdd", at(2, np.zeros((2, 5, 8), F32)), "has shape [2,5,8]; expected one number for each row of [2,5,8]"),
        ("GatedAdd", at(2, np.zeros((1, 5, 1), F32)), "expected one number for each row of [2,5,8]"),
    ],
)
def test_what_an_operator_does_not_accept(name: str, change: Any, words: str) -> None:
    with pytest.raises(ModelError) as found:
        read_model(changed(name, change))
    assert f"{name.split('/')[0]} `node`" in str(found.value)
    assert words in str(found.value)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_any_other_call_is_read_or_refused(name: str, data: st.DataObject) -> None:
    def change(x: Inputs, attributes: dict[str, Any]) -> None:
        for index in data.draw(st.sets(st.integers(0, len(x.arrays) - 1), max_size=2)):
            x.arrays[index] = data.draw(st.one_of(st.none(), ARRAYS))
        names = OPERATORS[name.split("/")[0]].attributes or ("none",)
        for key in data.draw(st.sets(st.sampled_from(names), max_size=2)):
            attributes[key] = data.draw(VALUES)
        x.add(None if any(a is not None for a in x.arrays) else np.ones(1, F32))

    with contextlib.suppress(EngineError):
        read_model(changed(name, change))
