"""TEMPLATE: the smallest complete plugin. Read `plugin.py` first, then `network.py`, `program.py`, `request.py`."""

from engine_template.plugin import TemplatePlugin

__all__ = ["TemplatePlugin"]
