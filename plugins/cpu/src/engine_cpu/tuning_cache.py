"""`TuningCache`: what was measured on this kind of CPU, kept in a file of CACHE_DIR and shared by processes."""

from __future__ import annotations

import logging
from pathlib import Path

from engine.digest import sha256
from engine.files import ChoicesFile
from engine.native import cpu_features, default_isa, kernels
from engine.plugin_api import engine_version

logger = logging.getLogger("engine.cpu")


class TuningCache(ChoicesFile):
    """Choices by problem, for this CPU model and this build's kernels."""

    def __init__(self, folder: str) -> None:
        super().__init__(Path(folder), "cpu-tuning", tuning_key(), logger)


def tuning_key() -> list[str]:
    """What measurements depend on."""
    table = sha256("\n".join(kernels()).encode()).hexdigest()[:16]
    return [cpu_features().model, default_isa(), engine_version(), table]
