"""Errors as JSON: what fails in the other process, raised in this one."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Final

from engine import errors
from engine.errors import DeviceError, EngineError

_MAX_TRACE: Final = 4000


def described(error: BaseException) -> dict[str, Any]:
    """An error, with the traceback of what caused it if that is not an error of the engine."""
    kind = next((each for each in type(error).__mro__ if each.__module__ == errors.__name__), DeviceError)
    message = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    cause = error.__cause__ if isinstance(error, EngineError) else error
    if cause is not None and not isinstance(cause, EngineError):
        text = "".join(traceback.format_exception(cause)).rstrip()
        notes.append(f"in the other process:\n{text[-_MAX_TRACE:]}")
    return {"kind": kind.__name__, "message": message, "notes": notes}


def rebuilt(description: object) -> EngineError:
    """The error that `described` has described; `DeviceError` if it is of no known class."""
    if not isinstance(description, Mapping):
        return DeviceError(f"the other process reported a malformed error: {description!r:.200}")
    kind = getattr(errors, str(description.get("kind")), None)
    if not isinstance(kind, type) or not issubclass(kind, EngineError):
        kind = DeviceError
    error: EngineError = kind(str(description.get("message", "")))
    notes = description.get("notes", ())
    for note in notes if isinstance(notes, list) else ():
        error.add_note(str(note))
    return error
