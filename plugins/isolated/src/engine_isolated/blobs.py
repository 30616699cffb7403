"""`isolated_blob`: a device's blob as one of ISOLATED, so that it runs in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from engine.blob import BlobManifest, BlobReader, BlobWriter
from engine.properties import DEVICE_PRIORITIES
from engine_isolated.network import NETWORK
from engine_isolated.plugin import IsolatedPlugin

_EXTENSIONS: Final = "extensions"
"""The requirement that the application's core checks; the device's own ones are checked in the process."""


def isolated_blob(blob: str | os.PathLike[str] | bytes) -> BlobWriter:
    """A blob of ISOLATED that contains a device's blob, given by its path or its bytes: write it with `write_file`.

    It is not signed, whether the blob is or not: sign it with `write_file(path, sign=...)`. Raises `BlobFormatError`,
    `BlobError`.
    """
    data = blob if isinstance(blob, bytes) else Path(blob).read_bytes()
    inner = BlobReader(data).manifest
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
