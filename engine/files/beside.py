"""The files beside a model that have data of its tensors."""

from __future__ import annotations

import os
from pathlib import Path


def file_beside(model: Path, location: str) -> Path | None:
    """The real path of a file that a model names by `location`; None if that is outside of the model's folders.

    If the model is a symbolic link, as in a download cache, its data may be beside the link or its target. The file
    need not exist. Raises `OSError`, and `ValueError` for a null byte.
    """
    parts = location.replace("\\", "/").split("/")
    if os.path.isabs(location) or location.startswith("\\") or parts[0].endswith(":") or _leaves(parts):
        return None
    folders = [Path(os.path.realpath(model.parent)), Path(os.path.realpath(model)).parent]
    found = folders[0] / location
    for folder in folders:
        path = folder / location
        # What is before a ".." need not exist.
        if os.path.lexists(path) or os.path.exists(os.path.realpath(path)):
            found = path
            break
    real = Path(os.path.realpath(found))
    return real if any(real.is_relative_to(folder) for folder in folders) else None


def _leaves(parts: list[str]) -> bool:
    """Whether a relative path leaves its folder on the way, without regard to links."""
    depth = 0
    for part in parts:
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False
