"""ISOLATED: another device in a process of its own. Read `plugin.py`, `network.py`, `supervisor.py`, `program.py`."""

from typing import TYPE_CHECKING

from engine.startup import names_on_demand
from engine_isolated.plugin import IsolatedPlugin

if TYPE_CHECKING:
    from engine_isolated.blobs import isolated_blob
else:
    __getattr__ = names_on_demand(__name__, {"engine_isolated.blobs": ["isolated_blob"]})

__all__ = ["IsolatedPlugin", "isolated_blob"]
