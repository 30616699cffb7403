"""The devices that AUTO may use, in order, and why others are excluded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.plugin_api import Config, CoreHandle, DeviceNotFoundError, EngineError, PropertyError
from engine.properties import (
    AVAILABLE_DEVICES,
    DEVICE_CONFIGS,
    DEVICE_PRIORITIES,
    FORWARDED_PROPERTIES,
    FULL_DEVICE_NAME,
    IS_REFERENCE,
    ONLY_IF_NAMED,
    SUPPORTED_CONFIG_KEYS,
    SUPPORTED_METRICS,
)
from engine.startup import dataclass

_DRIVER: Final = "DRIVER_VERSION"


@dataclass(frozen=True)
class Device:
    """A device string, its configuration, and what identifies it on a machine.

    `is_last_resort`: it is used only if no other can be, since it exists for comparing results.
    """

    name: str
    config: Mapping[str, Any]
    identity: str
    is_last_resort: bool


class DeviceList:
    """The devices that a configuration names, or the plugins of all devices. Plugins are loaded only when their devices
    are requested.

    Raises `DeviceNotFoundError` if there is none, `PropertyError` for configuration of a device that is not among them.

    Attributes:
        names: device strings as listed; or names of plugins, each of which may have several devices.
        is_stated: whether a list was given.
    """

    def __init__(self, own_name: str, core: CoreHandle, config: Config) -> None:
        listed = config[DEVICE_PRIORITIES.name]
        self.own_name = own_name
        self.is_stated = bool(listed)
        self.names = tuple(listed.split(",") if listed else (n for n in core.installed_devices if n != own_name))
        self._core, self._config = core, config
        self._given: Mapping[str, Any] = config[DEVICE_CONFIGS.name]
        if not self.names:
            raise DeviceNotFoundError(
                f"{own_name}: no other plugin is installed; install one, such as engine-plugin-cpu"
            )
        for name in self._given:
            if name not in self.names and (self.is_stated or _plugin(name) not in self.names):
                raise PropertyError(
                    f"{DEVICE_CONFIGS.name} configures {name!r}, which is not among the devices {', '.join(self.names)}"
                )

    def devices(self, name: str) -> tuple[Device, ...]:
        """The devices of one of `names`, ready to be used. Loads their plugin, and looks for them on this machine.

        Raises `LeftOut` for a plugin whose devices run on others, `DeviceNotFoundError` if it was listed, or cannot be
        found here, and the errors of loading a plugin. Also raises `LeftOut` for one that must be listed and is not.
        """
        core = self._core
        if DEVICE_PRIORITIES.name in core.get_property(name, SUPPORTED_CONFIG_KEYS.name):
            if self.is_stated:
                raise DeviceNotFoundError(
                    f"device {name!r} in the list {','.join(self.names)!r} runs on other devices, and {self.own_name} "
                    "chooses one that computes"
                )
            raise LeftOut("it runs on other devices")
        if self.is_stated:
            return (self.device(name),)
        if core.get_property(name, ONLY_IF_NAMED.name):  # asked first: looking for devices may load a whole runtime
            raise LeftOut(f"it is used only if it is listed, as in {self.own_name}:{name}")
        ids = core.get_property(name, AVAILABLE_DEVICES.name)
        if not ids:
            raise LeftOut("it finds no device on this machine")
        return tuple(self.device(f"{name}.{each}" if len(ids) > 1 else name) for each in ids)

    def one_by_one(self) -> Iterator[Device]:
        """The devices in order, the last resort at the end; a plugin is loaded when it is its turn.

        Raises `DeviceNotFoundError` at the end if there was none.
        """
        last: list[Device] = []
        reasons: list[str] = []
        is_empty = True
        for name in self.names:
            try:
                found = self.devices(name)
            except (EngineError, LeftOut) as e:
                reasons.append(f"{name}: {e}")
                continue
            last += [device for device in found if device.is_last_resort]
            for device in found:
                if not device.is_last_resort:
                    is_empty = False
                    yield device
        yield from last
        if is_empty and not last:
            raise DeviceNotFoundError(f"{self.own_name}: no device can be used: {'; '.join(reasons)}")

    def device(self, name: str) -> Device:
        """A device by its device string. Raises `DeviceNotFoundError`, and the errors of loading its plugin."""
        core, config = self._core, self._config
        own = self._given.get(name, self._given.get(_plugin(name), {}) if not self.is_stated else {})
        if not isinstance(own, Mapping):
            raise PropertyError(
                f"{DEVICE_CONFIGS.name}: expected a mapping of config keys to values for {name}, got {own!r:.80}"
            )
        keys = core.get_property(name, SUPPORTED_CONFIG_KEYS.name)
        passed = {p.name: config[p] for p in FORWARDED_PROPERTIES if p.name in config.explicit and p.name in keys}
        identity = [name, str(core.get_property(name, FULL_DEVICE_NAME.name))]
        if _DRIVER in core.get_property(name, SUPPORTED_METRICS.name):
            identity.append(str(core.get_property(name, _DRIVER)))
        is_last_resort = bool(core.get_property(name, IS_REFERENCE.name))
        return Device(name, {**passed, **own}, ", ".join(identity), is_last_resort)


class LeftOut(Exception):
    """A plugin is not considered, for a reason that is not an error."""


def _plugin(name: str) -> str:
    return name.partition(".")[0]
