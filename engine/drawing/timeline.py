"""When things ran, as plain data: spans on tracks, and numbers that change over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Something that ran from `start_ns` for `duration_ns`; `kind` gives the colour, `details` are shown with it."""

    name: str
    start_ns: int
    duration_ns: int
    kind: str = ""
    details: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def end_ns(self) -> int:
        """The end of the span, on the clock of `start_ns`."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Track:
    """Spans that each lie in another one, or beside it; in order of their start, an outer one first."""

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that has each value from its time on; times ascend."""

    name: str
    values: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Tracks and counters of one clock, in nanoseconds."""

    name: str
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...] = ()

    @property
    def start_ns(self) -> int:
        """When the first span begins; 0 without any."""
        return min((span.start_ns for track in self.tracks for span in track.spans), default=0)

    @property
    def end_ns(self) -> int:
        """When the last span ends; 0 without any."""
        return max((span.end_ns for track in self.tracks for span in track.spans), default=0)


def tracks_of(name: str, spans: Iterable[Span]) -> list[Track]:
    """Spans on as few tracks as keep them in or beside each other; tracks after the first one are numbered."""
    lanes: list[tuple[list[Span], list[int]]] = []  # its spans, and the ends of those that the next one may lie in
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.duration_ns)):
        lane = next((lane for lane in lanes if _has_room(lane[1], span)), None)
        if lane is None:
            lanes.append(lane := ([], []))
        lane[0].append(span)
        lane[1].append(span.end_ns)
    return [Track(name if i == 0 else f"{name} ({i + 1})", tuple(lane)) for i, (lane, _) in enumerate(lanes)]


def _has_room(ends: list[int], span: Span) -> bool:
    """Whether a span lies in the innermost one that is open at its start; forgets those that have ended."""
    while ends and ends[-1] <= span.start_ns:
        ends.pop()
    return not ends or span.end_ns <= ends[-1]


def counter_of(name: str, uses: Iterable[tuple[int, int, int]]) -> Counter:
    """The sum of amounts that are in use at each time, from uses as (start, end, amount)."""
    changes: dict[int, int] = {}
    for start, end, amount in uses:
        changes[start] = changes.get(start, 0) + amount
        changes[end] = changes.get(end, 0) - amount
    total, values = 0, []
    for time in sorted(changes):
        if changes[time]:
            total += changes[time]
            values.append((time, total))
    return Counter(name, tuple(values))
