"""The description of the device and the versions in a scorecard."""

from __future__ import annotations

from engine.core import Core
from engine.hosting import engine_version


def describe(device: str) -> str:
    """Create the device, and return its full name with the versions of its plugin and the engine.

    Raises an `EngineError` if it cannot be created.
    """
    core = Core()
    parts = [core.get_property(device, "FULL_DEVICE_NAME")]
    name = device.partition(":")[0].partition(".")[0]
    parts += [f"plugin {plugin.version}" for plugin in core.get_versions(name).values()]
    return ", ".join([*parts, f"engine {engine_version()}"])
