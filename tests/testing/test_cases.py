"""The answers that devices are held to: a wrong one would make every right device fail."""

from __future__ import annotations

from inspect import isfunction
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine.testing.behaviour import cases
from engine.testing.behaviour.basic import FURTHER_OPERATORS, OPERATORS, BasicModel, BasicOperator, find_basic
from engine.testing.behaviour.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_is_valid_and_an_independent_runtime_agrees(case: Case) -> None:
    onnx.checker.check_model(case.model, full_check=True)
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
    for sample in case.samples:
        names = list(sample.outputs)
        assert names == [output.name for output in session.get_outputs()]
        for name, value in zip(names, session.run(names, dict(sample.inputs)), strict=True):
            assert_same(value, sample.outputs[name])


def test_no_case_is_left_out() -> None:
    """A function that makes a case, but does not add it to the list, is asked of no device."""
    functions = {
        name: each for name, each in vars(cases).items() if isfunction(each) and each.__module__ == cases.__name__
    }
    made = [name for name, each in functions.items() if each.__annotations__["return"] == "_Built"]
    assert made
    assert [case.name for case in CASES] == made


@pytest.mark.parametrize(
    "operator", [*OPERATORS, *FURTHER_OPERATORS], ids=lambda each: f"{each.op_type}-{len(each.shape)}"
)
def test_basic_models_agree_and_every_seed_has_answers_of_its_own(operator: BasicOperator) -> None:
    basic = (
        BasicModel(operator, OPERATORS[0]) if operator.shape == OPERATORS[0].shape else BasicModel(operator, operator)
    )
    onnx.checker.check_model(basic.model(), full_check=True)
    session = onnxruntime.InferenceSession(basic.model().SerializeToString(), providers=["CPUExecutionProvider"])
    seen = set()
    for seed in range(16):
        sample = basic.sample(seed)
        for name, value in zip(sample.outputs, session.run(list(sample.outputs), dict(sample.inputs)), strict=True):
            np.testing.assert_allclose(value, sample.outputs[name], rtol=1e-6, atol=1e-6)
            assert value.shape == basic.shape
        seen.add(sample.outputs["total"].tobytes() + sample.outputs["product"].tobytes())
    assert len(seen) == 16


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [
        ({"Add", "Mul", "Relu"}, ("Add", "Mul")),
        ({"Relu", "MatMul"}, ("MatMul", "Relu")),
        ({"Sigmoid"}, ("Sigmoid", "Sigmoid")),
        ({"Conv", "Softmax"}, ("Softmax", "Softmax")),
        ({"Conv", "MaxPool"}, ("Conv", "MaxPool")),
        ({"LSTM"}, None),
    ],
)
def test_the_basic_model_is_made_of_what_a_device_claims(claimed: set[str], expected: tuple[str, str] | None) -> None:
    found = find_basic(lambda model: {node.op_type for node in model.graph.node} <= claimed)
    assert (found and (found.first.op_type, found.second.op_type)) == expected


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, list):
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
    elif expected.dtype == object:
        assert actual.tolist() == expected.tolist()
    else:
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
