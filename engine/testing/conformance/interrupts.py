"""A plugin for pytest in the process that `run_conformance` starts: when SIGINT interrupts that process.

It is started with SIGINT blocked. While it collects and runs checks, a signal, also one that was pending, ends them.
Afterwards it is ignored, since it would only spoil the reports that are then written.
"""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """The session has started: from now on, its end is reported. Processes that run checks have inherited the mask."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """All checks have run, or one was interrupted."""
    try:
        return (yield)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
