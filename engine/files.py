"""Files that appear when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


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
