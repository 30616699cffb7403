"""The metadata of a file, which stays plain ONNX: a model's own, its variables, and notes of inputs and outputs."""

from __future__ import annotations

import json
from typing import Final

from engine.errors import ModelError, ModelReadError
from engine.ir import Model, Variable
from engine.onnx.port_notes import METADATA_KEY as NOTES_KEY
from engine.onnx.port_notes import notes_of, read_notes

METADATA_KEY: Final = "engine.variables"
"""The entry of a file's metadata: a JSON list with an object for each variable, as `Variable.to_json` returns it."""


def metadata_of(model: Model) -> dict[str, str]:
    """The metadata to write, including the entries that describe the variables, the inputs and the outputs."""
    entries = {**model.metadata, **notes_of(model)}
    if model.variables:
        described = [variable.to_json() for variable in model.variables]
        entries[METADATA_KEY] = json.dumps(described, separators=(",", ":"))
    return entries


def read_metadata(model: Model, metadata: dict[str, str]) -> None:
    """Set the metadata of a model, and add the variables and the notes of inputs and outputs that it describes.

    Raises `ModelReadError` if their description is damaged, or does not fit the model.
    """
    model.metadata = {key: value for key, value in metadata.items() if key not in (METADATA_KEY, NOTES_KEY)}
    read_notes(model, metadata)
    if METADATA_KEY not in metadata:
        return
    try:
        described = json.loads(metadata[METADATA_KEY])
        if not isinstance(described, list):
            raise ModelReadError(f"expected a list, got {type(described).__name__}")
        for each in described:
            model.add_variable(Variable.from_json(each))
    except (ValueError, RecursionError, ModelError) as e:
        raise ModelReadError(f"the metadata entry `{METADATA_KEY}` of model `{model.name}` is wrong: {e}") from e
