"""What a blob needs of a machine: values that the machine has, or versions within a window, such as ">=3.1,<4"."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection
from typing import Final

from engine.errors import BlobError

_VERSION: Final = r"\d{1,9}(?:\.\d{1,9}){0,7}"
_WINDOW: Final = re.compile(rf"(?:>=({_VERSION})(?:,(?=<)|$))?(?:<({_VERSION}))?")
_LEADING: Final = re.compile(_VERSION)


def is_window(value: str) -> bool:
    """Whether a requirement is a window of versions, not a value."""
    return value.startswith((">", "<"))


def check_window(value: str, where: str) -> None:
    """Raise `BlobError` unless a window is ">=A", "<B" or ">=A,<B" of dotted numbers."""
    if _WINDOW.fullmatch(value) is None:
        raise BlobError(
            f"{where}: {reprlib.repr(value)} is not a window of versions; expected '>=3.1', '<4' or '>=3.1,<4'"
        )


def missing_of(required: frozenset[str], here: frozenset[str], *, has_windows: bool) -> list[str]:
    """The required values that `here` does not have, sorted. A window needs a version of `here` that is within it."""
    return sorted(
        value
        for value in required
        if value not in here
        and not (has_windows and is_window(value) and any(_is_within(version, value) for version in here))
    )


def as_set(value: str | Collection[str]) -> frozenset[str]:
    """The values of a requirement, or of a feature of the machine."""
    return frozenset([value]) if isinstance(value, str) else frozenset(value)


def _is_within(version: str, window: str) -> bool:
    """Whether the numbers with which a version begins are within a window; missing ones are zeros."""
    found, match = _LEADING.match(version), _WINDOW.fullmatch(window)
    if found is None or match is None:
        return False
    numbers = _numbers(found[0])
    return (match[1] is None or _numbers(match[1]) <= numbers) and (match[2] is None or numbers < _numbers(match[2]))


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
