"""What the device tells: the logger, and warnings."""

from __future__ import annotations

import logging
import warnings

from engine.errors import EngineWarning

logger = logging.getLogger("engine.auto")


def warn(message: str) -> None:
    """Log a warning, and issue it as an `EngineWarning`, which a program's filters may turn into an error."""
    logger.warning("%s", message)
    warnings.warn(EngineWarning(message), stacklevel=2)
