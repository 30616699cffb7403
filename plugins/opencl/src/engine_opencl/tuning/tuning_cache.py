"""`TuningCache`: what was measured on a kind of device, kept in a file and shared by processes."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from importlib import resources
from pathlib import Path
from typing import Final

from engine.files import complete_file
from engine.plugin_api import engine_version
from engine_opencl.devices.device import OpenclDevice

_log = logging.getLogger("engine.opencl")
_FORMAT: Final = 1
_MOST_ENTRIES: Final = 50_000


class TuningCache:
    """Choices by site, for one device, driver and version of the kernels.

    A file that is damaged, or of others, is no error: it is logged and replaced. Used by one thread.
    """

    def __init__(self, folder: Path, device: OpenclDevice) -> None:
        self._key = tuning_key(device)
        name = hashlib.sha256(json.dumps(self._key).encode()).hexdigest()[:16]
        self.path = folder / f"tuning-{name}.json"
        self._entries = self._read()
        self._is_changed = False

    def get(self, site: str) -> str | None:
        """The choice for a site, where one is known."""
        return self._entries.get(site)

    def put(self, site: str, choice: str) -> None:
        """Remember a choice until `save`."""
        self._entries[site] = choice
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
            _log.warning("what was measured of OpenCL kernels cannot be kept in %s: %s", self.path, e)
        self._is_changed = False

    def _read(self) -> dict[str, str]:
        try:
            read = json.loads(self.path.read_text(encoding="utf-8"))
            if read["format"] == _FORMAT and read["key"] == self._key:
                return {str(site): str(choice) for site, choice in read["choices"].items()}
            _log.warning("the tuning cache %s is of another device or version; it is measured again", self.path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            _log.warning("the tuning cache %s cannot be read (%s); it is measured again", self.path, e)
        return {}


def tuning_key(device: OpenclDevice) -> list[str]:
    """What measurements depend on."""
    return [device.identity, str(device.facts.compute_units), engine_version(), _kernel_table()]


@functools.cache
def _kernel_table() -> str:
    """A digest of all kernels."""
    digest = hashlib.sha256()
    for file in sorted(resources.files("engine_opencl").joinpath("kernels").iterdir(), key=lambda each: each.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
