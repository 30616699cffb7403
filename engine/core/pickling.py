"""How networks and models are unpickled: in another process, by a core of its own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.core import Core
    from engine.plugin_api import ExecutableNetwork


@cache
def _shared_core() -> Core:
    from engine.core.core import Core

    return Core()


def unpickled_network(blob: bytes) -> ExecutableNetwork:
    """Import the blob of a pickled network; the networks of one process share a core."""
    return _shared_core().import_model(blob)
