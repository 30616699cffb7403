"""Leaving out passes that are not used: record which ones fired, and later run only these.

Every pass is a region under its name. `ENGINE_PASSES_RECORD=file` adds to the file, a name a line, each region
that changed a model in this process. `ENGINE_PASSES_ONLY=file` disables every pass that the file does not name.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from engine.errors import PassError

RECORD = "ENGINE_PASSES_RECORD"
ONLY = "ENGINE_PASSES_ONLY"

_log = logging.getLogger("engine.passes")
_lock = threading.Lock()
_fired: dict[str, set[str]] = {}
_only: dict[str, frozenset[str]] = {}


def fired(name: str) -> None:
    """Note that the pass `name` changed a model, where recording is on."""
    path = os.environ.get(RECORD)
    if not path:
        return
    with _lock:
        names = _fired.get(path)
        if names is None:
            names = _fired[path] = set(_read(path)) if Path(path).exists() else set()
        if name in names:
            return
        names.add(name)
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{name}\n")
        except OSError as e:
            raise PassError(f"{RECORD}={path} cannot be written: {e}") from e


def allowed() -> frozenset[str] | None:
    """The names of the passes that may run; None where all may."""
    path = os.environ.get(ONLY)
    if not path:
        return None
    names = _only.get(path)
    if names is None:
        with _lock:
            names = _only[path] = frozenset(_read(path))
        _log.warning("%s=%s: only the passes %s run", ONLY, path, ", ".join(sorted(names)) or "(none)")
    return names


def _read(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise PassError(f"region file {path} cannot be read: {e}") from e
    return [line.strip() for line in text.splitlines() if line.strip()]
