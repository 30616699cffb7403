"""String operators match as ONNX defines: a pattern from a file neither hangs a device nor means something else."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from engine import Core, ops
from engine.errors import Cancelled, OperatorSpecError, UnsupportedError
from engine.ir import Model, Node, Parameter, string
from engine.ops import compile_node, evaluate
from engine.ops.interruption import interruptible

TEXTS = ["", "a", "aB", "9", "٣", "३4", "é", "ß", "snake_case", "a b", "a\tb", "a\nb", "-", "\u00a0", "日本"]


def texts(*values: str) -> Any:
    return np.array(values, object)


def result(op_type: str, x: Any, **attributes: Any) -> list[Any]:
    outputs = evaluate(ops.create(op_type, [Parameter(string, x.shape)], attributes), [x])
    return [value.tolist() for value in outputs]


def test_stop_words_are_removed_in_any_case_and_empty_strings_stay() -> None:
    x = texts("The", "the", "", "cat")
    assert result("StringNormalizer", x, stopwords=["the"]) == [["", "cat"]]
    assert result("StringNormalizer", x, stopwords=["the"], is_case_sensitive=1, case_change_action="UPPER") == [
        ["THE", "", "CAT"]
    ]
    assert result("StringNormalizer", x[None, :2], stopwords=["THE"]) == [[[""]]]
    assert result("StringNormalizer", x[:0]) == [[]]
    assert result("StringNormalizer", texts("\u0130"), case_change_action="LOWER", locale="tr_TR") == [["i\u0307"]]


def test_splits_of_any_shape() -> None:
    assert result("StringSplit", np.array("a b", object)) == [["a", "b"], 2]
    assert result("StringSplit", texts("a,,b", ""), delimiter=",") == [[["a", "", "b"], ["", "", ""]], [3, 1]]
    assert result("StringSplit", texts(" a  b c"), maxsplit=1) == [[["a", "b c"]], [2]]
    assert result("StringSplit", texts()) == [[], []]


def matching(pattern: str | bytes) -> Node:
    return ops.RegexFullMatch(Parameter(string, [None]), pattern=pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "[[:alpha:]]+", "[[:^alpha:]]*", "[[:digit:]]+", "[[:word:]]+", "[[:space:]]", "[^[:space:]]+", r"\d+", r"\D+",
        r"\w+", r"\s", r"\pL+", r"\p{Greek}|\p{Latin}+", r"\pN+", ".*", "(?s).*", "(?i)AB", "(?U)a+", "(?P<x>a)B",
        r"\Qa b\E", "a{1,3}.?", "(a+)+$", r"\x{E9}", "", "|a", r"[\d_]+",
    ],
)  # fmt: skip
def test_patterns_match_as_in_onnxruntime(pattern: str) -> None:
    texts = np.array(TEXTS, dtype=object)
    graph = helper.make_graph(
        [helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [None])],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [None])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": texts})
    (got,) = evaluate(matching(pattern), [texts])
    assert dict(zip(TEXTS, got.tolist(), strict=True)) == dict(zip(TEXTS, expected.tolist(), strict=True))


def test_an_exponential_pattern_takes_linear_time() -> None:
    texts = np.array([["a" * 100_000 + "!", "a" * 100_000]], dtype=object)  # 2**100_000 steps by backtracking
    assert evaluate(matching("(a+)+$"), [texts])[0].tolist() == [[False, True]]


def test_no_texts_give_no_matches() -> None:
    (found,) = evaluate(matching("a"), [np.empty((2, 0), dtype=object)])
    assert (found.shape, found.dtype) == ((2, 0), np.bool_)


def test_texts_that_are_not_utf_8() -> None:
    texts = np.array(["a\udcff", "a"], dtype=object)  # a byte of a string tensor that is not UTF-8
    assert evaluate(matching("a.?"), [texts])[0].tolist() == [False, True]


@pytest.mark.parametrize("pattern", ["(", "[[:nothing:]]", r"(a)\1", "(?=a)", "a{2,1}", "a{5000}", r"\p{Klingon}"])
def test_patterns_that_re2_does_not_accept_are_refused(pattern: str) -> None:
    with pytest.raises(OperatorSpecError, match=r"`matcher`: attribute pattern is .* allowed: the syntax of RE2"):
        ops.RegexFullMatch(Parameter(string, [None]), pattern=pattern, friendly_name="matcher")


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_devices_match(device: str) -> None:
    x = Parameter(string, [None], "x")
    network = Core().compile_model(Model([ops.RegexFullMatch(x, pattern="[[:digit:]]+").output(0)], [x]), device)
    assert network({"x": np.array(["12", "٣"], dtype=object)})[0].tolist() == [True, False]


def test_without_re2_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    node = matching("a")
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(UnsupportedError, match=r"needs the package google-re2.*engine-sdk\[regex\]"):
        compile_node(node)


def test_a_long_match_can_be_cancelled() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(0)
        if len(calls) == 3:
            raise Cancelled("stop")

    texts: Any = np.array(["a"] * 10, dtype=object)
    run = compile_node(matching("a"))
    with interruptible(check), pytest.raises(Cancelled, match="stop"):
        run([texts])
    assert len(calls) == 3
