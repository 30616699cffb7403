"""com.microsoft.Tokenizer: skl2onnx writes it for TfidfVectorizer and CountVectorizer of words."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from engine import Core, ops
from engine.errors import InputError, ModelError, OutOfMemoryError
from engine.ir import Parameter, string

PLAIN: dict[str, Any] = {"mark": 0, "pad_value": "#", "mincharnum": 1}
OPSETS = [helper.make_opsetid("", 16), helper.make_opsetid("com.microsoft", 1)]


def texts(*values: str) -> NDArray[Any]:
    return np.array(values, object)


def model_of(rank: int, attributes: dict[str, Any]) -> ModelProto:
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, [f"d{axis}" for axis in range(rank)])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, None)
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=OPSETS, ir_version=8)


def evaluate(x: NDArray[Any], **attributes: Any) -> NDArray[Any]:
    node = ops.create("Tokenizer", [Parameter(string, x.shape)], attributes, domain="com.microsoft")
    (found,) = ops.evaluate(node, [x])
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize(
    ("x", "attributes"),
    [
        (texts("a b c", "d e", ""), {"separators": [" "]}),
        (texts("a  b", " a b "), {"separators": [" "]}),
        (texts("a b c", "d e", "f", "").reshape(2, 2), {"separators": [" "], "mark": 1}),
        (texts("abc de f gh", "\u65e5\u00e9 x"), {"separators": [" "], "mincharnum": 2}),
        (texts("aXYbXcYd"), {"separators": ["XY", "X"]}),
        (texts("xabcx"), {"separators": ["bc", "ab"]}),
        (texts("xabcx"), {"separators": ["ab", "bc"]}),
        (texts("a1--b"), {"separators": ["1|1--"]}),
        (texts("a.b"), {"separators": ["."]}),
        (texts("aab aab"), {"separators": ["^a", "a"]}),
        (texts("abab"), {"tokenexp": "a|ab"}),
        (texts("ab cd"), {"tokenexp": "[a-z]*"}),
        (texts("ab cd e", "x12 y"), {"tokenexp": "[a-z]+", "mincharnum": 2, "mark": 1}),
        (texts("ab c1", " d"), {"tokenexp": r"\b\w\w+\b"}),
        (texts("\u65e5\u00e9 x"), {"tokenexp": "."}),
        (texts("abc", "\u65e5\u00e9"), {"separators": [""], "mark": 1}),
        (texts("", " "), {"separators": [" "], "mark": 1}),
    ],
)
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.filterwarnings("ignore::engine.errors.EngineWarning")
def test_tokens_are_those_of_onnxruntime(device: str, x: NDArray[Any], attributes: dict[str, Any]) -> None:
    """Also after a round trip through a blob."""
    model = model_of(x.ndim, PLAIN | attributes)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    network = Core().compile_model(model, device)
    stream = io.BytesIO()
    network.export_model(stream)
    for each in (network, Core().import_model(stream.getvalue(), device)):
        found = each({"x": x})[0]
        assert found.shape == wanted.shape
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, "separators is 'neither'; allowed: either separators or tokenexp"),
        ({"separators": [" "], "tokenexp": "a"}, "separators is 'both'"),
        ({"separators": ["", "a"]}, "patterns that are not empty"),
        ({"separators": [""], "mincharnum": 2}, "mincharnum is 2; allowed: 1"),
        ({"separators": [" "], "mincharnum": 0}, "mincharnum is 0; allowed: 1 or more"),
        ({"separators": ["("]}, r"separators is '\('; allowed: the syntax of RE2"),
        ({"tokenexp": r"(a)\1"}, "tokenexp is .*; allowed: the syntax of RE2"),
    ],
)
def test_attributes_that_are_not_valid(attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        evaluate(texts("a"), **(PLAIN | attributes))


def test_separators_of_no_character() -> None:
    """onnxruntime gives no tokens at all for them."""
    with pytest.raises(ModelError, match="match at least one character"):
        evaluate(texts("a"), **PLAIN, separators=["[0-9]*"])
    with pytest.raises(InputError, match=r"the separator .* matches no character at byte 0"):
        evaluate(texts("a"), **PLAIN, separators=[r"\b"])


def test_ranks_and_memory() -> None:
    with pytest.raises(ModelError, match="input 0 has rank 3; allowed: 1 or 2"):
        evaluate(texts("a").reshape(1, 1, 1), **PLAIN, separators=[" "])
    long = texts(" ".join("a" * 2000), *[""] * 2000)
    node = ops.create("Tokenizer", [Parameter(string, [2001])], PLAIN | {"separators": [" "]}, domain="com.microsoft")
    with pytest.raises(OutOfMemoryError):
        ops.evaluate(node, [long], 1 << 20)
