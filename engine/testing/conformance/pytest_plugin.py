"""The pytest plugin of the conformance kit: `pytest --engine-device=NAME` runs all checks on a device and scores it.

Options also take effect on suites in test files of one's own: `--engine-score` prints the score of each device that has
suites there, `--engine-json` and `--engine-html` write it. Without an option only the limits of suites apply: a check
in which a hook hangs fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from engine.testing.conformance.selection import LIMIT, SELECTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.testing.conformance.hooks import HookWatch
    from engine.testing.conformance.scorecard import CheckResult
    from engine.testing.conformance.scoring import Scoring

SUITE: Final = Path(__file__).with_name("suite.py")
_HOPELESS: Final = 40
_FOLDER: Final = "ENGINE_CONFORMANCE_FOLDER"
"""The environment variable with the folder in which processes that run checks name the running hook."""
_WATCH: Final = "engine-conformance-watch"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options `--engine-*`."""
    group = parser.getgroup("engine", "conformance of a device of engine-sdk")
    group.addoption("--engine-device", metavar="NAME", help="run the conformance checks on this device, and score it")
    group.addoption(
        "--engine-limit",
        metavar="SECONDS",
        type=float,
        default=LIMIT,
        help="how long a check may wait for the device (default: 60); the class attribute `limit` of a suite",
    )
    group.addoption(
        "--engine-full", action="store_true", help="checks of memory run 1,000 compilations and 10,000 inferences"
    )
    group.addoption("--engine-score", action="store_true", help="print the score of each device whose suites run")
    group.addoption(
        "--engine-json",
        metavar="FILE",
        help="write score and results as JSON; of several devices, to files with the device in their names",
    )
    group.addoption("--engine-html", metavar="FILE", help="write score and results as an HTML page, in the same way")
    group.addoption(
        "--engine-against",
        metavar="FILE",
        help="compare with an earlier report of --engine-json; then a run fails only if something became worse",
    )
    group.addoption("--engine-description", help=argparse.SUPPRESS)  # of the device, from a process that created it
    group.addoption("--engine-progress", action="store_true", help="one line of progress instead of one mark a check")


def pytest_configure(config: pytest.Config) -> None:
    """Select the device, and collect the suite if no test files are named."""
    device = config.getoption("--engine-device")
    if device:
        from engine.core.cache import VARIABLE

        os.environ[VARIABLE] = ""  # checks test compilations, also in the processes that they start
        SELECTED.device, SELECTED.limit = device, config.getoption("--engine-limit")
        SELECTED.is_full = config.getoption("--engine-full")
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args[:] = [str(SUITE)]
    if not any(config.getoption(f"--engine-{name}") for name in ("device", "score", "json", "html", "against")):
        return
    # A run in a process that a check started inherits the variable, but only workers belong to the run that set it.
    folder = os.environ.get(_FOLDER) if hasattr(config, "workerinput") else None
    if folder is None:
        folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix="engine-conformance-")
    from engine.testing.conformance.scoring import Scoring

    scoring = Scoring(config, Path(folder))
    config.pluginmanager.register(scoring, "engine-conformance-scoring")
    if device:
        config.pluginmanager.register(_Run(config, scoring, Path(folder)), _WATCH)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the files that name hooks."""
    if not hasattr(config, "workerinput") and (folder := os.environ.pop(_FOLDER, None)):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Limit the time of each check."""
    if not config.pluginmanager.hasplugin("timeout"):
        return
    # A worker that runs nothing but checks is replaced, whatever hangs in it. Elsewhere a signal interrupts the check.
    can_end = config.pluginmanager.hasplugin(_WATCH) and hasattr(config, "workerinput")
    for suite in {item.getparent(pytest.Class) for item in items}:
        limit = getattr(suite.obj, "limit", None) if suite is not None and _is_suite(suite) else None
        if suite is not None and limit is not None and suite.get_closest_marker("timeout") is None:
            # A check itself gives up after the limit; this is for a hook that never returns.
            suite.add_marker(pytest.mark.timeout(1.5 * limit, method="thread" if can_end else "signal"))


def _is_suite(found: pytest.Class) -> bool:
    if "engine.testing" not in sys.modules:  # then there is no suite, and nothing to import
        return False
    from engine.testing.conformance.scoring import is_suite

    return is_suite(found.obj)


class _Run:
    """A run of `--engine-device`: watches hooks in the process that runs checks, and ends where nothing works."""

    def __init__(self, config: pytest.Config, scoring: Scoring, folder: Path) -> None:
        self._config = config
        self._scoring = scoring
        self._folder = folder
        self._is_worker = hasattr(config, "workerinput")
        self._watch: HookWatch | None = None
        self._session: pytest.Session | None = None
        self._count = 0
        self._shown = 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Watch hooks from now on: the plugin is not imported yet."""
        self._session = session
        if self._config.getoption("--dist", "no") != "no" and not self._is_worker:
            return  # the workers run the checks
        from engine.testing.conformance.hooks import HookWatch
        from engine.testing.conformance.last_hook import hook_file

        worker = os.environ["PYTEST_XDIST_WORKER"] if self._is_worker else "main"
        self._watch = HookWatch(hook_file(self._folder, worker))
        self._watch.install()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Begin with the check on which the others rest."""
        items.sort(key=lambda item: not item.name.startswith("test_basic_model_runs"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a hopeless run at once; this is also called where checks run."""
        from engine.testing.conformance.scorecard import hopeless

        results = self._scoring.results.get(self._config.getoption("--engine-device"), [])
        if report.outcome == "failed" and results and not self._scoring.ended:
            if results[-1].name == "test_basic_model_runs":
                self._scoring.ended = "the basic model does not run, on which the other checks rest"
            else:
                self._scoring.ended = hopeless(results, _HOPELESS)
        if self._scoring.ended:
            # With xdist, its session decides.
            for session in (self._session, self._config.pluginmanager.getplugin("dsession")):
                if session is not None:
                    session.shouldstop = self._scoring.ended
        if self._config.getoption("--engine-progress") and not self._is_worker:
            self._show_progress(results)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Learn how many checks there are."""
        self._count = len(ids)

    def _show_progress(self, results: Sequence[CheckResult]) -> None:
        """On a terminal, one line that changes; elsewhere, a line for each tenth."""
        done = len(results)
        if done == self._shown:
            return
        if not self._count and self._session is not None:  # without xdist, this process has collected the checks
            self._count = self._session.testscollected
        self._shown = done
        failed = sum(each.outcome == "failed" for each in results)
        count = max(self._count, done)  # a check may run again
        line = f"{done} of {count} checks, {failed} failed"
        if sys.stderr.isatty():
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
        elif done * 10 // count > (done - 1) * 10 // count:
            print(line, file=sys.stderr, flush=True)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With `--engine-progress`, no mark for each check."""
        if not self._config.getoption("--engine-progress"):
            return None
        if report.when != "call" and report.outcome == "passed":
            return "", "", ""
        return report.outcome, "", ""
