"""The tables of measured blocks: the classes of steps that lose, and their blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from comparison.measure import OURS, EngineResult, ModelResult
from comparison.record import Entry, versions_of_peers
from comparison.report import geometric_mean, markdown, ratios_of_rounds

from drawn.block import Block

_OPERATORS = 3
"""The types of operators that a row names."""


class Measured:
    """A block and its times; `entry` is of the rounds' ratios to the faster peer, None without a right result."""

    def __init__(self, block: Block, result: ModelResult) -> None:
        self.block, self.result = block, result
        self.limit_seconds: float | None = None
        ratios = ratios_of_rounds(result)
        self.entry = Entry.of_rounds(ratios, {}) if ratios else None

    @property
    def ratio(self) -> float | None:
        """To the faster peer: above 1, this engine is faster."""
        return self.entry.ratio if self.entry is not None else None

    @property
    def share(self) -> float | None:
        """The machine's limit divided by our time."""
        ours = self.result.engines[OURS].milliseconds
        return self.limit_seconds / (ours / 1e3) if ours and self.limit_seconds else None

    def set_limit(self, gigaflops: float, gigabytes: Callable[[int], float]) -> None:
        """The least time: of the operations at the peak, or of the bytes at the bandwidth of so many."""
        cost = self.block.cost
        operations = cost.operations / (gigaflops * 1e9) if gigaflops else 0.0
        self.limit_seconds = max(operations, cost.bytes / (gigabytes(cost.bytes) * 1e9))

    def line(self) -> str:
        """The ratio and the times."""
        times = "; ".join(f"{name} {each.problem or f'{each.milliseconds:.3f} ms'}"
                          for name, each in self.result.engines.items())  # fmt: skip
        return f"{self.block.index} {_ratio(self.entry)}: {times}"

    def as_json(self) -> dict[str, Any]:
        """What tells of the block, beside the times of its result."""
        found = self.entry
        return {
            "index": self.block.index, "class": self.block.kind, "description": self.block.description,
            "operations": self.block.cost.operations, "bytes": self.block.cost.bytes, "share_of_limit": self.share,
            "ratio": None if found is None else [found.ratio, found.low, found.high],
        }  # fmt: skip


def summary(found: Sequence[Measured]) -> str:
    """The geometric mean, how many are at least level, and the lowest."""
    ratios = sorted(each.ratio for each in found if each.ratio is not None)
    if not ratios:
        return "no block was measured"
    level, most = (sum(ratio >= least for ratio in ratios) / len(ratios) for least in (1.0, 0.8))
    return (
        f"{len(ratios)} blocks: geometric mean {geometric_mean(ratios):.2f}x of the faster peer; {level:.1%} at 1.0x "
        f"or better, {most:.1%} at 0.8x or better; the lowest {ratios[0]:.2f}x"
    )


def entries_of(found: Sequence[Measured], name: str) -> dict[str, Entry | None]:
    """For the record: the geometric mean of all blocks in each round, and of each class's; all have as many rounds.

    An entry is None if a block of it has no ratio: its mean would be of other blocks than the recorded one.
    """
    groups = {f"{name}: all": list(found)}
    for each in found:
        groups.setdefault(f"{name}: {each.block.kind}", []).append(each)
    return {group: _mean_entry(members) for group, members in groups.items()}


def _mean_entry(members: Sequence[Measured]) -> Entry | None:
    rounds = [ratios_of_rounds(each.result) for each in members]
    if not all(rounds):
        return None
    means = [math.exp(statistics.fmean(map(math.log, ratios))) for ratios in zip(*rounds, strict=True)]
    level, lowest = sum((each.ratio or 0) >= 1 for each in members), min(each.ratio or 0 for each in members)
    return Entry.of_rounds(
        means,
        versions_of_peers(members[0].result),
        f"{level} of {len(members)} at 1.0x or better, lowest {lowest:.2f}x",
    )


def class_table(found: Sequence[Measured]) -> str:
    """The classes with a block below 1.0x, the slowest first."""
    classes: dict[str, list[Measured]] = {}
    for each in found:
        if each.ratio is not None:
            classes.setdefault(each.block.kind, []).append(each)
    rows = []
    for kind, members in sorted(classes.items(), key=lambda item: min(each.ratio or 0 for each in item[1])):
        lost = [each for each in members if (each.ratio or 0) < 1]
        if not lost:
            continue
        lowest = min(lost, key=lambda each: each.ratio or 0)
        mean = geometric_mean([each.ratio or 1 for each in members])
        example = f"{lowest.block.index}: {lowest.block.description}"
        share = f"{len(lost)} of {len(members)}"
        rows.append([kind, share, f"{mean:.2f}x", _ratio(lowest.entry), _percent(lowest.share), example])
    return markdown(["class", "below 1.0x", "mean", "lowest", "share of limit", "lowest block"], rows)


def loser_table(found: Sequence[Measured]) -> str:
    """The blocks below 1.0x, the slowest first, with the operators that take our time."""
    rows = []
    for each in sorted((each for each in found if (each.ratio or 1) < 1), key=lambda each: each.ratio or 0):
        kinds = each.result.engines[OURS].kinds
        total = sum(kinds.values()) or 1.0
        largest = sorted(kinds.items(), key=lambda item: -item[1])[:_OPERATORS]
        operators = ", ".join(f"{kind} {time / total:.0%}" for kind, time in largest)
        times = [_milliseconds(engine) for engine in each.result.engines.values()]
        start = [f"{each.block.index}", each.block.kind, _ratio(each.entry)]
        rows.append([*start, *times, _percent(each.share), each.block.description, operators])
    engines = [f"{name} (ms)" for name in found[0].result.engines] if found else []
    header = ["block", "class", "to the faster peer", *engines, "share of limit", "description", "our time by operator"]
    return markdown(header, rows)


def _ratio(entry: Entry | None) -> str:
    return "-" if entry is None else str(entry)


def _milliseconds(result: EngineResult) -> str:
    return "-" if result.milliseconds is None else f"{result.milliseconds:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
