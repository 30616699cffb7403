"""Writes profiles as a trace, a file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import os
from collections.abc import Sequence

from engine.drawing.trace_events import trace_events
from engine.files import write_file
from engine.runtime.records import InferenceProfile
from engine.runtime.timeline import timeline_of


def write_trace(profiles: Sequence[InferenceProfile], path: str | os.PathLike[str], network: str = "") -> None:
    """Write a trace of inferences in Chrome's trace-event format, for https://ui.perfetto.dev or chrome://tracing.

    A file is replaced as a whole or not at all; a pipe or a device file is written to directly. `network` names the
    process of the trace. Raises `OSError` if it cannot be written.
    """
    write_file(path, trace_events(timeline_of(profiles, network)).encode())
