"""Ratios to the faster peer, kept in a file for each CPU model and kind of run, so that a loss is noticed.

A ratio is the median of the ratios of a run's rounds, with the interval between the order statistics that contains the
true one with a probability of 95 %, as `engine benchmark` has it. A ratio is lost or gained if the intervals of both
runs are apart and the ratios differ by 5 %, since clocks and neighbours change from one run to another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from comparison.measure import OURS, OURS_IN_F32, ModelResult
from comparison.report import markdown, ratios_of_rounds
from engine.cli.benchmark.machine import describe_machine
from engine.cli.benchmark.statistics import MIN_BLOCKS, MIN_DIFFERENCE_APART, median_interval

RECORD = Path(__file__).resolve().parent.parent / "record.json"
"""The file of this repository."""
Word: TypeAlias = Literal["new", "level", "gained", "lost", "fails"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A ratio to the faster peer: above 1, this engine is faster.

    Attributes:
        low, high: the interval of the median of the rounds; both are the ratio if there were too few rounds.
        peers: the versions of the peers, by name.
        note: what else is worth keeping of the run.
    """

    ratio: float
    low: float
    high: float
    peers: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of_rounds(cls, ratios: Sequence[float], peers: Mapping[str, str], note: str = "") -> Entry:
        """From the ratio of each round."""
        ratio = statistics.median(ratios)
        low, high = median_interval(ratios) or (ratio, ratio)
        return cls(round(ratio, 3), round(low, 3), round(high, 3), peers, note)

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x" + (f" ({self.low:.2f}..{self.high:.2f})" if self.low != self.high else "")

    def to_json(self) -> dict[str, Any]:
        """As the file has it."""
        found: dict[str, Any] = {"ratio": self.ratio}
        if self.low != self.high:
            found["interval"] = [self.low, self.high]
        return {**found, "peers": dict(self.peers), **({"note": self.note} if self.note else {})}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Entry:
        """What `to_json` wrote."""
        low, high = found.get("interval", (found["ratio"], found["ratio"]))
        return cls(found["ratio"], low, high, found["peers"], found.get("note", ""))


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of a run beside the recorded one. `now` is None if there is no right result, `before` if it is new."""

    name: str
    before: Entry | None
    now: Entry | None

    @property
    def word(self) -> Word:
        """Whether the ratio is lost or gained beyond noise."""
        if self.before is None:
            return "new"
        if self.now is None:
            return "fails"
        if abs(self.now.ratio / self.before.ratio - 1) >= MIN_DIFFERENCE_APART:
            if self.now.high < self.before.low:
                return "lost"
            if self.now.low > self.before.high:
                return "gained"
        return "level"

    def __str__(self) -> str:
        peers = self.before.peers if self.before else {}
        recorded = f"{self.before} with {', '.join(f'{name} {version}' for name, version in peers.items())}"
        if self.now is None:
            return f"{self.name}: no right result of this engine and a peer; recorded {recorded}"
        others = {name: version for name, version in self.now.peers.items() if version != peers.get(name)}
        newer = f"; the run had {', '.join(f'{name} {version}' for name, version in others.items())}" if others else ""
        return f"{self.name}: {self.now}; recorded {recorded}{newer}"


class Record:
    """The ratios of one CPU model and kind of run in a file."""

    def __init__(self, path: Path, machine: str, kind: str) -> None:
        self._path, self._machine, self._kind = path, machine, kind

    def changes(self, found: Mapping[str, Entry | None]) -> list[Change]:
        """Each entry of a run beside the recorded one; without those that neither has."""
        known = self._read().get(self._machine, {}).get(self._kind, {})
        before = {name: Entry.from_json(entry) for name, entry in known.items()}
        pairs = [Change(name, before.get(name), now) for name, now in found.items()]
        return [change for change in pairs if change.before is not None or change.now is not None]

    def update(self, changes: Sequence[Change], *, accept_losses: bool) -> None:
        """Write what is new or gained; with `accept_losses`, everything but failures.

        A ratio that is level keeps its record: the highest of many runs would be chance, the last of many could sink
        step by step.
        """
        words = ("new", "gained", "level", "lost") if accept_losses else ("new", "gained")
        everything = self._read()
        entries = everything.setdefault(self._machine, {}).setdefault(self._kind, {})
        entries |= {each.name: each.now.to_json() for each in changes if each.now is not None and each.word in words}
        self._path.write_text(_as_text(everything))

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        found: dict[str, dict[str, dict[str, Any]]] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return found


def compared_with_record(
    found: Mapping[str, Entry | None], path: Path, kind: str, *, record: bool, accept_losses: bool = False
) -> tuple[str, bool]:
    """Compare a run with its record and update that; return a table with the losses, and whether there are any.

    Args:
        found: the entries of the run; None where a model has no right result.
        record: whether to write what is new or gained.
        accept_losses: whether to write lower ratios, too; losses that are written do not count.
    """
    kept = Record(path, machine_key(), kind)
    changes = kept.changes(found)
    if record:
        kept.update(changes, accept_losses=accept_losses)
    rows = [[each.name, str(each.now or "-"), str(each.before or "-"), _percent(each), each.word] for each in changes]
    text = [markdown(["model", "to the faster peer", "recorded", "change", ""], rows)]
    if all(each.before is None for each in changes):
        text.append(f"\nNothing was recorded of `{kind}` before, on {machine_key()}.")
    is_lowered = record and accept_losses
    lost = [each for each in changes if each.word == "fails" or (each.word == "lost" and not is_lowered)]
    if lost:
        text.append(f"\nLost, beyond noise, on {machine_key()}, {kind}:")
        text += [f"  {each}" for each in lost]
        text.append("Repeat with these alone; `against.py` compares revisions. `--accept-losses` lowers a record.")
    return "\n".join(text), bool(lost)


def entry_of(result: ModelResult) -> Entry | None:
    """The entry of one model; None without a right result of this engine and of a peer."""
    ratios = ratios_of_rounds(result)
    return Entry.of_rounds(ratios, versions_of_peers(result)) if ratios else None


def versions_of_peers(result: ModelResult) -> dict[str, str]:
    """The versions by name, without the hash of a build."""
    peers = {name: each.version for name, each in result.engines.items() if name not in (OURS, OURS_IN_F32)}
    return {name: version.partition("-")[0] for name, version in peers.items() if version}


def kind_of_run(form: str, *, zoo: str = "", threads: int = 2, clock: str = "wall") -> str:
    """The name of a kind of run, whose ratios can be compared: "f32" or "published, static, 1 thread, cpu clock"."""
    usual = [zoo, form]
    usual += [f"{threads} thread{'s' * (threads != 1)}"] if threads != 2 else []
    return ", ".join(filter(None, [*usual, f"{clock} clock" if clock != "wall" else ""]))


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Add --baseline, --record and --accept-losses."""
    parser.add_argument(
        "--baseline", type=Path, nargs="?", const=RECORD, metavar="FILE",
        help="fail if a ratio is below the one recorded for this CPU model (default: benchmarks/record.json)",
    )  # fmt: skip
    parser.add_argument("--record", action="store_true", help="--baseline, and keep ratios that are new or higher")
    parser.add_argument("--accept-losses", action="store_true", help="with --record: also replace higher ratios")


def check_record_options(parser: argparse.ArgumentParser, options: argparse.Namespace, usual: Sequence[str]) -> None:
    """Refuse options that make a run's ratios incomparable; `usual` are those that must have their defaults."""
    if options.accept_losses and not options.record:
        parser.error("--accept-losses: expected --record, too")
    if options.record and options.baseline is None:
        options.baseline = RECORD
    if options.baseline is None:
        return
    for name in usual:
        if getattr(options, name) != parser.get_default(name):
            parser.error(f"--baseline: expected no --{name}; recorded ratios have to be comparable")
    if options.rounds is not None and options.rounds < MIN_BLOCKS:
        parser.error(f"--baseline: expected --rounds of {MIN_BLOCKS} or more; fewer give no interval")
    if limit := os.environ.get("ONEDNN_MAX_CPU_ISA"):
        parser.error(f"--baseline: ONEDNN_MAX_CPU_ISA is {limit}; expected a peer without a limit")


def machine_key() -> str:
    """The CPU model, and its instruction set in use: virtual machines give one name to several."""
    found = describe_machine()
    return f"{found['cpu']}, {found['isa']}"


def _percent(change: Change) -> str:
    if change.before is None or change.now is None:
        return "-"
    return f"{change.now.ratio / change.before.ratio - 1:+.0%}"


def _as_text(everything: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """JSON with a line for each entry, so that a change shows what it changes."""
    machines = []
    for machine, kinds in sorted(everything.items()):
        parts = []
        for kind, entries in sorted(kinds.items()):
            lines = [f"   {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(entries.items())]
            parts.append(f"  {json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n  }")
        machines.append(f" {json.dumps(machine)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(machines) + "\n}\n"
