"""`Core`: reads, compiles, imports and queries models on the devices of a machine, for applications."""

from engine.core.core import Core, PluginVersion
from engine.core.settings import CORE_PROPERTIES

__all__ = ["CORE_PROPERTIES", "Core", "PluginVersion"]
