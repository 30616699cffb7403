"""A timeline in Chrome's trace-event format, which https://ui.perfetto.dev and chrome://tracing show.

The format: "Trace Event Format" by the Chromium authors. Used are complete events (`X`), counters (`C`) and metadata
(`M`); times are in microseconds, with nanoseconds behind the point.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from engine.drawing.table import printable
from engine.drawing.timeline import Timeline

_PROCESS: Final = 1
_MAX_TEXT: Final = 500


def trace_events(timeline: Timeline) -> str:
    """The timeline as a JSON object; it begins at 0."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in _events(timeline))
    return f'{{"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n'


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    origin = timeline.start_ns

    def microseconds(ns: int) -> float:
        return ns / 1000

    yield _metadata("process_name", 0, "name", printable(timeline.name, _MAX_TEXT))
    for number, track in enumerate(timeline.tracks, 1):
        yield _metadata("thread_name", number, "name", printable(track.name, _MAX_TEXT))
        yield _metadata("thread_sort_index", number, "sort_index", number)
    for number, track in enumerate(timeline.tracks, 1):
        for span in track.spans:
            event = {
                "name": printable(span.name, _MAX_TEXT),
                "ph": "X",
                "pid": _PROCESS,
                "tid": number,
                "ts": microseconds(span.start_ns - origin),
                "dur": microseconds(span.duration_ns),
            }
            if span.kind:
                event["cat"] = printable(span.kind, _MAX_TEXT).replace(",", ";")  # a comma would divide categories
            if span.details:
                event["args"] = {
                    key: printable(value, _MAX_TEXT) if isinstance(value, str) else value
                    for key, value in span.details.items()
                }
            yield event
    for counter in timeline.counters:
        for time, value in counter.values:
            name = printable(counter.name, _MAX_TEXT)
            ts = microseconds(max(0, time - origin))
            yield {"name": name, "ph": "C", "pid": _PROCESS, "tid": 0, "ts": ts, "args": {"bytes": value}}


def _metadata(name: str, thread: int, key: str, value: str | int) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {key: value}}
