"""`Scoring`: the part of the pytest plugin that collects the results of checks, and reports a score for each device."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from engine.errors import EngineError
from engine.testing.conformance import reports
from engine.testing.conformance.against import Changes, compare, read_earlier
from engine.testing.conformance.last_hook import hook_file, running_hook, while_running
from engine.testing.conformance.scorecard import TYPE_ANSWERS, CheckResult, Scorecard

_KEY: Final = "engine"
# How pytest.raises describes that its `match` was not found, and that nothing was raised.
_WRONG_MESSAGE: Final = re.compile(
    r"Regex pattern did not match\.\s+Expected regex: (?P<expected>.*)\n\s+Actual message: (?P<actual>.*)"
)
_NO_ERROR: Final = re.compile(r"DID NOT RAISE (?:any of )?(?P<error>.+)")


def suite_of(item: pytest.Item) -> type | None:
    """The class of a check; None for other tests."""
    cls: type | None = getattr(item, "cls", None)
    return cls if cls is not None and is_suite(cls) else None


def is_suite(cls: type) -> bool:
    """Whether a test class checks a device."""
    return hasattr(cls, "device") and any(base.__module__.startswith("engine.testing.") for base in cls.__mro__)


class Scoring:
    """Collects and reports.

    Attributes:
        results: the checks that have ended, by device.
        ended: why the run is ended before all checks have run; empty if it is not.
    """

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self.results: dict[str, list[CheckResult]] = {}
        self.ended = ""
        self._changes: dict[str, Changes | None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Attach device, area and requirement to the report of a check."""
        report: pytest.TestReport = yield
        if (cls := suite_of(item)) is not None:
            name = getattr(item, "originalname", None) or item.name
            report.user_properties.append((_KEY, _described(cls, name) | _subject(item)))
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Say in which hook the process died; only the id of the check is left."""
        where = while_running(running_hook(hook_file(self._folder, report.node.gateway.id)))
        report.longrepr = f"the process of the checks ended or hung {where}"
        if device := self._config.getoption("--engine-device"):
            from engine.testing.conformance import suite

            class_name, _, name = crashitem.partition("::")[2].partition("::")
            described = _described(getattr(suite, class_name, object), name.partition("[")[0])
            report.user_properties.append((_KEY, {**described, "device": device}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the result of a check, once for each test."""
        properties: dict[str, Any] = dict(report.user_properties)
        found = properties.get(_KEY)
        if found is not None and (report.when == "call" or report.outcome != "passed"):
            self.results.setdefault(found["device"], []).append(
                _result(report, {**found, **properties.get(TYPE_ANSWERS, {})})
            )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """With an earlier report, have the exit code say whether anything became worse since."""
        if self._config.getoption("--engine-against") and session.exitstatus in (0, 1):
            cards = self._cards()
            is_worse = [changes.is_worse for card in cards if (changes := self._changes_of(card, cards)) is not None]
            if is_worse:
                session.exitstatus = int(any(is_worse))

    def pytest_keyboard_interrupt(self) -> None:
        """Say in the report that it is not complete."""
        self.ended = self.ended or "it was interrupted (Ctrl-C)"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the scores, and write the reports."""
        cards = self._cards()
        for card in cards:
            changes = self._changes_of(card, cards)
            if card.is_perfect and len(cards) > 1 and not (changes is not None and changes.is_worse):
                continue
            terminalreporter.section(f"conformance of {card.device}")
            terminalreporter.write_line(reports.as_text(card, changes))
        if len(cards) > 1:
            terminalreporter.section("conformance")
            for card in cards:
                terminalreporter.write_line(reports.score_line(card))
        for card in cards:
            if path := self._path("--engine-json", card, cards):
                document = reports.as_json(card, self._changes_of(card, cards))
                path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            if path := self._path("--engine-html", card, cards):
                path.write_text(reports.as_html(card, self._changes_of(card, cards)), encoding="utf-8")

    def _cards(self) -> list[Scorecard]:
        chosen = self._config.getoption("--engine-device")
        return [self._card(device, chosen) for device in self.results or filter(None, [chosen])]

    def _changes_of(self, card: Scorecard, cards: list[Scorecard]) -> Changes | None:
        """What has changed since the report of `--engine-against`, which `pytest_configure` has read once."""
        path = self._path("--engine-against", card, cards)
        if path is None:
            return None
        if card.device not in self._changes:
            self._changes[card.device] = compare(read_earlier(path), card)
        return self._changes[card.device]

    def _card(self, device: str, chosen: str | None) -> Scorecard:
        told = self._config.getoption("--engine-description") if device == chosen else None
        return Scorecard(device, told or _description(device), tuple(self.results.get(device, ())), self.ended)

    def _path(self, option: str, card: Scorecard, cards: list[Scorecard]) -> Path | None:
        given = self._config.getoption(option)
        if not given:
            return None
        path, name = Path(given), re.sub(r"\W+", "-", card.device)
        return path if len(cards) == 1 else path.with_stem(f"{path.stem}-{name}")


def _described(cls: type, name: str) -> dict[str, str]:
    """The device, the area and the requirement of a check."""
    defining = next((each for each in cls.__mro__ if name in each.__dict__), None)
    function = getattr(defining, name, None)
    doc = inspect.cleandoc(getattr(function, "__doc__", None) or "").partition("\n\n")[0].replace("\n", " ")
    return {
        "device": getattr(cls, "device", ""),
        "area": getattr(defining, "area", getattr(cls, "area", "results")),
        "requirement": doc,
    }


def _subject(item: pytest.Item) -> dict[str, str]:
    """The operator and the element type of a check of a single operator."""
    call = getattr(item, "callspec", None)
    if call is None or not {"case", "name"} & call.params.keys():
        return {}
    from engine.testing.conformance.subjects import subject_of

    operator, element_type = subject_of(call.params)
    return {"operator": operator, "element_type": element_type}


def _description(device: str) -> str:
    # Imported here, since the process that reports a run of `engine conformance` needs no engine.
    from engine.hosting import engine_version
    from engine.testing.conformance.description import describe

    try:
        return describe(device)
    except EngineError:
        return f"engine {engine_version()}"


def _result(report: pytest.TestReport, found: dict[str, Any]) -> CheckResult:
    return CheckResult(
        report.nodeid.rpartition("::")[2],
        found["area"],
        found["requirement"],
        report.outcome,
        _message(report),
        report.duration,
        found.get("operator", ""),
        found.get("element_type", ""),
        found.get("answers", {}),
    )


def _message(report: pytest.TestReport) -> str:
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(report.longrepr) if crash is None else crash.message
    return in_words(message.removeprefix("AssertionError: ").removeprefix("Failed: "))


def in_words(message: str) -> str:
    """The expectation of a check about an error, in one line, instead of pytest's text about its functions."""
    if found := _WRONG_MESSAGE.match(message):
        return f"the message of the error must match {found['expected']}; it is {found['actual']}"
    if found := _NO_ERROR.match(message):
        return f"expected {found['error']}; no error was raised"
    return message
