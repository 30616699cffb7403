"""A model in shared memory: its skeleton and its constants, which the other process uses in place."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelReadError
from engine.ir import Model
from engine.ir.walk import all_nodes
from engine.onnx import join_model, split_model
from engine.ops.origin import extension_of
from engine_isolated.memory import SharedMemory, aligned


def extensions_of(model: Model) -> set[str]:
    """The extensions whose operators a model uses, each as "name version"."""
    return {name for node in all_nodes(model) if node.domain and (name := extension_of(node))}


def shared_model(model: Model) -> tuple[SharedMemory, dict[str, Any]]:
    """A model as shared memory, and where its parts are there. Raises `ModelWriteError`, `OutOfMemoryError`."""
    skeleton, sections = split_model(model, keep_unread=True)
    parts = [memoryview(skeleton), *(memoryview(section.data).cast("B") for section in sections)]
    places, at = [], 0
    for part in parts:
        places.append([at, part.nbytes])
        at += aligned(part.nbytes)
    names = [section.name for section in sections]
    return SharedMemory.of(parts, at), {"skeleton": places[0], "sections": dict(zip(names, places[1:], strict=True))}


def model_in(shared: SharedMemory, places: dict[str, Any]) -> Model:
    """The model of `shared_model`; its constants are views of the memory."""
    data = shared.buffer

    def part(place: list[int]) -> memoryview:
        at, size = place
        if at < 0 or size < 0 or at + size > data.nbytes:
            raise ModelReadError("a part of the model is outside of the shared memory")
        return data[at : at + size]

    return join_model(bytes(part(places["skeleton"])), lambda name: part(places["sections"][name]))
