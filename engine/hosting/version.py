"""The versions that blobs record: of the engine and of the plugin API."""

from __future__ import annotations

import functools
from typing import Final

from engine.startup.distributions import installed_versions

API_VERSION: Final = 2
"""The version of `engine.plugin_api`; a plugin states the version that it was written for. Plugins for the version
before also run, and those for others do not."""


DISTRIBUTIONS: Final = ("engine-sdk", "engine-runtime")
"""The distributions of the engine: all of it, or only its runtime for blobs. They have the same modules, so one
excludes the other."""


@functools.cache
def engine_version() -> str:
    """Return the version of the engine, which blobs record; "0+source" if it is not installed.

    A runtime for given models has the version of the engine that it is a part of, and a suffix.
    """
    versions = (version.partition("+for.")[0] for version in installed_distributions().values())
    return next(versions, "0+source")


@functools.cache
def installed_distributions() -> dict[str, str]:
    """Return the versions of the installed `DISTRIBUTIONS`; there should be one."""
    return installed_versions(*DISTRIBUTIONS)
