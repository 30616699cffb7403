"""Folders of caches, and a file of tuning choices."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from engine.files.digest import sha256
from engine.files.permissions import exposure, make_private_folder
from engine.files.writing import complete_file
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """A folder whose files this process reads back, and so one that no other user may change.

    Attributes:
        path: it need not exist.
        is_shared: the user allows others to change it (ALLOW_SHARED_CACHE): nothing is checked, and files and folders
            are created with the system's defaults, so that others can use them.
    """

    path: Path
    is_shared: bool = False

    def refusal(self, name: str = "") -> str | None:
        """Why the folder, or a file in it, is not used, as a sentence; None if it is: see `permissions`."""
        if self.is_shared:
            return None
        try:
            why = exposure(self.path / name)
        except (OSError, ValueError) as e:
            why = str(e)
        return why and f"{why}; choose a folder of your own, or set ALLOW_SHARED_CACHE if you trust who can change it"

    def make(self) -> None:
        """Create the folder if it does not exist. Raises `OSError`, `PermissionError` with the `refusal`."""
        if (why := self.refusal()) is not None:
            raise PermissionError(why)
        if self.is_shared:
            self.path.mkdir(parents=True, exist_ok=True)
        else:
            make_private_folder(self.path)
        if (why := self.refusal()) is not None:  # made by another user meanwhile
            raise PermissionError(why)

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """A file in the folder, as by `complete_file`; the folder is created. Raises `OSError`, `ValueError`."""
        self.make()
        with complete_file(self.path / name, is_private=not self.is_shared) as file:
            yield file


def user_cache_folder(name: str) -> Path:
    """The folder `name` in the user's cache folder, which may not exist; for a user without a home, it cannot exist."""
    stated = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(stated) if stated else Path.home() / ".cache") / name
    except RuntimeError:
        return Path(os.devnull) / name


class ChoicesFile:
    """Choices by problem, such as the fastest kernel, in a file that processes share.

    `key` identifies the device and versions for which they are valid; it is in the file, and its digest in the file's
    name. A file that is damaged or has another key is logged and replaced, not an error; one that other users can
    change is neither read nor written, unless `is_shared`. Not thread-safe.
    """

    _FORMAT: Final = 1
    _MAX_ENTRIES: Final = 50_000

    def __init__(
        self, folder: Path, prefix: str, key: Sequence[str], logger: logging.Logger, *, is_shared: bool = False
    ) -> None:
        self._key, self._logger = list(key), logger
        self._folder = CacheFolder(folder, is_shared)
        digest = sha256(json.dumps(self._key).encode()).hexdigest()[:16]
        self.path = folder / f"{prefix}-{digest}.json"
        self._entries = self._read()
        self._is_changed = False

    def get(self, problem: str) -> str | None:
        """The choice that the file has for a problem; None if it has none."""
        return self._entries.get(problem)

    def put(self, problem: str, choice: str) -> None:
        """Record a choice, which `save` writes."""
        self._entries[problem] = choice
        self._is_changed = True

    def save(self) -> None:
        """Write new choices atomically, merged with those that other processes have written meanwhile.

        A failure to write is logged: it must not make compiling fail.
        """
        if not self._is_changed:
            return
        entries = dict(list({**self._read(), **self._entries}.items())[-self._MAX_ENTRIES :])
        text = json.dumps({"format": self._FORMAT, "key": self._key, "choices": entries}, indent=0, sort_keys=True)
        try:
            with self._folder.file(self.path.name) as file:
                file.write(text.encode())
        except (OSError, ValueError) as e:
            self._logger.warning("the tuning cache %s cannot be written: %s", self.path, e)
        self._is_changed = False

    def _read(self) -> dict[str, str]:
        if (why := self._folder.refusal(self.path.name)) is not None:
            self._logger.warning("the tuning cache %s is not used: %s", self.path, why)
            return {}
        try:
            read = json.loads(self.path.read_text(encoding="utf-8"))
            if read["format"] == self._FORMAT and read["key"] == self._key:
                return {str(problem): str(choice) for problem, choice in read["choices"].items()}
            self._logger.warning("the tuning cache %s is for another device or version; tuning again", self.path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            self._logger.warning("the tuning cache %s cannot be read (%s); tuning again", self.path, e)
        return {}
