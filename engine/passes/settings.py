"""Settings of passes from environment variables, for debugging."""

from __future__ import annotations

import os

_OFF = frozenset({"", "0", "off", "false", "no"})


def is_on(variable: str, default: bool = False) -> bool:
    """True if the variable is set to anything but an empty string, 0, off, false or no."""
    value = os.environ.get(variable)
    return default if value is None else value.strip().lower() not in _OFF
