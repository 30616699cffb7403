"""The findings of `engine doctor`: failures, and behaviour that users may not expect."""

from __future__ import annotations

import enum

from engine.startup import dataclass


class Level(enum.StrEnum):
    """How serious a finding is; only a problem makes the report unhealthy."""

    PROBLEM = "problem"
    """Something does not work."""
    NOTE = "note"
    """Something works differently than a user may expect."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: what it is about (a device, a variable, a folder), what was found, and how to fix it."""

    level: Level
    about: str
    found: str
    remedy: str
