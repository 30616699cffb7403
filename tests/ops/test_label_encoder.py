"""LabelEncoder and OneHotEncoder where the reference, or onnxruntime, departs from the text of ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import InputError, OperatorSpecError
from engine.ir import ElementType, Parameter, PartialShape

NAN = float("nan")


def encoded(x: Any, dtype: Any, **attributes: Any) -> Any:
    data = np.array(x, dtype)
    element = ElementType.from_numpy(data.dtype)
    node = ops.create("LabelEncoder", [Parameter(element, PartialShape(data.shape))], attributes, domain="ai.onnx.ml")
    (y,) = ops.evaluate(node, [data])
    assert (y.shape, y.dtype) == (data.shape, node.output(0).element_type.numpy)
    return y.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nan_is_a_key(dtype: Any) -> None:
    keys = np.array([2, NAN, 1], dtype)
    found = encoded([[NAN, 1], [2, -NAN]], dtype, keys_tensor=keys, values_tensor=np.array([5, 6, 7], np.int16))
    assert found == [[6, 7], [5, 6]]
    assert encoded([NAN, 3], dtype, keys_tensor=keys[::2], values_strings=["a", "b"]) == ["_Unused", "_Unused"]


def test_of_repeated_keys_the_last_counts() -> None:
    assert encoded([1, 2, 3], np.int64, keys_int64s=[1, 2, 1], values_floats=[1, 2, 3]) == [3, 2, -0.0]
    assert encoded(["a", "b"], object, keys_strings=["a", "a"], values_int64s=[1, 2], default_int64=9) == [2, 9]
    assert encoded([NAN], np.float32, keys_floats=[NAN, 1.0, -NAN], values_int64s=[1, 2, 3]) == [3]


def test_defaults_are_of_the_type_of_the_values() -> None:
    keys = {"keys_int64s": [1]}
    assert encoded([0], np.int64, **keys, values_tensor=np.array([4], np.int32)) == [-1]
    assert encoded([0], np.int64, **keys, values_tensor=np.array([4.0]), default_tensor=np.array([0.1])) == [0.1]
    assert encoded([0], np.int64, **keys, values_tensor=np.array(["x"], object)) == ["_Unused"]
    assert encoded([0], np.int64, **keys, values_floats=[0.5], default_float=0.25) == [0.25]


def test_values_of_no_elements_and_of_no_axes() -> None:
    table = {"keys_floats": [1.0], "values_int64s": [7]}
    assert encoded(np.zeros((0, 3)), np.float32, **table) == []
    assert encoded(1, np.float32, **table) == 7
    assert encoded(np.zeros((2, 0)), object, keys_strings=["a"], values_int64s=[7]) == [[], []]


@pytest.mark.parametrize("dtype", [np.int64, np.float32, object])
def test_an_empty_table_gives_the_default(dtype: Any) -> None:
    none, default = np.zeros(0, np.int64), np.array([9])
    keys = {"keys_tensor": np.zeros(0, dtype)}
    assert encoded([["1"], ["2"]], dtype, **keys, values_tensor=none, default_tensor=default) == [[9], [9]]
    assert encoded(["1", "2"], dtype, **keys, values_tensor=none.astype(np.float32)) == [-0.0, -0.0]


def one_hot(x: Any, dtype: Any, **attributes: Any) -> Any:
    data = np.array(x, dtype)
    parameter = Parameter(ElementType.from_numpy(data.dtype), PartialShape(data.shape))
    node = ops.create("OneHotEncoder", [parameter], attributes, domain="ai.onnx.ml")
    return ops.evaluate(node, [data])[0].tolist()


def test_one_hot_categories_of_real_numbers_are_whole() -> None:
    assert one_hot([1.5, 2, -0.5, 7], np.float32, cats_int64s=[0, 1, 2]) == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert one_hot([], np.int64, cats_int64s=[0, 1], zeros=0) == []
    with pytest.raises(InputError, match=r"OneHotEncoder .*7 is not one of the categories \(2, 0 to 1\); .* zeros"):
        one_hot([1, 7], np.int64, cats_int64s=[0, 1], zeros=0)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"keys_floats": [1.0], "values_int64s": [1, 2]}, r"2 values.*allowed: 1, one for each key"),
        (
            {"keys_floats": [1.0], "keys_int64s": [1], "values_int64s": [1]},
            "keys_int64s and keys_floats.*allowed: one of",
        ),
        ({"keys_int64s": [1], "values_int64s": [1]}, "of type int64.*allowed: keys of the input's type, f32"),
        (
            {"keys_floats": [1.0], "values_int64s": [1], "default_tensor": np.array([0.5])},
            r"default_tensor is 'float64\[1\]'.*one element of type int64",
        ),
    ],
)
def test_what_is_no_table_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        encoded([1.0], np.float32, **attributes)
