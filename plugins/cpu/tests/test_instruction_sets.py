"""Users are told when a build lacks the kernels for their CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_cpu import instruction_sets
from engine_cpu.instruction_sets import why_lower

from engine.native import cpu_features


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "_told", set())


def pretend(monkeypatch: pytest.MonkeyPatch, isa: str, highest: str) -> None:
    copied = replace(cpu_features(), isa=isa, highest_isa=highest)
    monkeypatch.setattr(instruction_sets, "cpu_features", lambda: copied)


def test_a_build_without_the_kernels_of_this_cpu_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "generic", "amx")
    told = "this CPU has amx, and the engine was built without its kernels: the ones for generic are used"
    assert why_lower("generic").startswith(told)
    assert why_lower("generic") == ""


def test_a_limit_that_the_user_set_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "avx2", "amx")
    assert why_lower("generic") == ""


def test_a_complete_build_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "avx2", "avx2")
    assert why_lower("avx2") == ""
