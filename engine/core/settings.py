"""Where a compilation's configuration comes from: device string, given values, and two layers of defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from engine.core.device_name import DeviceName
from engine.errors import DeviceNotFoundError, PropertyError
from engine.plugin_api import Plugin
from engine.properties import (
    CONFIG,
    CONFIG_PROPERTIES,
    DEVICE_ID,
    DEVICE_PRIORITIES,
    Config,
    Property,
    PropertySet,
)

CACHE_MAX_BYTES: Final = Property(
    "CACHE_MAX_BYTES",
    int,
    0,
    CONFIG,
    "How many bytes the networks in CACHE_DIR may take together; the least recently used are deleted. 0: no limit.",
    minimum=0,
)

CORE_PROPERTIES: Final = PropertySet(*(p for p in CONFIG_PROPERTIES if p is not DEVICE_ID), CACHE_MAX_BYTES)
"""What `Core.set_property` takes without a device: defaults for all devices, and the core's own."""


def stated_config(plugin: Plugin, target: DeviceName, config: Mapping[str, object] | None) -> dict[str, Any]:
    """What a user asks for, in the configuration and in the device string, validated.

    Raises `PropertyError` where these contradict each other, `DeviceNotFoundError` for a list of devices where
    the plugin runs on no others.
    """
    explicit = config.explicit if isinstance(config, Config) else config
    values = dict(Config(plugin.declared, explicit, where=plugin.name).explicit)
    stated = {DEVICE_ID.name: target.device_id} if target.device_id else {}
    if target.targets:
        if DEVICE_PRIORITIES not in plugin.declared:
            raise DeviceNotFoundError(
                f"device {str(target)!r}: {target.name} does not run on other devices; use {target.name!r}"
            )
        stated[DEVICE_PRIORITIES.name] = target.priorities
    for name, value in stated.items():
        if values.setdefault(name, value) != value:
            raise PropertyError(
                f"device {str(target)!r} and the configuration disagree: {name} is {value!r} in the one and "
                f"{values[name]!r} in the other; give it once"
            )
    return values


def with_core_defaults(
    plugin: Plugin,
    stated: Mapping[str, Any],
    core_defaults: Config,
    exported: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """`stated`, and the core's defaults for what is neither in it nor exported nor a default of the device."""
    said = {*stated, *exported, *plugin.config.explicit}
    added = {k: v for k, v in core_defaults.explicit.items() if k in plugin.declared and k not in said}
    return {**added, **stated}
