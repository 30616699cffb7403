"""The variables of a model in the metadata of a file, which stays plain ONNX: inputs, outputs, and their pairs."""

from __future__ import annotations

import json
from typing import Final

from engine.errors import ModelError, ModelReadError
from engine.ir import Model, Variable

METADATA_KEY: Final = "engine.variables"
"""The entry of a file's metadata: a JSON list with an object for each variable, as `Variable.to_json` returns it."""


def metadata_of(model: Model) -> dict[str, str]:
    """The metadata to write, including the entry that describes the variables."""
    if not model.variables:
        return model.metadata
    described = [variable.to_json() for variable in model.variables]
    return {**model.metadata, METADATA_KEY: json.dumps(described, separators=(",", ":"))}


def read_metadata(model: Model, metadata: dict[str, str]) -> None:
    """Set the metadata of a model, and add the variables that it describes.

    Raises `ModelReadError` if their description is damaged, or does not fit the model.
    """
    model.metadata = {key: value for key, value in metadata.items() if key != METADATA_KEY}
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
