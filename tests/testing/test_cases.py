"""The answers that devices are held to: a wrong one would make every right device fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine.testing.behaviour.cases import CASES, Case, basic_model, basic_sample


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_is_valid_and_an_independent_runtime_agrees(case: Case) -> None:
    onnx.checker.check_model(case.model, full_check=True)
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
    for sample in case.samples:
        names = list(sample.outputs)
        assert names == [output.name for output in session.get_outputs()]
        for name, value in zip(names, session.run(names, dict(sample.inputs)), strict=True):
            assert_same(value, sample.outputs[name])


def test_basic_model_agrees_and_every_seed_has_answers_of_its_own() -> None:
    session = onnxruntime.InferenceSession(basic_model().SerializeToString(), providers=["CPUExecutionProvider"])
    seen = set()
    for seed in range(16):
        sample = basic_sample(seed)
        for name, value in zip(sample.outputs, session.run(list(sample.outputs), dict(sample.inputs)), strict=True):
            assert_same(value, sample.outputs[name])
            seen.add(value.tobytes())
    assert len(seen) == 32


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, list):
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
    elif expected.dtype == object:
        assert actual.tolist() == expected.tolist()
    else:
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
