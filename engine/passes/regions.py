"""Skipping unused passes: record which passes changed a model, and later run only these.

Every transformation is a region with its name, also within a `GraphRewrite` or a nested manager.
`ENGINE_PASSES_RECORD=file` appends the name of each region that changed a model in this process, one per line.
`ENGINE_PASSES_ONLY=file` disables every transformation that the file does not list, and logs this.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from engine.errors import PassError

RECORD = "ENGINE_PASSES_RECORD"
ONLY = "ENGINE_PASSES_ONLY"

_log = logging.getLogger("engine.passes")
_lock = threading.Lock()
_announced: set[tuple[str, frozenset[str]]] = set()


def fired(names: Iterable[str]) -> None:
    """Record the passes that changed a model, if recording is on. Raises `PassError` for an unwritable file."""
    path = os.environ.get(RECORD)
    if not path:
        return
    with _lock:
        known = set(_read(RECORD, path)) if os.path.exists(path) else set()
        new = [name for name in dict.fromkeys(names) if name not in known]
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.writelines(f"{name}\n" for name in new)
        except OSError as e:
            raise PassError(f"{RECORD}={path} cannot be written: {e}") from e


def allowed() -> frozenset[str] | None:
    """The names of the passes that may run; None if all may. Raises `PassError` for an unreadable file."""
    path = os.environ.get(ONLY)
    if not path:
        return None
    names = frozenset(_read(ONLY, path))
    with _lock:
        is_new = (path, names) not in _announced
        _announced.add((path, names))
    if is_new:
        _log.warning("%s=%s: only these passes run: %s", ONLY, path, ", ".join(sorted(names)) or "none")
    return names


def _read(variable: str, path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise PassError(f"{variable}={path} cannot be read: {e}") from e
    return [line.strip() for line in text.splitlines() if line.strip()]
