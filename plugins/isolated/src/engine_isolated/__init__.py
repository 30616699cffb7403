"""ISOLATED: another device in a process of its own. Read `plugin.py`, `network.py`, `supervisor.py`, `program.py`."""

from engine_isolated.plugin import IsolatedPlugin

__all__ = ["IsolatedPlugin"]
