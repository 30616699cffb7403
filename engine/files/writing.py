"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from engine.files.opening import why_not_opened
from engine.files.permissions import PRIVATE_FILE


@contextmanager
def complete_file(path: str | os.PathLike[str], *, is_private: bool = False) -> Iterator[BinaryIO]:
    """A temporary file that is renamed to `path` if the block succeeds, and deleted if it raises.

    An existing file is replaced; a device, a pipe or a terminal is refused, since it would be replaced: see
    `write_file`. A private file can be read by its owner only. Raises `OSError`, and `ValueError` for an invalid path.
    """
    if _is_stream(path):
        raise OSError(errno.EINVAL, "not a regular file, and would be replaced", os.fsdecode(path))
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
    with open(temporary, "xb", opener=private_opener if is_private else None) as file:
        try:
            yield file
            file.close()
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file as by `complete_file`; a pipe, a terminal or a device is written to, not replaced.

    Raises `OSError` that names `path` and the cause.
    """
    try:
        if _is_stream(path):
            with open(path, "wb") as stream:
                stream.write(data)
        else:
            with complete_file(path) as file:
                file.write(data)
    except OSError as e:
        # The name of the temporary file, or none, would not tell a user what could not be written.
        raise OSError(f"cannot write {os.fsdecode(path)}: {why_not_opened(path, e)}") from e


def _is_stream(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def private_opener(path: str, flags: int) -> int:
    """For `open`: a new file can be read and written by its owner only."""
    return os.open(path, flags, PRIVATE_FILE)
