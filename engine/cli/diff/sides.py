"""A side of a comparison: a device with a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from engine.core import Core
from engine.errors import InputError
from engine.ir import Model
from engine.properties import CONFIG
from engine.startup import dataclass

Run: TypeAlias = Callable[[Model, Mapping[str, Any]], Mapping[str, Any]]
"""Computes the outputs of a model, by the names of its results, from inputs by name."""


@dataclass(frozen=True, slots=True)
class Side:
    """A device that computes models, and the user's name for it."""

    label: str
    run: Run


def open_side(core: Core, words: str, settings: Mapping[str, str] | None = None) -> Side:
    """The side that words name: a device, then settings `KEY=VALUE` of its own.

    `settings` are those that both sides have; one that a side does not know is left out there. Raises `InputError` for
    other words, and the errors of properties.
    """
    place, *rest = words.split() or [""]
    if not place or "=" in place:
        raise InputError(f"{words!r}: expected a device first, such as 'CPU INFERENCE_PRECISION_HINT=f32'")
    own: dict[str, str] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError(f"{words!r}: expected KEY=VALUE after the device, got {word!r}")
        own[key] = value
    declared = core.supported_properties(place)
    shared = {key: value for key, value in (settings or {}).items() if key in declared}
    texts = {**shared, **own}
    config = {key: declared.require(key, CONFIG, where=place).parse(text) for key, text in texts.items()}
    return Side(words, lambda model, inputs: core.compile_model(model, place, config)(inputs))
