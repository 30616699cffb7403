"""A model from outside does not take the machine's memory or time: it runs, or fails with an `EngineError`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent
MEMORY: Final = 1_800_000_000
"""The address space of a process; an interpreter with its libraries takes a fifth of it."""
SECONDS: Final = 40
"""After which a process is killed, and 4 times the deadline of an inference."""
ENDS: Final = {
    "products_of_constants": "success",
    "products_of_integers": "success",
    "einsum_of_many_labels": "success",
    "expands_of_a_constant": "success",
    "sparse_constants": "success",
    "skips_of_ngrams": "success",
    "endless_loop": "DeadlineExceeded",
    "nested_functions": "ModelReadError",
    "nested_functions_with_metadata": "ModelReadError",
}
"""How an attack ends that does not end with `OutOfMemoryError`."""


@pytest.fixture(
    scope="module", params=["CPU", *(pytest.param(d, marks=pytest.mark.slow) for d in ("TEMPLATE", "HETERO:CPU"))]
)
def outcomes(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """The result of each attack on one device, by name."""
    command = [sys.executable, "run_attacks.py", request.param, str(MEMORY), str(SECONDS)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    names, *lines = map(json.loads, done.stdout.splitlines())
    found = {each["name"]: each for each in lines}
    assert found.keys() == set(names)
    return found


def test_every_attack_ends_in_a_result_or_a_typed_error_that_names_the_node(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    for name, outcome in outcomes.items():
        assert outcome["outcome"] == ENDS.get(name, "OutOfMemoryError"), outcome
        if outcome["outcome"] == "OutOfMemoryError":
            assert "`" in outcome["message"], outcome
