"""Reasons to fail a test although its answers are right: kernels that cannot share a program, local memory of another
size than a plan says, and reports of Oclgrind.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyopencl as cl
import pytest
from engine_opencl.devices import limits
from engine_opencl.devices.device import OpenclDevice
from engine_opencl.execution import context
from engine_opencl.plan import Launch
from engine_opencl.tuning import stopwatch

_ALIGNMENT: Final = 128


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
def local_memory_that_plans_do_not_say(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kernels for which the compiler reserves other sizes, by more than alignment; plans' sizes bound networks."""
    found: list[str] = []

    def check_limits(device: OpenclDevice, launch: Launch, kernel: Any) -> None:
        limits.check_limits(device, launch, kernel)
        taken = kernel.get_work_group_info(cl.kernel_work_group_info.LOCAL_MEM_SIZE, device.handle)
        if not 0 <= taken - launch.local_bytes <= _ALIGNMENT:
            found.append(
                f"{launch.kernel} of {launch.op_type}: {taken} bytes, according to the plan {launch.local_bytes}"
            )

    for module in (context, stopwatch):
        monkeypatch.setattr(module, "check_limits", check_limits)
    yield found
    assert not found


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
