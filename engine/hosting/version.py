"""The versions that blobs record: of the engine and of the plugin API."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Final

API_VERSION: Final = 1
"""The version of `engine.plugin_api`; a plugin states the version that it was written for."""


@functools.cache
def engine_version() -> str:
    """Return the version of the engine, which blobs record; "0+source" if it is not installed."""
    try:
        return metadata.version("engine-sdk")
    except metadata.PackageNotFoundError:
        return "0+source"
