"""Operators of onnxruntime that converters and quantizers wrote: on each device, the answers of onnxruntime."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, ModelError, UnsupportedError
from engine.onnx import read_model
from engine.onnx.contrib import OPERATORS, equivalents
from tests.onnx.test_transformer_operators import (
    ARRAYS,
    VALUES,
    Inputs,
    Make,
    at,
    check_answers,
    having,
    proto_of,
)

F32 = np.float32
CASES: dict[str, Make] = {}


def given_inputs(x: Inputs, *values: Any, outputs: int = 1, **attributes: Any) -> dict[str, Any]:
    """A shape becomes an input of random numbers; an array is one, and the parameters that follow are constants."""
    for index, value in enumerate(values):
        if isinstance(value, tuple):
            x.real(*value)
        else:
            x.add(value, constant=index > 0 and value is not None)
    x.outputs = outputs
    return attributes


def case(name: str, *values: Any, **attributes: Any) -> None:
    CASES[name] = lambda x: given_inputs(x, *values, **attributes)


case("Trilu", (2, 3, 4))
case("Trilu/lower", (2, 3, 4), np.array(1), upper=0)
case("Trilu/vector", (4, 3), np.array([-1]), upper=1)
for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        case(f"GridSample/{mode}-{padding}", (1, 2, 4, 5), (1, 3, 2, 2), mode=mode, padding_mode=padding)
case("GridSample", (2, 2, 4, 5), (2, 3, 2, 2), align_corners=1)
for axis in (-3, -1, 0, 2):
    case(f"ExpandDims/{axis}", (2, 3), np.array(axis, np.int32))
case("ExpandDims", (2, 3), np.array([1], np.int32))
case("GatherND", (2, 3, 4), np.array([[0, 1], [1, -1]]))
case("GatherND/rank-1", (2, 3, 4), np.array([1], np.int32))
case("GatherND/rank-3", (2, 3, 4), np.array([[[0], [1]]]))
for mode in ("constant", "reflect", "edge"):
    case(f"Pad/{mode}", (3, 4), np.array([1, 0, 1, 2]), mode=mode)
case("Pad", (3, 4), np.array([[1, 0, -1, 2]]), np.array([3], F32))
case("Range", np.array(1, F32), np.array(7, F32), np.array(2, F32))
case("Range/no-delta", np.array([1], np.int32), np.array([7], np.int32))
case("Range/down", np.array(9), np.array(2), np.array(-3))
case("Unique", np.array([2, 1, 1, 3, 4, 3], F32), outputs=3)
case("UnfoldTensor", (4, 5, 6), size=2)
case("UnfoldTensor/step", (4, 5, 6), size=3, step=2, dim=1)
case("UnfoldTensor/first", (5, 3), size=2, step=2, dim=0)
case("UnfoldTensor/whole", (5, 3), size=3, dim=-1)
case("CDist", (3, 4), (5, 4))
case("CDist/euclidean", (3, 4), (5, 4), metric="euclidean")
_PICTURE = np.random.default_rng(0).integers(0, 256, (1, 6, 7, 3), dtype=np.uint8)
case("NhwcMaxPool", _PICTURE, kernel_shape=[2, 2])
case("NhwcMaxPool/signed", _PICTURE.view(np.int8), kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 2])
case("NhwcMaxPool/ceil", _PICTURE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, dilations=[2, 1])
case("NhwcMaxPool/same", _PICTURE, kernel_shape=[2, 2], auto_pad="SAME_UPPER")


def bnb4(
    x: Inputs, rows: int = 6, columns: int = 32, size: int = 16, a: Sequence[int] = (2, 3), **attributes: Any
) -> dict[str, Any]:
    count = rows * columns
    x.real(*a, columns)
    x.add(x.random.integers(0, 256, -(-count // 2), dtype=np.uint8), constant=True)
    x.add(x.random.uniform(0.1, 1, -(-count // size)).astype(F32), constant=True)
    return {"N": rows, "K": columns, "block_size": size, "quant_type": 1, **attributes}


CASES["MatMulBnb4"] = bnb4
CASES["MatMulBnb4/FP4"] = lambda x: bnb4(x, quant_type=0, training_mode=0)
CASES["MatMulBnb4/part-of-a-block"] = lambda x: bnb4(x, 3, 24, 64)
CASES["MatMulBnb4/odd"] = lambda x: bnb4(x, 3, 5)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_onnxruntime(name: str, dynamic: bool) -> None:
    x = Inputs()
    check_answers(x, proto_of(name, x, CASES[name](x), dynamic=dynamic))


def test_every_operator_has_a_case() -> None:
    known = {name for name, operator in OPERATORS.items() if operator.function.__module__ == equivalents.__name__}
    assert {name.split("/")[0] for name in CASES} == known


def changed(name: str, change: Any) -> Any:
    """A case, changed."""
    x = Inputs()
    attributes = CASES[name](x)
    change(x, attributes)
    return proto_of(name, x, attributes)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("Trilu/lower", at(1, np.zeros(2, np.int64)), "input 1 (k, `x1`) has shape [2]; expected one number"),
        ("GridSample", having(mode="linear"), "attribute `mode` is 'linear'; expected 'bilinear' or 'nearest'"),
        ("GridSample", at(0, np.zeros((1, 2, 3, 4, 5), F32)), "has shape [1,2,3,4,5]; expected rank 4"),
        ("ExpandDims", at(1, np.zeros(1, np.int64)), "input 1 (axis, `x1`) is i64; expected i32"),
        ("GatherND", at(1, np.zeros((1, 1), F32)), "input 1 (indices, `x1`) is f32; expected i32 or i64"),
        ("Pad", having(mode="wrap"), "attribute `mode` is 'wrap'; expected 'constant' or 'reflect' or 'edge'"),
        ("Range", at(1, np.zeros(2, F32)), "input 1 (limit, `x1`) has shape [2]; expected one number"),
        ("Unique", at(0, np.zeros((2, 2), F32)), "has shape [2,2]; expected rank 1"),
        ("UnfoldTensor", having(size=0), "attribute `size` is 0; expected 1 or more"),
        ("UnfoldTensor", having(size=9), "attribute `size` is 9; expected at most the length of axis 2 of [4,5,6]"),
        ("UnfoldTensor", having(dim=3), "attribute `dim` is 3; expected -3 to 2"),
        ("NhwcMaxPool", having(kernel_shape=[2]), "attribute `kernel_shape` is [2]; expected 2 lengths"),
        ("NhwcMaxPool", at(0, np.zeros((1, 4, 4, 2), F32)), "input 0 (x, `x0`) is f32; expected i8 or u8"),
        ("MatMulBnb4", having(block_size=8), "attribute `block_size` is 8; expected 16 or 32 or 64 or 128 or 256"),
        ("MatMulBnb4", having(quant_type=2), "attribute `quant_type` is 2; expected 0 or 1"),
        ("MatMulBnb4", at(1, np.zeros(95, np.uint8)), "has shape [95]; expected [96] for 192 weights"),
        ("MatMulBnb4", at(2, np.zeros(11, F32)), "has shape [11]; expected [12] for 192 weights"),
    ],
)
def test_what_an_operator_does_not_accept(name: str, change: Any, words: str) -> None:
    with pytest.raises(ModelError) as found:
        read_model(changed(name, change))
    assert f"{name.split('/')[0]} `node`" in str(found.value)
    assert words in str(found.value)


def test_what_has_no_form_in_onnx() -> None:
    with pytest.raises(UnsupportedError, match="attribute `metric` is 'cosine'; known ones are"):
        read_model(changed("CDist", having(metric="cosine")))
    with pytest.raises(UnsupportedError, match="attribute `transB` is 0"):
        read_model(changed("MatMulBnb4", having(transB=0)))


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
