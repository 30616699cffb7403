"""Choices of earlier compilations, on disk."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from engine.files import ChoicesFile, user_cache_folder
from engine.ir import model_identity
from engine.plugin_api import Config, Model, engine_version
from engine.properties import ALLOW_SHARED_CACHE, CACHE_DIR, ENABLE_MMAP
from engine.startup import dataclass
from engine_auto.log import logger
from engine_auto.properties import MEASURE_SECONDS, REUSE_CHOICE

_WITHOUT_EFFECT: Final = frozenset({CACHE_DIR.name, ALLOW_SHARED_CACHE.name, ENABLE_MMAP.name, MEASURE_SECONDS.name})


@dataclass(frozen=True)
class Choice:
    """The device that was measured to be the fastest, what identifies it, and the milliseconds of each device."""

    device: str
    identity: str
    milliseconds: Mapping[str, float]


class Choices:
    """The file of choices, and the key of one model there: the model with samples of its weights, the configuration,
    and the plugins.

    The file belongs to one machine: version, processor and number of cores are in its name. Devices are not in the key,
    since finding them may take seconds; whether the chosen one is still the same is checked when it is used.
    """

    def __init__(self, config: Config, model: Model, names: Sequence[str]) -> None:
        self._config = config
        self._is_used = bool(config[REUSE_CHOICE.name]) and len(names) > 1
        if self._is_used:
            values = {name: repr(value) for name, value in sorted(config.items()) if name not in _WITHOUT_EFFECT}
            key = [model_identity(model), values, list(names)]
            self._problem = hashlib.sha256(json.dumps(key).encode()).hexdigest()

    def read(self) -> Choice | None:
        """The choice of an earlier compilation; None if there is none, or it must not be used."""
        found = self._file().get(self._problem) if self._is_used else None
        if found is None:
            return None
        try:
            entry = json.loads(found)
            times = {str(name): float(value) for name, value in entry["milliseconds"].items()}
            return Choice(str(entry["device"]), str(entry["identity"]), times)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            logger.warning("the choice %s in %s is damaged, and is made again", self._problem, self._file().path)
            return None

    def write(self, choice: Choice) -> None:
        """Keep a choice; a failure to write is logged."""
        if self._is_used:
            file = self._file()
            file.put(self._problem, json.dumps(asdict(choice)))
            file.save()

    def _file(self) -> ChoicesFile:
        stated = self._config[CACHE_DIR.name]
        folder = Path(stated) if stated else user_cache_folder("engine-auto")
        machine = [engine_version(), platform.machine(), platform.processor(), str(os.cpu_count())]
        is_shared = bool(self._config[ALLOW_SHARED_CACHE.name])
        return ChoicesFile(folder, "auto-choices", machine, logger, is_shared=is_shared)
