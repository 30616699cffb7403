"""`Core`: what an application uses to read, compile, import and query models on the devices of a machine."""

from engine.core.core import Core, PluginVersion
from engine.core.settings import CORE_PROPERTIES

__all__ = ["CORE_PROPERTIES", "Core", "PluginVersion"]
