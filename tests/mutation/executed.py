"""A plugin of pytest that notes which tests execute which lines, and how long each takes: `-p tests.mutation.executed`.

The environment names the files, as patterns, and the file to write. Lines that run while modules are imported belong to
no test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

# The C tracer switches contexts, which `sys.monitoring` does not.
os.environ.setdefault("COVERAGE_CORE", "ctrace")
_measured = coverage.Coverage(data_file=None, include=os.environ["ENGINE_MUTATED_FILES"].split(os.pathsep))
_measured.start()
_seconds: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed or (report.when == "setup" and report.skipped):
        _seconds[report.nodeid] = float("inf")


def pytest_sessionfinish() -> None:
    _measured.stop()
    data = _measured.get_data()
    executed = {
        path: {line: [test for test in tests if test] for line, tests in data.contexts_by_lineno(path).items()}
        for path in data.measured_files()
    }
    noted = {"seconds": _seconds, "executed": executed}
    Path(os.environ["ENGINE_EXECUTED"]).write_text(json.dumps(noted), encoding="utf-8")
