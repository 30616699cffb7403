"""OPENVINO: models run by Intel's runtime. `plugin.py` first, then `network.py`, `request.py`, `query.py`."""

from engine_openvino.plugin import OpenvinoPlugin

__all__ = ["OpenvinoPlugin"]
