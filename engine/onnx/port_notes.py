"""The notes of a model about its inputs and outputs, layouts and preparation, in the metadata of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.errors import ModelReadError
from engine.ir import Model, Node

METADATA_KEY: Final = "engine.ports"
"""The entry of a file's metadata: a JSON object of "inputs" and "outputs", each with an object for each name."""

_NOTES: Final[dict[str, type]] = {"layout": str, "preprocess": dict}


def notes_of(model: Model) -> dict[str, str]:
    """The entry that describes the inputs and outputs; none if there is nothing to note."""
    described: dict[str, dict[str, Any]] = {}
    for kind, node in _border(model):
        notes = {key: node.annotations[key] for key, expected in _NOTES.items() if _is(node, key, expected)}
        if notes:
            described.setdefault(kind, {})[node.friendly_name] = notes
    return {METADATA_KEY: json.dumps(described, separators=(",", ":"))} if described else {}


def read_notes(model: Model, metadata: Mapping[str, str]) -> None:
    """Annotate the inputs and outputs; names that the model does not have are left out.

    Raises `ModelReadError` if the entry is damaged.
    """
    if METADATA_KEY not in metadata:
        return
    try:
        described = json.loads(metadata[METADATA_KEY])
    except (ValueError, RecursionError) as e:
        raise _wrong(model, str(e)) from e
    for kind, node in _border(model):
        named = described.get(kind, {}) if isinstance(described, dict) else None
        notes = named.get(node.friendly_name, {}) if isinstance(named, dict) else None
        if not isinstance(notes, dict) or not all(isinstance(v, _NOTES.get(k, object)) for k, v in notes.items()):
            raise _wrong(model, f"`{node.friendly_name}` needs a text as layout and an object as preprocess")
        node.rt_info.update({key: value for key, value in notes.items() if key in _NOTES})


def _border(model: Model) -> Iterator[tuple[str, Node]]:
    for parameter in model.parameters:
        yield "inputs", parameter
    for result in model.results:
        yield "outputs", result


def _is(node: Node, key: str, expected: type) -> bool:
    value = node.annotations.get(key)
    if not value or not isinstance(value, expected):
        return False
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _wrong(model: Model, problem: str) -> ModelReadError:
    return ModelReadError(f"the metadata entry `{METADATA_KEY}` of model `{model.name}` is wrong: {problem}")
