"""`TuningCache`: what was measured on this kind of CPU, kept in a file of CACHE_DIR and shared by processes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from engine.blob.digest import sha256
from engine.files import complete_file
from engine.native import cpu_features, default_isa, kernels
from engine.plugin_api import engine_version

logger = logging.getLogger("engine.cpu")

_FORMAT: Final = 1
_MOST_ENTRIES: Final = 50_000


class TuningCache:
    """Choices by problem, for this CPU model and this build's kernels.

    A file that is damaged, of another CPU or of other kernels is no error: it is replaced. Used by one thread.
    """

    def __init__(self, folder: str) -> None:
        key = tuning_key()
        name = sha256(json.dumps(key).encode()).hexdigest()[:16]
        self.path = Path(folder) / f"cpu-tuning-{name}.json"
        self._key = key
        self._entries: dict[str, str] = self._read()
        self._is_changed = False

    def get(self, problem: str) -> str | None:
        """The choice for a problem, where one is known."""
        return self._entries.get(problem)

    def put(self, problem: str, choice: str) -> None:
        """Remember a choice until `save`."""
        self._entries[problem] = choice
        self._is_changed = True

    def save(self) -> None:
        """Write what is new, whole or not at all; what another process has written meanwhile is kept.

        A folder that cannot be written to is logged: compiling does not fail for it.
        """
        if not self._is_changed:
            return
        entries = dict(list({**self._read(), **self._entries}.items())[-_MOST_ENTRIES:])
        text = json.dumps({"format": _FORMAT, "key": self._key, "choices": entries}, indent=0, sort_keys=True)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with complete_file(self.path) as file:
                file.write(text.encode())
        except OSError as e:
            logger.warning("the tuning cache %s cannot be written: %s", self.path, e)
        self._is_changed = False

    def _read(self) -> dict[str, str]:
        try:
            read = json.loads(self.path.read_text(encoding="utf-8"))
            if read["format"] == _FORMAT and read["key"] == self._key:
                return {str(problem): str(choice) for problem, choice in read["choices"].items()}
            logger.warning("the tuning cache %s is of another CPU or version; it is measured again", self.path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            logger.warning("the tuning cache %s cannot be read (%s); it is measured again", self.path, e)
        return {}


def tuning_key() -> list[str]:
    """What measurements depend on."""
    table = sha256("\n".join(kernels()).encode()).hexdigest()[:16]
    return [cpu_features().model, default_isa(), engine_version(), table]
