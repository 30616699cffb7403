"""The layout of a model repository on disk: a folder for each model, and in it one for each version.

models/
    resnet/
        config.toml         (may be missing)
        1/model.onnx
        2/model.blob
    detector/
        model.onnx          (version 1)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.errors import RepositoryError
from engine_serve.model_config import ModelConfig, read_config

FILES: Final = ("model.onnx", "model.blob")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_VERSION: Final = re.compile(r"[1-9]\d{0,8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk.

    Attributes:
        name: as clients know it.
        config: how it is served.
        files: the model or blob of each version that is served, by its number, the lowest first.
    """

    name: str
    config: ModelConfig
    files: Mapping[int, Path]


def list_names(root: Path) -> list[str]:
    """The names of the folders in a repository, including names that are not valid for models, without hidden ones.

    Raises `RepositoryError` if the repository is not a folder that can be read.
    """
    try:
        return sorted(each.name for each in root.iterdir() if _is_folder(each) and not each.name.startswith("."))
    except OSError as e:
        raise RepositoryError(f"the model repository {root} cannot be read: {e}") from e


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder; also True if it cannot be examined, since loading it then reports why."""
    try:
        return path.is_dir()
    except OSError:
        return True


def check_name(name: str) -> None:
    """Raise `RepositoryError` for a name that no model can have, such as one with path separators."""
    if not _NAME.fullmatch(name):
        raise RepositoryError(
            f"{name!r:.80} is not the name of a model: names consist of letters, digits, `_`, `-` and `.`, "
            "have at most 255 of them, and begin with a letter, a digit or `_`"
        )


def read_folder(root: Path, name: str) -> ModelFolder:
    """Read a model's folder in a repository.

    Raises `RepositoryError` for a name that is not valid, a folder that does not exist, cannot be read or has no
    version, a version without a model or with two, and a configuration that is not valid or asks for a version that
    does not exist.
    """
    check_name(name)
    try:
        return _read_folder(root, name)
    except OSError as e:
        raise RepositoryError(f"the folder {root / name} cannot be read: {e}") from e


def _read_folder(root: Path, name: str) -> ModelFolder:
    folder = root / name
    if not folder.is_dir():
        raise RepositoryError(f"the repository {root} has no folder {name!r}")
    config = read_config(folder)
    found = {int(each.name): each for each in folder.iterdir() if each.is_dir() and _VERSION.fullmatch(each.name)}
    if not found:
        found = {1: folder}
    if isinstance(config.versions, tuple):
        missing = [number for number in config.versions if number not in found]
        if missing:
            raise RepositoryError(f"{folder}: `versions` asks for {missing[0]}; the folder has {_listed(found)}")
        chosen = sorted(config.versions)
    else:
        chosen = sorted(found) if config.versions == "all" else [max(found)]
    return ModelFolder(name, config, {number: _model_file(found[number]) for number in chosen})


def _model_file(folder: Path) -> Path:
    present = [folder / name for name in FILES if (folder / name).is_file()]
    if len(present) != 1:
        found = " and ".join(path.name for path in present) or "neither"
        raise RepositoryError(f"{folder} has {found}; expected either {FILES[0]} or {FILES[1]}")
    return present[0]


def _listed(found: Mapping[int, Path]) -> str:
    return ", ".join(map(str, sorted(found)))
