"""What fails a test although its answers are right: kernels that cannot share a program, and what Oclgrind reports."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def programs_that_were_taken_apart() -> Iterator[list[str]]:
    """Warnings of them, which a test may remove. Their networks run, but take several times as long to compile."""
    kept, logger = _Kept(), logging.getLogger("engine.opencl")
    kept.addFilter(lambda record: "a program of several kernels" in record.getMessage())
    logger.addHandler(kept)
    yield kept.messages
    logger.removeHandler(kept)
    assert not kept.messages


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
