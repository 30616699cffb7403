"""Files that appear when they are complete, and choices that are kept in one."""

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
    """A file that gets the name `path` when the block ends well, and is removed when it does not.

    One that was there is replaced then. Raises `OSError`, and `ValueError` for a path that no file can have.
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


class ChoicesFile:
    """Choices by problem, such as which kernel is fastest, in a file that processes share.

    They hold for what `key` says: the file's name contains a digest of it. A file that is damaged, or of another key,
    is not an error: it is logged and replaced. Used by one thread.
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
            self._logger.warning("the tuning cache %s is of another device or version; it is measured again", self.path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            self._logger.warning("the tuning cache %s cannot be read (%s); it is measured again", self.path, e)
        return {}
