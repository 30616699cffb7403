"""`GenaiFolder`: a language model as onnxruntime-genai's builder writes it, a folder with `genai_config.json`."""

from __future__ import annotations

import json
import os.path
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from engine.errors import EngineError, ModelReadError, UnsupportedError
from engine.generation.roles import IDS, LOGITS, MASK, POSITIONS
from engine.generation.sampling import Sampling
from engine.startup import dataclass

CONFIG_FILE: Final = "genai_config.json"
TOKENIZER_FILE: Final = "tokenizer.json"

_MAX_BYTES: Final = 1 << 20
"""The maximum size of a configuration in bytes; the builder's have about two thousand."""
_MAX_NUMBER: Final = (1 << 31) - 1
_STATES: Final = tuple(
    (f"past_{kind}_names", f"present_{kind}_names") for kind in ("key", "value", "conv", "recurrent")
)
_USUAL: Final = (
    ("past_key_values.%d.key", "present.%d.key"),
    ("past_key_values.%d.value", "present.%d.value"),
    ("past.%d.conv", "present.%d.conv"),
    ("past.%d.recurrent", "present.%d.recurrent"),
)
"""Names that `MakeStateful` finds by itself."""
_PARTS: Final = ("encoder", "vision", "speech", "embedding")
_ONLY: Final[Mapping[str, float]] = {
    "num_beams": 1, "num_return_sequences": 1, "no_repeat_ngram_size": 0, "min_length": 0, "diversity_penalty": 0,
}  # fmt: skip
"""Settings that would change the tokens, and the values with which the engine gives the same tokens."""


@dataclass(frozen=True, slots=True)
class GenaiFolder:
    """The description of a language model in `genai_config.json`.

    Attributes:
        folder: where the files are.
        model: the file of the decoder.
        names: the model's names for `input_ids`, `attention_mask`, `position_ids` and `logits`, where they differ.
        states: the names of past and present keys, values and states of a fixed size, with `%d` for the number of a
            layer.
        stop_tokens: a sequence ends with any of these.
        sampling: how tokens are chosen.
        max_length: the most tokens of a sequence with its prompt; None for no limit.
    """

    folder: Path
    model: Path
    names: dict[str, str]
    states: tuple[tuple[str, str], ...]
    stop_tokens: tuple[int, ...]
    sampling: Sampling
    max_length: int | None

    @property
    def tokenizer(self) -> Path:
        """The file of the tokenizer, which need not exist."""
        return self.folder / TOKENIZER_FILE

    def pairs(self, inputs: Collection[str]) -> dict[str, str] | None:
        """The pairs of inputs and outputs for `MakeStateful`; None if it finds them by their usual names."""
        if set(self.states) <= set(_USUAL):
            return None
        found: dict[str, str] = {}
        for past, present in self.states:
            for layer in range(len(inputs)):
                if (name := past.replace("%d", str(layer))) in inputs:
                    found[name] = present.replace("%d", str(layer))
        return found


def read_genai_folder(folder: str | Path) -> GenaiFolder:
    """Read the configuration of a folder that onnxruntime-genai's builder wrote.

    Raises `ModelReadError`, naming file, key, value and what is expected, if it is missing, malformed or has wrong
    values, or if it names a file that is not there; `UnsupportedError` for models of several parts, and for settings
    without which other tokens would be generated, such as `num_beams`.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    config = _Table(path, "", _content(path))
    model, search = config.table("model", is_required=True), config.table("search")
    decoder = model.table("decoder", is_required=True)
    for key in _PARTS:
        if key in model.values:
            raise UnsupportedError(f"{path}: `model.{key}` is a further part of the model; expected a decoder alone")
    if "pipeline" in decoder.values:
        raise UnsupportedError(f"{path}: `model.decoder.pipeline` has several models; expected one file")
    names, states = _names(decoder)
    _require_usual(search)
    lengths = (search.number("max_length", _whole(1)), model.number("context_length", _whole(1)))
    return GenaiFolder(
        folder,
        _file(decoder, folder),
        names,
        states,
        _stop_tokens(model),
        _sampling(search),
        min((each for each in lengths if each is not None), default=None),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """An object of the file, and where it is."""

    path: Path
    where: str
    values: dict[str, Any]

    def table(self, key: str, *, is_required: bool = False) -> _Table:
        """The object of a key; an empty one if it is missing and not required."""
        found = self.values.get(key, None if is_required else {})
        if not isinstance(found, dict):
            raise self.wrong(key, "an object")
        return _Table(self.path, f"{self.where}{key}.", found)

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


def _content(path: Path) -> dict[str, Any]:
    if not os.path.isfile(path):  # False also for names that no file can have, such as too long ones
        raise ModelReadError(
            f"{path.parent} has no {CONFIG_FILE}, so it is not a folder of onnxruntime-genai's builder; give the file "
            "of a model, or the folder that the builder wrote"
        )
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
        raise ModelReadError(f"{path} has {found!r:.80}; expected an object with `model` and `search`")
    return found


def _file(decoder: _Table, folder: Path) -> Path:
    name = decoder.text("filename", "model.onnx")
    plain, windows = PurePosixPath(name), PureWindowsPath(name)
    if plain.is_absolute() or windows.anchor or ".." in (*plain.parts, *windows.parts) or "\0" in name:
        raise decoder.wrong("filename", "a file inside the folder")
    path = folder / name
    if not os.path.isfile(path):
        raise decoder.wrong("filename", f"the name of a file in {folder}")
    return path


def _names(decoder: _Table) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """The unusual names of inputs and of logits, and the names of past and present values."""
    inputs, outputs = decoder.table("inputs"), decoder.table("outputs")
    if "inputs_embeds" in inputs.values and IDS not in inputs.values:
        raise UnsupportedError(
            f"{decoder.path}: the decoder reads `{inputs.where}inputs_embeds`, which another model computes; expected "
            f"`{IDS}`"
        )
    given = {role: table.text(role, role) for table, roles in ((inputs, (IDS, MASK, POSITIONS)), (outputs, (LOGITS,)))
             for role in roles}  # fmt: skip
    states = []
    for (past, present), usual in zip(_STATES, _USUAL, strict=True):
        pair = inputs.text(past, usual[0]), outputs.text(present, usual[1])
        for table, key, name in ((inputs, past, pair[0]), (outputs, present, pair[1])):
            if name.count("%d") != 1:
                raise table.wrong(key, "a name with one %d, for the number of a layer")
        states.append(pair)
    return {role: name for role, name in given.items() if name != role}, tuple(states)


def _stop_tokens(model: _Table) -> tuple[int, ...]:
    key, (is_token, expected) = "eos_token_id", _whole(0)
    found = model.values.get(key, [])
    listed = found if isinstance(found, list) else [found]
    if not all(is_token(each) for each in listed):
        raise model.wrong(key, f"{expected}, or a list of them")
    return tuple(listed)


def _sampling(search: _Table) -> Sampling:
    """The likeliest tokens unless `do_sample` is set."""
    draws = search.number("do_sample", (lambda value: isinstance(value, bool), "true or false"))
    number = (lambda value: isinstance(value, (int, float)) and not isinstance(value, bool), "a number")
    penalty, temperature, top_p = (search.number(key, number) for key in ("repetition_penalty", "temperature", "top_p"))
    top_k, seed = search.number("top_k", _whole(0)), search.number("random_seed", _whole(-1))
    given: dict[str, Any] = {"repetition_penalty": penalty}
    if draws:
        given |= {"temperature": 1.0 if temperature is None else temperature, "top_k": top_k, "top_p": top_p}
        given["seed"] = None if seed == -1 else seed
    try:
        return Sampling(**{key: value for key, value in given.items() if value is not None})
    except EngineError as e:
        raise ModelReadError(f"{search.path}: `search`: {e}") from e


def _require_usual(search: _Table) -> None:
    for key, usual in _ONLY.items():
        if search.values.get(key, usual) != usual:
            raise UnsupportedError(
                f"{search.path}: `search.{key}` is {search.values[key]!r:.80}, which the engine does not have; expected"
                f" {usual}: set it, or give the file of the model instead of the folder"
            )


def _whole(least: int) -> tuple[Callable[[Any], bool], str]:
    """The check of a whole number."""

    def is_whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MAX_NUMBER

    return is_whole, f"a whole number from {least} to {_MAX_NUMBER}"
