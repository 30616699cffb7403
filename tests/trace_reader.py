"""A strict reader of Chrome's trace-event format, written from its description.

"Trace Event Format", Chromium: an object with `traceEvents`, or a list of events. Each event has a name and a phase:
`X` a complete one (`ts`, `dur` >= 0), `B` and `E` its begin and end, `C` a counter with numbers in `args`, `M`
metadata. Spans of a thread must be nested; `ts` and `dur` are microseconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

_METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


@dataclass
class ReadTrace:
    """The content of a trace, by the names of its threads."""

    process: str = ""
    spans: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))


def read_trace(text: str) -> ReadTrace:
    """Read a trace; fails for anything that the format does not allow, or that a viewer would show wrongly."""
    data = json.loads(text, parse_constant=lambda name: _fail(f"{name} is not JSON"))
    events = data["traceEvents"] if isinstance(data, dict) else data
    assert data.get("displayTimeUnit") in ("ms", "ns")
    found, threads, last = ReadTrace(), {}, defaultdict(float)
    begun: dict[Any, list[str]] = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str), event
        assert isinstance(event["pid"], int), event
        place = event["pid"], event["tid"]
        phase = event["ph"]
        if phase == "M":
            value = event["args"][_METADATA[event["name"]]]
            if event["name"] == "process_name":
                found.process = value
            elif event["name"] == "thread_name":
                assert place not in threads, f"thread {place} has two names"
                threads[place] = value
            continue
        ts = event["ts"]
        assert isinstance(ts, (int, float)), event
        assert ts >= 0, event
        if phase == "C":
            (value,) = event["args"].values()
            assert isinstance(value, (int, float)), event
            values = found.counters[event["name"]]
            assert not values or values[-1][0] < ts, f"the times of counter {event['name']} do not ascend"
            values.append((ts, value))
            continue
        assert ts >= last[place], f"times of thread {place} go back: {event}"
        last[place] = ts
        if phase == "B":
            begun[place].append(event["name"])
        elif phase == "E":
            assert begun[place].pop() == event["name"], event
        else:
            assert phase == "X", f"unexpected phase {phase!r}"
            assert event["dur"] >= 0, event
            assert isinstance(event.get("args", {}), dict), event
            found.spans[threads[place]].append(event)
    assert not any(begun.values()), "a span that begins never ends"
    for name, spans in found.spans.items():
        _check_nesting(name, spans)
    return found


def _check_nesting(name: str, spans: list[dict[str, Any]]) -> None:
    ends: list[int] = []
    for span in spans:
        start, end = round(span["ts"] * 1000), round((span["ts"] + span["dur"]) * 1000)  # whole nanoseconds
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or end <= ends[-1], f"{span['name']} of {name} ends after the span that it lies in"
        ends.append(end)


def _fail(message: str) -> None:
    raise AssertionError(message)
