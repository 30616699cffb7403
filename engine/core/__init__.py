"""`Core`: reads, compiles, imports and queries models on the devices of a machine, for applications."""

from engine.core.cache import CacheContents
from engine.core.core import Core, PluginVersion
from engine.core.settings import CORE_PROPERTIES, REQUIRE_SIGNATURE, TRUSTED_KEYS

__all__ = ["CORE_PROPERTIES", "REQUIRE_SIGNATURE", "TRUSTED_KEYS", "CacheContents", "Core", "PluginVersion"]
