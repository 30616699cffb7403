"""`TuningCache`: choices measured on this CPU model, in a file in CACHE_DIR shared by processes."""

from __future__ import annotations

import logging
from pathlib import Path

from engine.files import ChoicesFile
from engine.files.digest import sha256
from engine.native import cpu_features, default_isa, kernels
from engine.plugin_api import engine_version

logger = logging.getLogger("engine.cpu")


class TuningCache(ChoicesFile):
    """Choices by problem, for this CPU model and this build's kernels."""

    def __init__(self, folder: str, *, is_shared: bool = False) -> None:
        super().__init__(Path(folder), "cpu-tuning", tuning_key(), logger, is_shared=is_shared)


def tuning_key() -> list[str]:
    """The key of everything that measurements depend on."""
    table = sha256("\n".join(kernels()).encode()).hexdigest()[:16]
    return [cpu_features().model, default_isa(), engine_version(), table]
