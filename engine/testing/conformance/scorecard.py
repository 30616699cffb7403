"""Results of checks, and the score that follows from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from typing import Any, Final

from engine.startup import dataclass

AREAS: Final[Mapping[str, str]] = {
    "results": "right results for small models of each kind",
    "operators": "right results for every operator that the device claims",
    "query": "queries tell the truth",
    "requests": "tensors of requests, and wrong ones",
    "asynchronous": "waiting, callbacks, cancelling, deadlines",
    "threads": "use by many threads",
    "shapes": "shapes that change",
    "states": "values that requests keep",
    "properties": "metrics and configuration",
    "profiles": "what PERF_COUNT records",
    "export": "blobs",
    "hetero": "models shared with other devices",
    "remote": "tensors that stay on the device",
    "memory": "nothing is kept for ever",
    "isolation": "nothing else in the process is touched",
}
"""The areas and their subjects, in the order in which to fix them: later areas rest on earlier ones."""

_OPERATOR: Final = re.compile(r"(\w+): (?:refused|reference) on ")
"""How the message of a check begins that was skipped for an operator."""
_NAMES: Final = re.compile(r"`[^`]*`|\d+")


TYPE_ANSWERS: Final = "engine-types"
"""The property by which a check passes its `operator` and `answers` on; see `CheckResult`."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check that was run.

    Attributes:
        name: its name, with its parameters in brackets.
        area: one of `AREAS`.
        requirement: what the device is required to do, in words.
        outcome: "passed", "failed" or "skipped".
        message: why it failed or was skipped.
        seconds: how long it took.
        operator, element_type: what it computes, if it is a check of one operator: see `type_matrix`.
        answers: of a check of queries, the types in which the device claims the operator, or does not.
    """

    name: str
    area: str
    requirement: str
    outcome: str
    message: str = ""
    seconds: float = 0.0
    operator: str = ""
    element_type: str = ""
    answers: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AreaScore:
    """The number of checks of one area that passed, failed and were skipped."""

    passed: int
    failed: int
    skipped: int

    @property
    def score(self) -> float | None:
        """The share of checks that passed, in percent; None if none applied."""
        applied = self.passed + self.failed
        return 100.0 * self.passed / applied if applied else None


@dataclass(frozen=True, slots=True)
class Fault:
    """Checks that failed for one reason.

    Attributes:
        area: their area.
        message: the first line of the failure.
        checks: the names of the checks.
        requirement: what the first of them requires.
    """

    area: str
    message: str
    checks: tuple[str, ...]
    requirement: str


@dataclass(frozen=True, slots=True)
class Scorecard:
    """The result of a run.

    Attributes:
        device: the device string.
        description: the device's full name, with the versions of plugin and engine.
        results: all checks, in the order in which they ran.
        ended_early: why the run was ended before all checks had run; empty if it was not.
    """

    device: str
    description: str
    results: tuple[CheckResult, ...]
    ended_early: str = ""

    @property
    def areas(self) -> dict[str, AreaScore]:
        """The areas that have checks, in the order of `AREAS`."""
        counts = Counter((each.area, each.outcome) for each in self.results)
        present = {each.area for each in self.results}
        ordered = [*(name for name in AREAS if name in present), *sorted(present - AREAS.keys())]
        return {
            name: AreaScore(*(counts[name, outcome] for outcome in ("passed", "failed", "skipped"))) for name in ordered
        }

    @property
    def score(self) -> float:
        """The mean of the areas to which checks applied, in percent; 0 if the run was ended early."""
        scores = [area.score for area in self.areas.values() if area.score is not None]
        return sum(scores) / len(scores) if scores and not self.ended_early else 0.0

    @property
    def is_perfect(self) -> bool:
        """Whether all checks ran, and none failed."""
        return bool(self.results) and not self.ended_early and all(each.outcome != "failed" for each in self.results)

    @property
    def faults(self) -> list[Fault]:
        """The faults in the order in which to fix them: by area, in it the reason of most failures first."""
        groups: dict[tuple[str, str], list[CheckResult]] = {}
        for each in self.results:
            if each.outcome == "failed":
                # Messages that differ only in names have one reason.
                groups.setdefault((each.area, _NAMES.sub("", _reason(each.message))), []).append(each)
        order = {name: place for place, name in enumerate(AREAS)}
        ranked = sorted(groups.items(), key=lambda item: (order.get(item[0][0], len(order)), -len(item[1])))
        return [
            Fault(area, _reason(checks[0].message), tuple(each.name for each in checks), checks[0].requirement)
            for (area, _), checks in ranked
        ]

    @property
    def skipped_operators(self) -> list[tuple[str, int]]:
        """The operators with a form that the device does not run itself, with the number of checks, most first."""
        found = (_OPERATOR.match(message) for message in self._skips)
        return Counter(match[1] for match in found if match).most_common()

    @property
    def other_skips(self) -> list[tuple[str, int]]:
        """The other reasons for which checks were skipped, and how many, most first."""
        return Counter(message for message in self._skips if not _OPERATOR.match(message)).most_common()

    @property
    def skips(self) -> list[tuple[str, int]]:
        """All reasons for which checks were skipped, and how many, most first."""
        return Counter(self._skips).most_common()

    @property
    def _skips(self) -> list[str]:
        return [each.message for each in self.results if each.outcome == "skipped"]

    def to_json(self) -> dict[str, Any]:
        """The scorecard as a JSON value."""
        return {
            "device": self.device,
            "description": self.description,
            "score": round(self.score, 1),
            "ended_early": self.ended_early,
            "areas": {
                name: {"about": AREAS.get(name, ""), "score": area.score, **asdict(area)}
                for name, area in self.areas.items()
            },
            "mend_first": [asdict(fault) for fault in self.faults],
            "skipped_operators": dict(self.skipped_operators),
            "skips": [{"reason": reason, "checks": count} for reason, count in self.skips],
            "checks": [asdict(each) for each in self.results],
        }


def hopeless(results: Iterable[CheckResult], limit: int) -> str:
    """Why to end the run: all checks that applied, at least `limit`, have failed. Empty if it should continue."""
    outcomes = Counter(each.outcome for each in results)
    if outcomes["failed"] >= limit and not outcomes["passed"]:
        return f"the first {outcomes['failed']} checks that apply have failed, and none has passed"
    return ""


def _reason(message: str) -> str:
    return message.strip().partition("\n")[0]
