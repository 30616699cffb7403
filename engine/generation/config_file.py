"""What files of JSON say of a model: values are checked when they are read."""

from __future__ import annotations

import json
import os.path
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from engine.errors import EngineError, ModelReadError, UnsupportedError
from engine.generation.beam_search import BeamSearch
from engine.generation.sampling import Sampling
from engine.startup import dataclass

_MAX_BYTES: Final = 1 << 20
"""The maximum size of a configuration in bytes; they have some thousand."""
_MAX_NUMBER: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """An object of the file, and where it is."""

    path: Path
    where: str
    values: dict[str, Any]

    def table(self, key: str, *, is_required: bool = False) -> ConfigTable:
        """The object of a key; an empty one if it is missing and not required."""
        found = self.values.get(key, None if is_required else {})
        if not isinstance(found, dict):
            raise self.wrong(key, "an object")
        return ConfigTable(self.path, f"{self.where}{key}.", found)

    def text(self, key: str, default: str) -> str:
        """The value of a key, which must be a non-empty text."""
        found = self.values.get(key, default)
        if not isinstance(found, str) or not found:
            raise self.wrong(key, f'a text, such as "{default}"')
        return found

    def number(self, key: str, check: tuple[Callable[[Any], bool], str]) -> Any:
        """The value of a key that passes a check; None if it is missing."""
        found = self.values.get(key)
        if found is not None and not check[0](found):
            raise self.wrong(key, check[1])
        return found

    def wrong(self, key: str, expected: str) -> ModelReadError:
        """The error for a value."""
        found = f"is {self.values[key]!r:.80}" if key in self.values else "is missing"
        return ModelReadError(f"{self.path}: `{self.where}{key}` {found}; expected {expected}")


def read_config(path: Path, missing: str) -> ConfigTable:
    """The object in a file. Raises `ModelReadError`, which says `missing` if there is no such file."""
    if not os.path.isfile(path):  # False also for names that no file can have, such as too long ones
        raise ModelReadError(f"{path.parent} has no {path.name}, {missing}")
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise ModelReadError(f"{path} has more than {_MAX_BYTES} bytes; expected the configuration of a model")
        found = json.loads(raw)
    except OSError as e:
        raise ModelReadError(f"{path} cannot be read: {e}") from e
    except (ValueError, RecursionError) as e:
        raise ModelReadError(f"{path} is not valid JSON: {e}") from e
    if not isinstance(found, dict):
        raise ModelReadError(f"{path} has {found!r:.80}; expected an object with the settings of a model")
    return ConfigTable(path, "", found)


def file_of(table: ConfigTable, default: str, folder: Path) -> Path:
    """The file that `filename` names, inside the folder. Raises `ModelReadError`."""
    name = table.text("filename", default)
    plain, windows = PurePosixPath(name), PureWindowsPath(name)
    if plain.is_absolute() or windows.anchor or ".." in (*plain.parts, *windows.parts) or "\0" in name:
        raise table.wrong("filename", "a file inside the folder")
    path = folder / name
    if not os.path.isfile(path):
        raise table.wrong("filename", f"the name of a file in {folder}")
    return path


def tokens_of(table: ConfigTable, key: str) -> tuple[int, ...]:
    """The tokens of a key, a number or a list of them. Raises `ModelReadError`."""
    is_token, expected = whole(0)
    found = table.values.get(key)
    listed = [] if found is None else found if isinstance(found, list) else [found]
    if not all(is_token(each) for each in listed):
        raise table.wrong(key, f"{expected}, or a list of them")
    return tuple(listed)


def sampling_of(search: ConfigTable) -> Sampling:
    """The likeliest tokens unless `do_sample` is set. Raises `ModelReadError`."""
    draws = search.number("do_sample", BOOLEAN)
    penalty, temperature, top_p = (search.number(key, REAL) for key in ("repetition_penalty", "temperature", "top_p"))
    top_k, seed = search.number("top_k", whole(0)), search.number("random_seed", whole(-1))
    given: dict[str, Any] = {"repetition_penalty": penalty}
    if draws:
        given |= {"temperature": 1.0 if temperature is None else temperature, "top_k": top_k, "top_p": top_p}
        given["seed"] = None if seed == -1 else seed
    try:
        return Sampling(**{key: value for key, value in given.items() if value is not None})
    except EngineError as e:
        raise ModelReadError(f"{search.path}: `{search.where.rstrip('.')}`: {e}") from e


def beams_of(search: ConfigTable) -> BeamSearch | None:
    """The beam search of the settings; None for one beam.

    Raises `ModelReadError`, and `UnsupportedError` for beams that are drawn.
    """
    beams, penalty = search.number("num_beams", whole(1)), search.number("length_penalty", REAL)
    stopping = search.number(
        "early_stopping", (lambda value: value in (True, False, "never"), 'true, false or "never"')
    )
    if beams in (None, 1):
        return None
    if search.values.get("do_sample"):
        raise UnsupportedError(
            f"{search.path}: `{search.where}do_sample` is set, and `{search.where}num_beams` is {beams}; a beam search "
            "of the engine draws no tokens: change one of them"
        )
    try:
        return BeamSearch(
            beams, 1.0 if penalty is None else penalty, bool(stopping) if stopping != "never" else "never"
        )
    except EngineError as e:
        raise ModelReadError(f"{search.path}: `{search.where.rstrip('.')}`: {e}") from e


def require_usual(search: ConfigTable, values: Mapping[str, float]) -> None:
    """Raise `UnsupportedError` if settings that the engine does not have are not these, which change nothing."""
    for key, usual in values.items():
        found = search.values.get(key)
        if found is not None and found != usual:
            raise UnsupportedError(
                f"{search.path}: `{search.where}{key}` is {found!r:.80}, which the engine does not have; expected"
                f" {usual}: set it, or give the file of the model instead of the folder"
            )


def layered(table: ConfigTable, key: str, usual: str) -> str:
    """A name with `%d` for the number of a layer. Raises `ModelReadError`."""
    name = table.text(key, usual)
    if name.count("%d") != 1:
        raise table.wrong(key, "a name with one %d, for the number of a layer")
    return name


def numbered(names: Collection[tuple[str, str]], inputs: Collection[str]) -> dict[str, str]:
    """The pairs of names for the layers that a model has."""
    pairs = (
        (first.replace("%d", str(i)), second.replace("%d", str(i)))
        for i in range(len(inputs))
        for first, second in names
    )
    return {first: second for first, second in pairs if first in inputs}


def least(*lengths: int | None) -> int | None:
    """The least of those that are known."""
    return min((each for each in lengths if each is not None), default=None)


def whole(least: int) -> tuple[Callable[[Any], bool], str]:
    """The check of a whole number."""

    def is_whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MAX_NUMBER

    return is_whole, f"a whole number from {least} to {_MAX_NUMBER}"


REAL: Final = (lambda value: isinstance(value, (int, float)) and not isinstance(value, bool), "a number")
BOOLEAN: Final = (lambda value: isinstance(value, bool), "true or false")
