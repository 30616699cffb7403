"""`ModelConfig`: how a model of a repository is served, read from its file `config.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine.blob import BlobRelease
from engine.errors import BlobSignatureError, RepositoryError

CONFIG_FILE: Final = "config.toml"
PROMPT_LOOKUP: Final = "prompt-lookup"
_EXCLUSIVE: Final = (
    ("sequences", "generation"),
    ("sequences", "batching"),
    ("encoder", "generation"),
    ("encoder", "sequences"),
    ("encoder", "batching"),
)


@dataclass(frozen=True, slots=True)
class Batching:
    """Requests are collected into batches: by the device BATCH, around the model's own.

    Attributes:
        size: how many requests make a full batch.
        delay_ms: how long the first request of a batch waits for others, in milliseconds.
    """

    size: int = 8
    delay_ms: float = 2.0


@dataclass(frozen=True, slots=True)
class Generation:
    """A language model whose tokens are streamed.

    Attributes:
        slots: how many sequences are computed together.
        max_tokens: the most tokens of an answer; requests may ask for fewer.
        stop_tokens: tokens that end a sequence.
        max_length: the most tokens of a sequence with its prompt; None for no bound.
        prefix_cache_mib: how many MiB of keys and values of earlier sequences are kept for prompts that begin with the
            same tokens; 0 for none.
        adapters: folders of low-rank adapters by their names, relative to the folder of the model's file. Clients ask
            for one as `MODEL:NAME`.
        adapter_rank: the greatest sum of the ranks of adapters that are computed together.
        tool_parser: how it writes calls of tools that it chooses itself: "hermes", as Hermes and Qwen do; None if it
            calls none, or in another form.
        draft: what proposes tokens, of which several are computed in one run: "prompt-lookup", the tokens that followed
            earlier; or the file of a smaller language model with the same tokens, relative to the folder of the model's
            file; None for nothing.
    """

    slots: int = 8
    max_tokens: int = 256
    stop_tokens: tuple[int, ...] = ()
    max_length: int | None = None
    prefix_cache_mib: float = 0.0
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_rank: int = 64
    tool_parser: str | None = None
    draft: str | None = None

    @property
    def prefix_cache_bytes(self) -> int:
        """The limit `prefix_cache_mib` in bytes."""
        return int(self.prefix_cache_mib * (1 << 20))


@dataclass(frozen=True, slots=True)
class Encoder:
    """A model that turns texts into vectors, or pairs of texts into scores, for OpenAI's routes.

    Attributes:
        pooling: what is made of the states of the tokens: "cls" the first one, "last" the last one, "mean" their mean;
            "score" if the model itself gives a score.
        normalize: whether vectors have length 1, and scores are from 0 to 1 (sigmoid).
        max_length: the most tokens of a text; None for as many as the model's inputs take.
        output: the name of the output; None for the first that fits.
    """

    pooling: str = "mean"
    normalize: bool = True
    max_length: int | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Bounds on the sequences of a model with variables that generates no tokens.

    Attributes:
        size: how many sequences there may be; further ones are refused.
        idle_ms: a sequence without a request for so long ends, in milliseconds.
        state_mib: how many MiB the variables of all sequences may have together.
        requires_start: whether the first request of a sequence must say so; otherwise, a new id begins one.
    """

    size: int = 64
    idle_ms: float = 60_000.0
    state_mib: float = 1024.0
    requires_start: bool = False

    @property
    def state_bytes(self) -> int:
        """The limit `state_mib` in bytes."""
        return int(self.state_mib * (1 << 20))


@dataclass(frozen=True, slots=True)
class Warmup:
    """What a model runs before it is ready.

    Attributes:
        shapes: of each inference, the shapes of inputs by name; those of other inputs are the model's. Empty: one
            inference with the model's shapes.
        prompt_tokens: the lengths of prompts that a language model prepares. Empty: one that it can take.
    """

    shapes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    prompt_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How a model is served.

    Attributes:
        device: such as CPU; None for AUTO, or for the device that a blob was compiled for.
        properties: configuration of the device.
        versions: "latest", "all", or the numbers of the versions that are served.
        max_rows: the most rows, the first dimension of inputs, of a request; None for no limit.
        queue_size: how many requests may wait; further ones are refused.
        queue_mib: how many MiB the inputs of requests that wait may have together; None for no limit.
        timeout_ms: the deadline of requests that state none, in milliseconds; None for none.
        requests: how many inferences run at once, at most what the device prefers; 0 for that.
        batching: None if each request is an inference.
        generation: None if the model is not a language model whose tokens are streamed.
        encoder: None if the model is not for embeddings or ranking.
        sequences: None for the default bounds, if the model has variables.
        warmup: None if a model runs nothing before it is ready.
        release: the name and the minimum version that a blob must state, signed by a trusted key; None: no requirement.
    """

    device: str | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    versions: str | tuple[int, ...] = "latest"
    max_rows: int | None = None
    queue_size: int = 64
    queue_mib: float | None = None
    timeout_ms: float | None = None
    requests: int = 0
    batching: Batching | None = None
    generation: Generation | None = None
    encoder: Encoder | None = None
    sequences: SequenceLimits | None = None
    warmup: Warmup | None = None
    release: BlobRelease | None = None


def read_config(folder: Path) -> ModelConfig:
    """The configuration in a model's folder; the default one without a file.

    Raises `RepositoryError`, naming the file and the key, if it is malformed or has an unknown key or a wrong value.
    """
    path = folder / CONFIG_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ModelConfig()
    except (OSError, UnicodeDecodeError) as e:
        raise RepositoryError(f"{path} cannot be read: {e}") from e
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise RepositoryError(f"{path} is not valid TOML: {e}") from e
    config: ModelConfig = _read(table, path, "", _CONFIG, ModelConfig)
    if config.generation is not None and config.queue_mib is not None:
        raise RepositoryError(
            f"{path}: `queue_mib` is for models that generate no tokens; with [generation], leave it out: "
            "`queue_size` and `generation.max_length` bound the prompts that wait"
        )
    key = "prompt_tokens" if config.generation is None else "shapes"
    if key in table.get("warmup", {}):
        kind = (
            "language models, which have [generation]" if config.generation is None else "models without [generation]"
        )
        raise RepositoryError(f"{path}: `warmup.{key}` is for {kind}; leave it out")
    for one, other in _EXCLUSIVE:
        if getattr(config, one) is not None and getattr(config, other) is not None:
            raise RepositoryError(f"{path}: `{one}` and `{other}` exclude each other; leave one out")
    return config


Check = Callable[[Any, Path, str], Any]
Keys = Mapping[str, tuple[str, Check]]


def _read(table: object, path: Path, where: str, keys: Keys, made: Callable[..., Any]) -> Any:
    """An object of the checked values of a table; `keys` has the attribute and the check of each key."""
    if not isinstance(table, dict):
        raise RepositoryError(f"{path}: `{where.rstrip('.')}` is {table!r:.80}; expected a table of keys")
    values = {}
    for key, value in table.items():
        if key not in keys:
            raise RepositoryError(f"{path}: unknown key `{where}{key}`; expected one of {', '.join(keys)}")
        attribute, check = keys[key]
        values[attribute] = check(value, path, where + key)
    return made(**values)


def _wrong(value: object, path: Path, key: str, expected: str) -> RepositoryError:
    return RepositoryError(f"{path}: `{key}` is {value!r:.80}; expected {expected}")


def _text(value: Any, path: Path, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(value, path, key, 'a text, such as "CPU"')
    return value


def _table(value: Any, path: Path, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, path, key, "a table of properties")
    return value


def _count(least: int, most: int = 1 << 31) -> Check:
    def check(value: Any, path: Path, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(value, path, key, f"a whole number from {least} to {most}")
        return value

    return check


def _milliseconds(value: Any, path: Path, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3.6e6:
        raise _wrong(value, path, key, "milliseconds, from 0 to 3600000")
    return float(value)


def _mebibytes(value: Any, path: Path, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1 << 30:
        raise _wrong(value, path, key, f"MiB, from 0 to {1 << 30}")
    return float(value)


def _truth(value: Any, path: Path, key: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, path, key, "true or false")
    return value


def _folders(value: Any, path: Path, key: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) and each for each in value.values()):
        raise _wrong(value, path, key, 'a table of folders by names, such as fox = "adapters/fox"')
    return value


def _draft(value: Any, path: Path, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(value, path, key, f'"{PROMPT_LOOKUP}", or the file of a model, such as "draft/model.onnx"')
    return value


def _one_of(*names: str) -> Check:
    def check(value: Any, path: Path, key: str) -> str:
        if value not in names:
            raise _wrong(value, path, key, f"one of {', '.join(names)}")
        return str(value)

    return check


def _release(value: Any, path: Path, key: str) -> BlobRelease:
    try:
        return BlobRelease.parse(value)
    except BlobSignatureError as e:
        raise RepositoryError(f"{path}: `{key}`: {e}") from e


def _versions(value: Any, path: Path, key: str) -> str | tuple[int, ...]:
    if value in ("latest", "all"):
        return str(value)
    if isinstance(value, list) and value and all(type(each) is int and each > 0 for each in value):
        return tuple(value)
    raise _wrong(value, path, key, '"latest", "all", or a list of version numbers, such as [1, 3]')


def _tokens(value: Any, path: Path, key: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise _wrong(value, path, key, "a list of numbers of tokens")
    return tuple(value)


def _lengths(value: Any, path: Path, key: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(each) is int and 0 < each < 1 << 31 for each in value):
        raise _wrong(value, path, key, "a list of one number of tokens or more, such as [128]")
    return tuple(value)


def _shapes(value: Any, path: Path, key: str) -> tuple[dict[str, tuple[int, ...]], ...]:
    expected = "a list of one table of shapes or more, such as [{ x = [1, 16] }, { x = [8, 16] }]"
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise _wrong(value, path, key, expected)
    for name, shape in (item for each in value for item in each.items()):
        if not isinstance(shape, list) or not all(type(each) is int and 0 <= each < 1 << 31 for each in shape):
            raise _wrong(shape, path, f"{key}.{name}", "a list of lengths, such as [1, 16]")
    return tuple({name: tuple(shape) for name, shape in each.items()} for each in value)


_BATCHING: Final[Keys] = {"size": ("size", _count(1, 65536)), "delay_ms": ("delay_ms", _milliseconds)}
_GENERATION: Final[Keys] = {
    "slots": ("slots", _count(1, 4096)),
    "max_tokens": ("max_tokens", _count(1)),
    "stop_tokens": ("stop_tokens", _tokens),
    "max_length": ("max_length", _count(1)),
    "prefix_cache_mib": ("prefix_cache_mib", _mebibytes),
    "adapters": ("adapters", _folders),
    "adapter_rank": ("adapter_rank", _count(1, 4096)),
    "tool_parser": ("tool_parser", _one_of("hermes")),
    "draft": ("draft", _draft),
}
_ENCODER: Final[Keys] = {
    "pooling": ("pooling", _one_of("cls", "last", "mean", "score")),
    "normalize": ("normalize", _truth),
    "max_length": ("max_length", _count(1)),
    "output": ("output", _text),
}
_SEQUENCES: Final[Keys] = {
    "size": ("size", _count(1, 65536)),
    "idle_ms": ("idle_ms", _milliseconds),
    "state_mib": ("state_mib", _mebibytes),
    "requires_start": ("requires_start", _truth),
}
_WARMUP: Final[Keys] = {"shapes": ("shapes", _shapes), "prompt_tokens": ("prompt_tokens", _lengths)}
_CONFIG: Final[Keys] = {
    "device": ("device", _text),
    "properties": ("properties", _table),
    "versions": ("versions", _versions),
    "max_rows": ("max_rows", _count(1)),
    "queue_size": ("queue_size", _count(0)),
    "queue_mib": ("queue_mib", _mebibytes),
    "timeout_ms": ("timeout_ms", _milliseconds),
    "requests": ("requests", _count(0, 4096)),
    "release": ("release", _release),
    "batching": ("batching", lambda value, path, key: _read(value, path, f"{key}.", _BATCHING, Batching)),
    "generation": ("generation", lambda value, path, key: _read(value, path, f"{key}.", _GENERATION, Generation)),
    "encoder": ("encoder", lambda value, path, key: _read(value, path, f"{key}.", _ENCODER, Encoder)),
    "sequences": ("sequences", lambda value, path, key: _read(value, path, f"{key}.", _SEQUENCES, SequenceLimits)),
    "warmup": ("warmup", lambda value, path, key: _read(value, path, f"{key}.", _WARMUP, Warmup)),
}
