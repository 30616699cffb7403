"""A plugin for pytest that prints the time of tests by folder and file, as tables in Markdown:

    python -m pytest -n auto --dist loadfile -p tests.times

The CPU time, including child processes', hardly depends on what else runs; the time on the clock does.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

FILES = 20
Times = dict[str, list[float]]
"""The seconds of the processor and of the clock, and how many tests took them, by file."""
_TIMES: Times = defaultdict(lambda: [0.0, 0.0, 0])
_COLLECTED = "(collecting)"


def _now() -> tuple[float, float]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + _of_living_children(), time.perf_counter()


def _of_living_children() -> float:
    """Some, such as the one that tries OpenCL's kernels, live until the process that runs tests ends."""
    ticks = 0
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a child has just ended
            for child in listed.read_text().split():
                numbers = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, numbers[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _add(name: str, begin: tuple[float, float], tests: int) -> None:
    for place, seconds in enumerate((*(end - start for start, end in zip(begin, _now(), strict=True)), tests)):
        _TIMES[name][place] += seconds


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    begin = _now()
    found = yield
    _add(_COLLECTED, begin, 0)
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    begin = _now()
    done = yield
    _add(item.nodeid.partition("::")[0], begin, 1)
    return done


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of a worker: tell the process that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["times"] = dict(_TIMES)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, times in getattr(node, "workeroutput", {}).get("times", {}).items():
        _TIMES[name] = [a + b for a, b in zip(_TIMES[name], times, strict=True)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("times of tests")
    for line in table(_TIMES):
        terminalreporter.write_line(line)


def table(times: Times) -> Iterable[str]:
    """A row for each folder, and for the files that take most of the processor."""
    folders: Times = defaultdict(lambda: [0.0, 0.0, 0])
    for name, values in times.items():
        parts = name.split("/")
        folder = "/".join(parts[: 2 if len(parts) > 2 else 1]) if name != _COLLECTED else name
        for each in (folder, "all"):
            folders[each] = [a + b for a, b in zip(folders[each], values, strict=True)]
    for title, rows, count in (("folder", folders, len(folders)), ("file", times, FILES)):
        yield f"| {title} | tests | CPU s | wall s |"
        yield "|---|---|---|---|"
        for name, (used, passed, tests) in sorted(rows.items(), key=lambda row: -row[1][0])[:count]:
            yield f"| {name} | {tests:.0f} | {used:.0f} | {passed:.0f} |"
        yield ""
