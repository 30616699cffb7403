"""A share of the cases of `tests/fuzz` that ask a server, always the same ones: see tests/fuzz/test_fuzz.py."""

from __future__ import annotations

import pytest

from tests.fuzz.test_fuzz import FACTOR, check_cases

CASES = {"requests": 600, "serving": 20}


@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("generator", CASES)
def test_no_case_has_a_finding(generator: str, share: float) -> None:
    check_cases(generator, max(1, round(CASES[generator] * share * FACTOR)))
