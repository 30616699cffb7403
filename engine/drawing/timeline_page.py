"""A timeline as a section of a page: zoom, move, and the details of each span."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final

from engine.drawing.page import script_data
from engine.drawing.svg import palette
from engine.drawing.table import printable
from engine.drawing.timeline import Timeline

_MAX_TEXT: Final = 200
_PLAIN: Final = {"inference": "#cfd8e3", "wait": "#ececec", "stage": "#9ecae9", "transfer": "#f2cf5b"}
SECTION: Final = """\
<section class="timeline-view"><h2>Timeline</h2>
<div class="timeline-tools"><button id="timeline-fit" title="Everything (0)">Fit</button>
<button id="timeline-in" aria-label="Zoom in" title="Zoom in (+)">+</button>
<button id="timeline-out" aria-label="Zoom out" title="Zoom out (-)">&minus;</button>
<span class="faint">Drag to move, turn the wheel to zoom, click for details.</span></div>
<canvas id="timeline-canvas" tabindex="0" aria-label="The timeline. Arrow keys move, + and - zoom, 0 shows everything,
 n and p go to the next and the previous span of the selected one's track."></canvas>
<p id="timeline-about" role="status"></p></section>"""


def timeline_style() -> str:
    """The style sheet of the section that shows a timeline."""
    return _read("timeline_page.css")


def timeline_script(timeline: Timeline) -> str:
    """The script of the section `SECTION`, with its data."""
    kinds = dict.fromkeys(span.kind for track in timeline.tracks for span in track.spans if span.kind not in _PLAIN)
    colours = _PLAIN | palette(kinds)
    origin = timeline.start_ns
    data = {
        "length": timeline.end_ns - origin,
        "tracks": [
            {
                "name": printable(track.name, _MAX_TEXT),
                "spans": [
                    [
                        span.start_ns - origin,
                        span.duration_ns,
                        printable(span.name, _MAX_TEXT),
                        colours.get(span.kind, "#ffffff"),
                        {key: _shown(value) for key, value in span.details.items()},
                    ]
                    for span in track.spans
                ],
            }
            for track in timeline.tracks
        ],
        "counters": [
            {"name": printable(each.name, _MAX_TEXT), "values": [[at - origin, value] for at, value in each.values]}
            for each in timeline.counters
        ],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"const TIMELINE = {script_data(text)};\n{_read('timeline_page.js')}"


def _shown(value: Any) -> Any:
    return printable(value, _MAX_TEXT) if isinstance(value, str) else value


@cache
def _read(name: str) -> str:
    return (files("engine.drawing") / name).read_text(encoding="utf-8")
