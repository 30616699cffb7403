"""The subject of a measurement: a model on a device with a configuration; and opening it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any

from engine.blob import check_blob, is_blob
from engine.core import REQUIRE_SIGNATURE, TRUSTED_KEYS, Core
from engine.errors import InputError
from engine.preprocessing import PrePostProcessor, parse_steps
from engine.properties import CONFIG
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.plugin_api import ExecutableNetwork


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on a device. Its fields are JSON values, so that another process can open it.

    Attributes:
        file: an ONNX model, or a blob.
        device: the device string; None for a blob's own.
        config: settings as text, as on the command line.
        shapes: new shapes of inputs.
        carried: keys of `config` that were not stated for this subject; a device that has no such key ignores it.
        words: the user's name for it; if empty, its device and settings serve as one.
        extensions: what `Core.add_extension` takes.
        release: the name and the minimum version that a blob must state.
        decrypt, weights_from: the key and the file of weights of a blob.
        preprocess: steps that become a part of the model, as of `engine.preprocessing.parse_steps`.
    """

    file: str
    device: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    trusted_keys: tuple[str, ...] = ()
    require_signature: bool = False
    release: str | None = None
    decrypt: str | None = None
    weights_from: str | None = None
    preprocess: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    words: str = ""

    @property
    def label(self) -> str:
        """The user's name for it, otherwise the device with its settings."""
        if self.words:
            return self.words
        settings = ",".join(f"{key}={value}" for key, value in self.config.items())
        return f"{self.device or 'blob'} {settings}".strip()

    def as_json(self) -> dict[str, Any]:
        """The fields of the subject as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Subject:
        """Make a subject from the fields that another process sent as JSON: lists become tuples again."""
        shapes = {name: tuple(dims) for name, dims in fields["shapes"].items()}
        lists = {name: tuple(fields[name]) for name in ("extensions", "trusted_keys", "carried", "preprocess")}
        return cls(**{**fields, **lists, "shapes": shapes})


def changed(base: Subject, words: str) -> Subject:
    """`base` with the parts replaced that `words` name: a model or blob, a device, and settings KEY=VALUE.

    A path with spaces stands alone. Another device keeps the settings of the base that it knows; a setting without a
    value is dropped. Raises `InputError` if a word cannot be understood.
    """
    subject, config, stated = replace(base, words=words), dict(base.config), set[str]()
    for word in [words] if os.path.isfile(words) else words.split():
        key, equals, value = word.partition("=")
        if os.path.isfile(word):
            subject = replace(subject, file=word)
        elif equals and key.isidentifier():
            config[key] = value
            stated.add(key)
        elif word.endswith((".onnx", ".blob", ".json")):
            raise InputError(f"{word}: the file to compare with does not exist")
        else:
            subject = replace(subject, device=word)
    config = {key: value for key, value in config.items() if value}
    subject = replace(subject, config=config, carried=tuple(config.keys() - stated))
    if subject.device is None and not is_blob(subject.file):
        raise InputError(f"{words!r}: no device is given for the model {subject.file}; name one, such as CPU")
    return subject


@dataclass(frozen=True, slots=True)
class Opened:
    """A network, its model (None for a blob), and the seconds to read, and to compile or import."""

    network: ExecutableNetwork
    model: Model | None
    read_seconds: float
    compile_seconds: float


def core_of(subject: Subject) -> Core:
    """A core with the extensions and trusted keys of a subject."""
    core = Core()
    for extension in subject.extensions:
        core.add_extension(extension)
    core.set_property(
        {TRUSTED_KEYS.name: list(subject.trusted_keys), REQUIRE_SIGNATURE.name: subject.require_signature}
    )
    return core


def open_subject(subject: Subject, more: Mapping[str, str] | None = None) -> Opened:
    """Compile or import a subject, with `more` settings. Raises the errors of `Core`."""
    core = core_of(subject)
    settings = {**subject.config, **(more or {})}
    if subject.carried and subject.device is not None:
        declared = core.supported_properties(subject.device)
        settings = {key: text for key, text in settings.items() if key in declared or key not in subject.carried}
    if is_blob(subject.file):
        check = check_blob(subject.file)
        check.require()
        assert check.manifest is not None
        config = _parsed(core, subject.device or check.manifest.device, settings)
        start = time.perf_counter()
        network = core.import_model(
            subject.file,
            subject.device,
            config,
            transform=subject.decrypt,
            weights=subject.weights_from,
            release=subject.release,
        )
        return Opened(network, None, 0.0, time.perf_counter() - start)
    assert subject.device is not None
    config = _parsed(core, subject.device, settings)
    start = time.perf_counter()
    model = core.read_model(subject.file)
    if subject.shapes:
        model.reshape(subject.shapes)
    if subject.preprocess:
        processor = PrePostProcessor(model)
        for text in subject.preprocess:
            parse_steps(text).add_to(processor)
        model = processor.build()
    read = time.perf_counter()
    network = core.compile_model(model, subject.device, config)
    return Opened(network, model, read - start, time.perf_counter() - read)


def device_of(file: str) -> str | None:
    """The device that a blob was compiled for; None for a model."""
    manifest = check_blob(file).manifest if is_blob(file) else None
    return None if manifest is None else manifest.device


def _parsed(core: Core, device: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings as values. Raises `PropertyError`."""
    if not settings:
        return {}
    declared = core.supported_properties(device)
    return {key: declared.require(key, CONFIG, where=device).parse(text) for key, text in settings.items()}
