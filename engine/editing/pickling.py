"""Models in pickles: the form that blobs have, so that nothing is lost."""

from __future__ import annotations

from engine.ir import Model
from engine.onnx import join_model, split_model


def pickled(model: Model) -> tuple[bytes, dict[str, bytes]]:
    """A model as a skeleton and the bytes of its constants, by name."""
    skeleton, sections = split_model(model, keep_unread=True)
    return skeleton, {section.name: bytes(section.data) for section in sections}


def unpickled(skeleton: bytes, sections: dict[str, bytes]) -> Model:
    """Join the skeleton and sections that `pickled` returned to an equal model."""
    return join_model(skeleton, sections.__getitem__)
