"""Files with the values of a request's variables, from which another request, in another process, can continue.

A file has the format of a blob: a manifest and checked sections. It belongs to the model whose identity it names, and
fits any device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import numpy as np

from engine.blob import BlobManifest, BlobReader, BlobWriter
from engine.errors import BlobError, BlobFormatError, ModelError, StateError
from engine.ir import ElementType
from engine.runtime.growing import Held, plain
from engine.runtime.values import Array

StateTarget = str | os.PathLike[str] | BinaryIO

_KIND: Final = "state"
_VERSION: Final = "1"


def write_state(target: StateTarget, identity: str, values: Mapping[str, Held | None]) -> None:
    """Write the values of variables to a path, atomically, or to a binary stream. Raises `BlobError`."""
    described = []
    arrays: list[Array] = []
    for name, value in values.items():
        if value is None:
            described.append({"name": name, "initial": True})
            continue
        stored = np.ascontiguousarray(plain(value))
        element = ElementType.from_numpy(stored.dtype).name
        described.append({"name": name, "type": element, "shape": list(stored.shape), "section": str(len(arrays))})
        arrays.append(stored)
    manifest = BlobManifest(
        device=_KIND,
        plugin_name=_KIND,
        plugin_version=_VERSION,
        engine_version=_VERSION,
        api_version=_VERSION,
        requirements={},
        config={},
        inputs=[],
        outputs=[],
        metadata={"kind": _KIND, "version": _VERSION, "model_identity": identity, "values": described},
    )
    writer = BlobWriter(manifest)
    for index, array in enumerate(arrays):
        writer.add_section(str(index), array.reshape(-1).view(np.uint8))
    if isinstance(target, (str, os.PathLike)):
        writer.write_file(target)
    else:
        writer.write(target)


def read_state(source: str | os.PathLike[str] | bytes | BinaryIO, identity: str, network: str) -> dict[str, Any]:
    """The values of variables in a file.

    A path is mapped, and values are read-only, so that a device does not have them in memory beside what it makes of
    them at the next inference.

    Raises `BlobError` if it is damaged or cannot be read, `StateError` if it is not the state of this model.
    """
    is_mapped = isinstance(source, (str, os.PathLike))
    reader = BlobReader(source, mmap=is_mapped)
    metadata = reader.manifest.metadata
    if metadata.get("kind") != _KIND or metadata.get("version") != _VERSION:
        raise StateError(f"{network}: the file is not the state of a request; it is a blob for a device")
    if metadata.get("model_identity") != identity:
        raise StateError(f"{network}: the file is the state of a request of another model")
    try:
        return {str(each["name"]): _value(reader, each, is_mapped=is_mapped) for each in metadata["values"]}
    except BlobError:
        raise
    except (ModelError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise BlobFormatError(f"{network}: the state's description of its values is malformed: {e!r}") from e


def _value(reader: BlobReader, described: Mapping[str, Any], *, is_mapped: bool) -> Array | None:
    if described.get("initial"):
        return None
    dtype = ElementType.parse(described["type"]).numpy
    if dtype.hasobject:
        raise TypeError("a variable of text")
    value = np.frombuffer(reader.section(described["section"]), dtype).reshape(described["shape"])
    return value if is_mapped else value.copy()  # a buffer is the caller's, who may change it
