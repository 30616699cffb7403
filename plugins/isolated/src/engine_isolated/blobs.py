"""`isolated_blob`: a device's blob as one of ISOLATED, so that it runs in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from engine.blob import BlobManifest, BlobReader, BlobWriter
from engine.blob.bound import Bound
from engine.blob.transform import Transformed
from engine.errors import BlobError, BlobIncompatibleError, BlobTransformError
from engine.properties import DEVICE_PRIORITIES
from engine_isolated.network import NETWORK
from engine_isolated.plugin import IsolatedPlugin

_EXTENSIONS: Final = "extensions"
"""The requirement that the application's core checks; the device's own ones are checked in the process."""


def isolated_blob(blob: str | os.PathLike[str] | bytes) -> BlobWriter:
    """A blob of ISOLATED that contains a device's blob, given by its path or its bytes: write it with `write_file`.

    It is not signed, whether the blob is or not: sign it with `write_file(path, sign=...)`. A blob that is encrypted,
    or whose weights are in another file, is refused: an import passes neither key nor file to the blob inside. To
    encrypt a blob of ISOLATED, export the device's without a transform, and call `transformed` of the result.

    Raises `BlobFormatError`, `BlobError`, `BlobTransformError` for an encrypted blob, `BlobIncompatibleError` for one
    whose weights are in another file.
    """
    if isinstance(blob, bytes):
        data, where = blob, "blob"
    else:
        where = f"blob {os.fspath(blob)}"
        try:
            data = Path(blob).read_bytes()
        except OSError as e:
            raise BlobError(f"{where}: cannot be opened: {e.strerror}") from e
    inner = BlobReader(data).manifest
    if Transformed.of(inner) is not None:
        raise BlobTransformError(
            f"{where} is encrypted, or stored in another form, and an import of ISOLATED passes no key to the blob "
            "inside; export it without a transform, and pass the transform to `transformed` of the result"
        )
    if Bound.of(inner) is not None:
        raise BlobIncompatibleError(
            f"{where} has no weights of its own, and an import of ISOLATED passes no other file to the blob inside; "
            "export it without `weights`"
        )
    extensions = {name: value for name, value in inner.requirements.items() if name == _EXTENSIONS}
    writer = BlobWriter(
        BlobManifest(
            device=IsolatedPlugin.name,
            plugin_name=IsolatedPlugin.name,
            plugin_version=IsolatedPlugin.version,
            engine_version=inner.engine_version,
            api_version=inner.api_version,
            requirements=extensions,
            config={DEVICE_PRIORITIES.name: inner.device},
            inputs=inner.inputs,
            outputs=inner.outputs,
            metadata=inner.metadata,
        )
    )
    writer.add_section(NETWORK, data)
    return writer
