"""What environment variables switch on."""

from __future__ import annotations

import os

_OFF = frozenset({"", "0", "off", "false", "no"})


def is_on(variable: str, default: bool = False) -> bool:
    """True where the variable is set to anything but an empty text, 0, off, false or no."""
    value = os.environ.get(variable)
    return default if value is None else value.strip().lower() not in _OFF
