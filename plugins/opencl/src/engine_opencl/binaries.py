"""`BinaryCache`: compiled programs in a folder, which processes share and which tell what is known to be safe."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

from engine.files import complete_file

_log = logging.getLogger("engine.opencl")
_MAGIC: Final = b"engine-opencl-1\n"
_DIGEST: Final = hashlib.sha256().digest_size


def default_folder() -> Path:
    """Where programs are kept unless CACHE_DIR says otherwise: this user's folder for what can be made anew."""
    stated = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(stated) if stated else Path.home() / ".cache") / "engine-opencl"


class BinaryCache:
    """What a device compiled, by key. A file that is there was compiled, and ran, without harm. Thread-safe.

    A damaged file is no error: it is logged and taken as absent. A folder that cannot be written to is logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> bytes | None:
        """The program of a key; None where there is none, or a damaged one."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            _log.warning("the compiled OpenCL program %s cannot be read and is compiled again: %s", path, e)
            return None
        start = len(_MAGIC) + _DIGEST
        body = content[start:]
        if content[:start] != _MAGIC + hashlib.sha256(body).digest():
            _log.warning("the compiled OpenCL program %s is damaged and is compiled again", path)
            return None
        return body

    def put(self, key: str, binary: bytes) -> None:
        """Keep a program, whole or not at all."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with complete_file(self._path(key)) as file:
                file.write(_MAGIC + hashlib.sha256(binary).digest() + binary)
        except OSError as e:
            _log.warning(
                "compiled OpenCL OpenCL programs cannot be kept in %s (%s); each process compiles them", self.folder, e
            )

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.program"
