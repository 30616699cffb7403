"""The error of a case, and the note of its current step, which outlives a crash."""

from __future__ import annotations

import os


class Finding(Exception):
    """A case has found a defect; `kind` groups equal ones in the counts."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


_note: int | None = None


def note_into(descriptor: int) -> None:
    """Write the notes of this process into an open file, which another process reads."""
    global _note
    _note = descriptor


def note(text: str) -> None:
    """State what the case does next, for the report if the process dies or hangs."""
    if _note is not None:
        os.pwrite(_note, text.encode()[:200].ljust(200), 0)
