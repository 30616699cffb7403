"""What became better and worse since an earlier report of `engine conformance`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from engine.errors import InputError
from engine.startup import dataclass
from engine.testing.conformance.scorecard import CheckResult, Scorecard

_OUTCOMES: Final = ("passed", "failed", "skipped")
_ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class EarlierReport:
    """A report that was read: of which device, and what its checks found.

    Attributes:
        file: its path, as the user wrote it.
        score: of 100.
        areas: the score of each area; None if no check applied.
        outcomes: "passed", "failed" or "skipped", by area and name of the check.
    """

    file: str
    device: str
    description: str
    score: float
    areas: Mapping[str, float | None]
    outcomes: Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Change:
    """A check with another outcome than before: "passed", "failed", "skipped", or before that "absent".

    `message` is why it fails or does not apply now.
    """

    name: str
    area: str
    before: str
    now: str
    message: str


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences of a run from an earlier report.

    Attributes:
        earlier: the report.
        worse: checks that fail and did not, and checks that passed and do not apply any more.
        better: checks that pass and did not, and checks that failed and do not apply any more: what the device computed
            wrong, it refuses.
        missing: how many checks of the earlier report did not run.
        areas: the scores before and now of the areas whose score has changed; None if no check applied.
        is_incomplete: whether the run was ended early, which counts as worse.
    """

    earlier: EarlierReport
    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    missing: int
    areas: Mapping[str, tuple[float | None, float | None]]
    score: float
    is_incomplete: bool

    @property
    def is_worse(self) -> bool:
        """Whether anything became worse; then the exit code of `engine conformance --against` is 1."""
        return bool(self.worse) or self.is_incomplete

    def to_json(self) -> dict[str, Any]:
        """The changes as a JSON value."""
        return {
            "file": self.earlier.file,
            "device": self.earlier.device,
            "description": self.earlier.description,
            "score": self.earlier.score,
            "is_worse": self.is_worse,
            "worse": [asdict(each) for each in self.worse],
            "better": [asdict(each) for each in self.better],
            "missing": self.missing,
            "areas": {name: {"before": before, "now": now} for name, (before, now) in self.areas.items()},
        }


def read_earlier(path: str | os.PathLike[str]) -> EarlierReport:
    """Read a report that `engine conformance --json` wrote. Raises `InputError` if it is none, or cannot be read."""
    file = os.fspath(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        outcomes = {(str(each["area"]), str(each["name"])): each["outcome"] for each in found["checks"]}
        areas = {str(name): _score(area["score"]) for name, area in found["areas"].items()}
        score = _score(found["score"])
        if score is None or not set(outcomes.values()) <= set(_OUTCOMES):
            raise ValueError("a score or an outcome is missing")
        return EarlierReport(file, str(found["device"]), str(found["description"]), score, areas, outcomes)
    except OSError as e:
        raise InputError(f"{file} cannot be read: {e.strerror or e}") from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InputError(
            f"{file} is not a report of `engine conformance --json FILE` ({type(e).__name__}: {e}); write one first"
        ) from e


def compare(earlier: EarlierReport, card: Scorecard) -> Changes:
    """The changes of a run since an earlier report."""
    worse, better = [], []
    seen: set[tuple[str, str]] = set()
    for each in card.results:
        key = each.area, each.name
        seen.add(key)
        before = earlier.outcomes.get(key, _ABSENT)
        if before == each.outcome:
            continue
        change = Change(each.name, each.area, before, each.outcome, _why(each))
        if each.outcome == "failed" or (before, each.outcome) == ("passed", "skipped"):
            worse.append(change)
        elif before in ("failed", "skipped"):
            better.append(change)
    now = {name: area.score for name, area in card.areas.items()}
    changed = {
        name: (earlier.areas.get(name), score) for name, score in now.items() if _differ(earlier.areas.get(name), score)
    }
    missing = len(earlier.outcomes.keys() - seen)
    return Changes(earlier, tuple(worse), tuple(better), missing, changed, card.score, bool(card.ended_early))


def changes_lines(changes: Changes, most: int, width: int) -> Iterator[str]:
    """The changes as text: at most `most` of each kind, in lines of at most `width` characters."""
    earlier = changes.earlier
    yield f"since {earlier.file}, of {earlier.device} ({earlier.description}):"
    yield f"  score {_shown(earlier.score)}, now {_shown(changes.score)}"
    for name, (before, now) in changes.areas.items():
        yield f"    {name} {_shown(before)}, now {_shown(now)}"
    for title, found in (("worse", changes.worse), ("better", changes.better)):
        yield f"  {title}: {len(found) or 'no'} check{'' if len(found) == 1 else 's'}"
        for change in found[:most]:
            line = f"    {change.area}: {change.name}: {change.before}, now {change.now}"
            yield _cut(f"{line}: {change.message}" if change.message else line, width)
        if len(found) > most:
            yield f"    and {len(found) - most} more, which the reports list"
    if changes.missing:
        yield f"  {changes.missing} of the earlier checks did not run"
    if changes.is_incomplete:
        yield "  this run was ended early, which counts as worse"
    yield ""


def _why(result: CheckResult) -> str:
    return "" if result.outcome == "passed" else result.message.strip().partition("\n")[0]


def _score(value: Any) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 100):
        return value
    raise ValueError(f"a score is {value!r:.40}")


def _differ(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(before - now) > 1e-9


def _shown(score: float | None) -> str:
    return "-" if score is None else f"{int(score * 10 + 1e-6) / 10:g}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."
