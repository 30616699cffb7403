"""`Core`: reads, compiles, imports and queries models on the devices of a machine, for applications."""

from typing import TYPE_CHECKING

from engine.core.core import Core, PluginVersion
from engine.core.settings import CORE_PROPERTIES, REQUIRE_SIGNATURE, TRUSTED_KEYS
from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.core.cache import CacheContents
    from engine.core.variants import Variant, compile_variants, export_variants
else:
    __getattr__ = names_on_demand(__name__, {
        "engine.core.cache": ["CacheContents"],
        "engine.core.variants": ["Variant", "compile_variants", "export_variants"],
    })  # fmt: skip

__all__ = [
    "CORE_PROPERTIES",
    "REQUIRE_SIGNATURE",
    "TRUSTED_KEYS",
    "CacheContents",
    "Core",
    "PluginVersion",
    "Variant",
    "compile_variants",
    "export_variants",
]
