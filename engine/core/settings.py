"""The sources of a compilation's configuration: device string, given values, and two layers of defaults."""

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
    2 << 30,
    CONFIG,
    "The largest total size in bytes of the networks in a cache folder; the least recently used are deleted. 0: no "
    "limit.",
    minimum=0,
)

TRUSTED_KEYS: Final[Property[tuple[str, ...]]] = Property(
    "TRUSTED_KEYS",
    tuple,
    (),
    CONFIG,
    "The files of keys, as `engine keygen` writes them, whose signatures make a blob trusted: its compiled programs "
    "are used as with TRUST_BLOB. A wrong signature by one of them is an error. Files are read at each import.",
)
REQUIRE_SIGNATURE: Final = Property(
    "REQUIRE_SIGNATURE",
    bool,
    False,
    CONFIG,
    "Whether only blobs are imported that a key of TRUSTED_KEYS has signed. Networks in CACHE_DIR are not affected.",
)

CORE_PROPERTIES: Final = PropertySet(
    *(p for p in CONFIG_PROPERTIES if p is not DEVICE_ID), CACHE_MAX_BYTES, TRUSTED_KEYS, REQUIRE_SIGNATURE
)
"""The properties that `Core.set_property` takes without a device: defaults for all devices, and the core's own."""


def stated_config(plugin: Plugin, target: DeviceName, config: Mapping[str, object] | None) -> dict[str, Any]:
    """The values that a user states in the configuration and in the device string, validated.

    Raises `PropertyError` if these contradict each other, `DeviceNotFoundError` for a list of devices that
    the plugin does not take.
    """
    explicit = config.explicit if isinstance(config, Config) else config
    values = dict(Config(plugin.declared, explicit, where=plugin.name).explicit)
    stated = {DEVICE_ID.name: target.device_id} if target.device_id else {}
    if target.targets:
        if DEVICE_PRIORITIES not in plugin.declared:
            raise DeviceNotFoundError(
                f"device {str(target)!r}: {target.name} does not take a list of devices; use {target.name!r}"
            )
        stated[DEVICE_PRIORITIES.name] = target.priorities
    for name, value in stated.items():
        if values.setdefault(name, value) != value:
            raise PropertyError(
                f"{name} is {value!r} in device {str(target)!r} and {values[name]!r} in the configuration; set it once"
            )
    return values


def exported_config(plugin: Plugin, exported: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that a blob may state in its manifest; the rest is up to the application that imports it."""
    declared = plugin.declared
    return {k: v for k, v in exported.items() if k not in declared or declared[k].is_portable}


def with_core_defaults(
    plugin: Plugin,
    stated: Mapping[str, Any],
    core_defaults: Config,
    exported: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """`stated`, plus the core's defaults for keys that neither it, nor `exported`, nor the device's defaults set."""
    said = {*stated, *exported, *plugin.config.explicit}
    added = {k: v for k, v in core_defaults.explicit.items() if k in plugin.declared and k not in said}
    return {**added, **stated}
