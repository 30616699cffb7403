"""The answers of the numeric cases agree with an independent runtime: a wrong answer would fail every right device."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from engine.testing.behaviour.layout_cases import LAYOUTS
from engine.testing.behaviour.numeric import Expected, NumericCase
from engine.testing.behaviour.product_cases import PRODUCTS
from engine.testing.behaviour.value_cases import VALUES
from engine.testing.behaviour.window_cases import WINDOWS

ALL = (*PRODUCTS, *WINDOWS, *LAYOUTS, *VALUES)


def test_names_are_distinct() -> None:
    assert len({case.name for case in ALL}) == len(ALL)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_answers_of_onnxruntime(case: NumericCase) -> None:
    try:
        session = ort.InferenceSession(case.model().SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as e:
        assert "NOT_IMPLEMENTED" in str(e)  # noqa: PT017
        pytest.skip(str(e))
    for actual, expected in zip(session.run(None, case.feeds()), case.expected, strict=True):
        expected.check(actual, case.rtol or 1e-5, str(case))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros(3, np.float64), "is float64, expected float32"),
        (np.zeros(4, np.float32), r"has shape \(4,\)"),
        (np.array([1, 2, 3.001], np.float32), r"1 of 3 elements are wrong; the first at \(2,\)"),
        (np.array([np.nan, 2, np.inf], np.float32), "2 of 3 elements are wrong"),
    ],
)
def test_wrong_results_are_found(wrong: np.ndarray, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        Expected(np.array([1, 2, 3], np.float32)).check(wrong, 1e-5, "y")
