"""The messages of the device: the logger, and warnings."""

from __future__ import annotations

import logging
import warnings

from engine.errors import EngineWarning

logger = logging.getLogger("engine.auto")


def log(message: str) -> None:
    """Log a warning that is also issued as an `EngineWarning`.

    Where no logging is set up, the logger would write to stderr what Python's `warnings` write there.
    """
    if logger.hasHandlers():
        logger.warning("%s", message)


def warn(message: str) -> None:
    """Log a warning, and issue it as an `EngineWarning`, which a program's filters may turn into an error."""
    log(message)
    warnings.warn(EngineWarning(message), stacklevel=2)
