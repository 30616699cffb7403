"""AUTO: the fastest device for a model. Read `plugin.py` first, then `network.py`, `selection.py`, `request.py`."""

from engine_auto.plugin import AutoPlugin

__all__ = ["AutoPlugin"]
