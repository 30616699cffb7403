"""The passes that run in this process: recorded ones that change a model, or all but some.

Every transformation is a region with its name, also within a `GraphRewrite` or a nested manager.
`ENGINE_PASSES_RECORD=file` appends the name of each region that changed a model in this process, one per line.
`ENGINE_PASSES_ONLY=file` disables every transformation that the file does not list, and logs this.
`ENGINE_PASSES_WITHOUT=NAME,NAME` disables these passes, and logs this.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import PassError
from engine.startup import dataclass

RECORD = "ENGINE_PASSES_RECORD"
ONLY = "ENGINE_PASSES_ONLY"
WITHOUT = "ENGINE_PASSES_WITHOUT"

_log = logging.getLogger("engine.passes")
_lock = threading.Lock()
_announced: set[PassSelection] = set()


@dataclass(frozen=True, slots=True)
class PassSelection:
    """The passes that run, by name: `only`, or all if it is None, except `without`."""

    only: frozenset[str] | None
    without: frozenset[str]

    def runs(self, name: str, *, is_container: bool = False) -> bool:
        """Whether a pass runs; one that contains others need not be among `only`."""
        return name not in self.without and (self.only is None or is_container or name in self.only)


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


def selection() -> PassSelection | None:
    """The environment's selection; None if all passes may run. Raises `PassError` for an unreadable file."""
    found = _stated()
    if found is None:
        return None
    with _lock:
        is_new = found not in _announced
        _announced.add(found)
    if is_new and found.only is not None:
        listed = ", ".join(sorted(found.only)) or "none"
        _log.warning("%s=%s: only these passes run: %s", ONLY, os.environ.get(ONLY), listed)
    if is_new and found.without:
        _log.warning("%s: these passes do not run: %s", WITHOUT, ", ".join(sorted(found.without)))
    return found


def _stated() -> PassSelection | None:
    path, without = os.environ.get(ONLY), os.environ.get(WITHOUT)
    if not path and not without:
        return None
    only = frozenset(_read(ONLY, path)) if path else None
    return PassSelection(only, frozenset(name for each in (without or "").split(",") if (name := each.strip())))


@contextmanager
def without_passes(names: Collection[str]) -> Iterator[None]:
    """Passes of these names do not run in this process, in addition to those that did not before."""
    before = os.environ.get(WITHOUT)
    if not names:
        yield
        return
    os.environ[WITHOUT] = ",".join([*([before] if before else []), *names])
    try:
        if (stated := _stated()) is not None:
            with _lock:
                _announced.add(stated)  # the caller knows
        yield
    finally:
        if before is None:
            del os.environ[WITHOUT]
        else:
            os.environ[WITHOUT] = before


def _read(variable: str, path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise PassError(f"{variable}={path} cannot be read: {e}") from e
    return [line.strip() for line in text.splitlines() if line.strip()]
