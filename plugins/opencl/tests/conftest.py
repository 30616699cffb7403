"""With Oclgrind as the runtime, what it reports of a kernel fails the test that ran it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def what_oclgrind_reports() -> Iterator[None]:
    """Of races, and of accesses outside buffers and local memory; see CONTRIBUTING.md."""
    log = Path(os.environ.get("OCLGRIND_LOG", ""))
    if not log.name:
        yield
        return
    before = _content(log)
    yield
    reported = _content(log)[len(before) :]
    assert not reported, f"Oclgrind reports:\n{reported[:4000]}"


def _content(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
