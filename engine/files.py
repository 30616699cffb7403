"""Files that are written atomically, the user's cache folder, and a file of tuning choices."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from engine.digest import sha256


@contextmanager
def complete_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A temporary file that is renamed to `path` if the block succeeds, and deleted if it raises.

    An existing file is replaced. Raises `OSError`, and `ValueError` for an invalid path.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
    with open(temporary, "xb") as file:
        try:
            yield file
            file.close()
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def user_cache_folder(name: str) -> Path:
    """The folder `name` in the user's cache folder, which may not exist; for a user without a home, it cannot exist."""
    stated = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(stated) if stated else Path.home() / ".cache") / name
    except RuntimeError:
        return Path(os.devnull) / name


class ChoicesFile:
    """Choices by problem, such as the fastest kernel, in a file that processes share.

    `key` identifies the device and versions for which they are valid; the file's name contains its digest. A file that
    is damaged or has another key is logged and replaced, not an error. Not thread-safe.
    """

    _FORMAT: Final = 1
    _MAX_ENTRIES: Final = 50_000

    def __init__(self, folder: Path, prefix: str, key: Sequence[str], logger: logging.Logger) -> None:
        self._key, self._logger = list(key), logger
        digest = sha256(json.dumps(self._key).encode()).hexdigest()[:16]
        self.path = folder / f"{prefix}-{digest}.json"
        self._entries = self._read()
        self._is_changed = False

    def get(self, problem: str) -> str | None:
        """The choice for a problem; None if there is none."""
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
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with complete_file(self.path) as file:
                file.write(text.encode())
        except OSError as e:
            self._logger.warning("the tuning cache %s cannot be written: %s", self.path, e)
        self._is_changed = False

    def _read(self) -> dict[str, str]:
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
