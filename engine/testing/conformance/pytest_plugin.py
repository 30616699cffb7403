"""The pytest plugin of the conformance kit: `pytest --engine-device=NAME` runs all checks on a device and scores it.

Options also take effect on suites in test files of one's own: `--engine-json` and `--engine-html` write reports.
Nothing happens unless one of the options is given.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from engine.testing.conformance.selection import LIMIT, SELECTED

if TYPE_CHECKING:
    from engine.testing.conformance.hooks import HookWatch
    from engine.testing.conformance.scorecard import CheckResult, Scorecard

SUITE: Final = Path(__file__).with_name("suite.py")
_HOPELESS: Final = 40
_FOLDER: Final = "ENGINE_CONFORMANCE_FOLDER"
"""The environment variable with the folder in which processes that run checks name the running hook."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
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
    group.addoption("--engine-json", metavar="FILE", help="write the score and all results as JSON")
    group.addoption("--engine-html", metavar="FILE", help="write the score and all results as a page")
    group.addoption("--engine-progress", action="store_true", help="one line of progress instead of one mark a check")


def pytest_configure(config: pytest.Config) -> None:
    """Select the device, and collect the suite if no test files are named."""
    device = config.getoption("--engine-device")
    reports = [config.getoption(name) for name in ("--engine-json", "--engine-html")]
    if device:
        SELECTED.device, SELECTED.limit = device, config.getoption("--engine-limit")
        SELECTED.is_full = config.getoption("--engine-full")
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args[:] = [str(SUITE)]
    if not device and not any(reports):
        return
    folder = os.environ.get(_FOLDER)
    if folder is None:
        folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix="engine-conformance-")
    config.pluginmanager.register(_Run(config, device or "", Path(folder)), "engine-conformance-run")


class _Run:
    """One run: watches hooks in the process that runs checks, and collects results in the one that reports them."""

    def __init__(self, config: pytest.Config, device: str, folder: Path) -> None:
        self._config = config
        self._device = device
        self._folder = folder
        self._results: list[CheckResult] = []
        self._ended = ""
        self._is_worker = hasattr(config, "workerinput")
        self._watch: HookWatch | None = None
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Watch hooks from now on: the plugin is not imported yet."""
        self._session = session
        from engine.testing.conformance.hooks import HookWatch

        self._watch = HookWatch(self._hook_file(os.environ.get("PYTEST_XDIST_WORKER", "main")))
        self._watch.install()

    def _hook_file(self, worker: str) -> Path:
        return self._folder / f"hook.{worker}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give each check its limit, and begin with the one on which the others rest."""
        has_timeout = self._config.pluginmanager.hasplugin("timeout")
        for item in items:
            if has_timeout:
                # A check itself gives up after the limit; this is for a hook that never returns.
                limit = getattr(getattr(item, "cls", None), "limit", LIMIT)
                item.add_marker(pytest.mark.timeout(1.5 * limit, method="thread"))
        items.sort(key=lambda item: not item.name.startswith("test_basic_model_runs"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Attach area and requirement to a report."""
        report: pytest.TestReport = yield
        report.user_properties.append(("engine", _described(getattr(item, "cls", None), item)))
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Say in which hook the process died."""
        from engine.testing.conformance.hooks import running_hook, while_running

        where = while_running(running_hook(self._hook_file(report.node.gateway.id)))
        report.longrepr = f"the process of the checks ended or hung {where}"
        report.user_properties.append(("engine", _described_by_id(crashitem)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect a result; also where checks run, so that a hopeless run ends at once."""
        from engine.testing.conformance.scorecard import hopeless

        if report.when != "call" and report.outcome == "passed":
            return
        self._results.append(_result(report))
        if self._results[-1].outcome == "failed" and not self._ended:
            name = self._results[-1].name
            if name == "test_basic_model_runs":
                self._ended = "the basic model does not run, on which the other checks rest"
            else:
                self._ended = hopeless(self._results, _HOPELESS)

        if self._ended:
            # With xdist, its session decides.
            for session in (self._session, self._config.pluginmanager.getplugin("dsession")):
                if session is not None:
                    session.shouldstop = self._ended
        if self._config.getoption("--engine-progress") and not self._is_worker and sys.stderr.isatty():
            print(f"\r{len(self._results)} checks", end="", file=sys.stderr, flush=True)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With `--engine-progress`, no mark for each check."""
        if not self._config.getoption("--engine-progress"):
            return None
        if report.when != "call" and report.outcome == "passed":
            return "", "", ""
        return report.outcome, "", ""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the score, and write the reports."""
        from engine.testing.conformance import reports

        card = self._scorecard()
        terminalreporter.section(f"conformance of {card.device}")
        terminalreporter.write_line(reports.as_text(card))
        if path := self._config.getoption("--engine-json"):
            Path(path).write_text(json.dumps(card.to_json(), indent=2) + "\n", encoding="utf-8")
        if path := self._config.getoption("--engine-html"):
            Path(path).write_text(reports.as_html(card), encoding="utf-8")

    def pytest_unconfigure(self) -> None:
        """Remove the files that name hooks."""
        if not self._is_worker:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.environ.pop(_FOLDER, None)

    def _scorecard(self) -> Scorecard:
        from engine.testing.conformance.scorecard import Scorecard

        device = self._device or "a device"
        return Scorecard(device, _description(self._device), tuple(self._results), self._ended)


def _description(device: str) -> str:
    from engine.core import Core
    from engine.errors import EngineError
    from engine.hosting import engine_version

    if not device:
        return f"engine {engine_version()}"
    try:
        core = Core()
        versions = core.get_versions()[device.partition(":")[0].partition(".")[0]]
        return f"{core.get_property(device, 'FULL_DEVICE_NAME')}, plugin {versions.version}, engine {engine_version()}"
    except EngineError:
        return f"engine {engine_version()}"


def _described(cls: type | None, item: Any) -> dict[str, str]:
    """The area and the requirement of a check."""
    name = getattr(item, "originalname", None) or item.name
    return _of_method(cls, name)


def _described_by_id(node_id: str) -> dict[str, str]:
    """The same for a check of `suite.py`, of which only the id is left."""
    from engine.testing.conformance import suite

    _, _, rest = node_id.partition("::")
    class_name, _, name = rest.partition("::")
    return _of_method(getattr(suite, class_name, None), name.partition("[")[0])


def _of_method(cls: type | None, name: str) -> dict[str, str]:
    defining = next((each for each in getattr(cls, "__mro__", ()) if name in each.__dict__), None)
    function = getattr(defining, name, None)
    doc = inspect.cleandoc(getattr(function, "__doc__", None) or "").partition("\n\n")[0].replace("\n", " ")
    return {"area": getattr(defining, "area", "results"), "requirement": doc}


def _result(report: pytest.TestReport) -> CheckResult:
    from engine.testing.conformance.scorecard import CheckResult

    described: Any = [value for key, value in report.user_properties if key == "engine"]
    found: dict[str, str] = described[0] if described else {}
    return CheckResult(
        report.nodeid.rpartition("::")[2],
        found.get("area", "results"),
        found.get("requirement", ""),
        report.outcome,
        _message(report),
        report.duration,
    )


def _message(report: pytest.TestReport) -> str:
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr) if crash is None else _without_prefix(crash.message)


def _without_prefix(message: str) -> str:
    return message.removeprefix("AssertionError: ").removeprefix("Failed: ")
