"""A share of every generator's cases, always the same ones: if one fails, a user's model, blob or program does.

A tenth of them runs by default. `ENGINE_FUZZ_FACTOR` multiplies the numbers of cases; `python -m tests.fuzz` runs them
for as long as one likes.
"""

from __future__ import annotations

import importlib
import os

import pytest

from .supervisor import run_cases
from .worker import DEVICES

FACTOR = float(os.environ.get("ENGINE_FUZZ_FACTOR", "1"))
# About 20 seconds of one core each.
CASES = {
    "graphs": 120,
    "structures": 200,
    "mutants": 2500,
    "blame": 1200,
    "blobs": 1500,
    "seals": 1500,
    "load": 15,
    "interrupts": 100,
}


@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("generator", CASES)
def test_no_case_has_a_finding(generator: str, share: float) -> None:
    check_cases(generator, max(1, round(CASES[generator] * share * FACTOR)))


def check_cases(generator: str, count: int) -> None:
    """Run the first cases of a generator."""
    module = importlib.import_module(f".{generator}", __package__)
    summary = run_cases(generator, range(count), limit=module.LIMIT, devices=DEVICES, is_kept=module.IS_KEPT)
    listed = "\n".join(
        f"seed {each.seed}: {each.outcome}\n{each.detail}\n"
        f"repeat: python -m tests.fuzz {generator} --seed {each.seed} --cases 1"
        for each in summary.findings[:5]
    )
    assert not summary.findings, f"{summary}\n{listed}"
    assert summary.cases == count
