"""The device that runs in the other process, and its configuration there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from engine.plugin_api import Config, CoreHandle, DeviceNotFoundError, PluginError, PropertyError, UnsupportedError
from engine.properties import DEVICE_CONFIGS, DEVICE_PRIORITIES, FORWARDED_PROPERTIES
from engine.startup import dataclass
from engine_isolated.process import Additions
from engine_isolated.properties import CALL_TIMEOUT, HANG_TIMEOUT, MAX_CRASHES, MAX_PROCESS_BYTES
from engine_isolated.supervisor import Bounds


@dataclass(frozen=True)
class Target:
    """A device string, and what the other process needs for it.

    Attributes:
        passed: values for the keys among them that the device has.
        own: the device's own configuration.
        plugins: those that were registered in this core, as "module:name" by device.
        extensions: those that were added to this core, as "name version", each with its module's name or its path.
    """

    device: str
    passed: Mapping[str, Any]
    own: Mapping[str, Any]
    plugins: Mapping[str, str]
    extensions: Mapping[str, str]
    bounds: Bounds

    @classmethod
    def of(cls, own_name: str, core: CoreHandle, config: Config) -> Target:
        """The target of a configuration. The plugin of the device is not loaded here.

        Raises `DeviceNotFoundError` for no device, several, or one of this kind; `PropertyError` for configuration that
        is not JSON; `PluginError` for a plugin that another process cannot import.
        """
        device = config[DEVICE_PRIORITIES.name]
        if not device:
            raise DeviceNotFoundError(
                f'{own_name} runs another device in a process of its own, but none is given; name it: "{own_name}:CPU"'
            )
        name = device.partition(".")[0]
        if "," in device or "(" in device or name == own_name:
            raise DeviceNotFoundError(
                f'{own_name} runs one other device, and got {device!r}; name one: "{own_name}:CPU"'
            )
        if name not in core.installed_devices:
            raise DeviceNotFoundError(
                f"{own_name}: no plugin provides device {device!r}; plugins: {', '.join(core.installed_devices)}"
            )
        given: Mapping[str, Any] = config[DEVICE_CONFIGS.name]
        if unknown := [each for each in given if each != device]:
            raise PropertyError(f"{DEVICE_CONFIGS.name} configures {unknown[0]!r}; the isolated device is {device}")
        own = given.get(device, {})
        if not isinstance(own, Mapping):
            raise PropertyError(
                f"{DEVICE_CONFIGS.name}: expected a mapping of config keys to values for {device}, got {own!r:.80}"
            )
        bounds = Bounds(
            config[HANG_TIMEOUT.name],
            config[CALL_TIMEOUT.name],
            config[MAX_CRASHES.name],
            config[MAX_PROCESS_BYTES.name],
        )
        passed = {p.name: config[p] for p in FORWARDED_PROPERTIES if p.name in config.explicit}
        plugins = _importable(own_name, name, core.registered_plugins)
        return cls(device, _json(passed), _json(own), plugins, core.registered_extensions, bounds)

    def additions(self, extensions: Iterable[str]) -> Additions:
        """What the process needs for a network with operators of these extensions, each as "name version".

        Raises `UnsupportedError` for one that another process cannot find. It finds those of installed packages itself.
        """
        needed = [each for each in extensions if each in self.extensions]
        if lost := [each for each in needed if not self.extensions[each]]:
            raise UnsupportedError(
                f"extension {lost[0]} was added as an object, which another process cannot import; add it by the name "
                "of its module, or by the path of its file"
            )
        return Additions(self.plugins, tuple(sorted(self.extensions[each] for each in needed)))

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of calls that need the device."""
        return {"device": self.device, "passed": dict(self.passed), "own": dict(self.own)}


def _json(config: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        plain: Mapping[str, Any] = json.loads(json.dumps(config, default=_plain))
    except (TypeError, ValueError) as e:
        raise PropertyError(f"{DEVICE_CONFIGS.name}: another process takes JSON values only: {e}") from e
    return plain


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"got {value!r:.80} ({type(value).__name__})")


def _importable(own_name: str, device: str, registered: Mapping[str, str]) -> Mapping[str, str]:
    """The registered plugins that another process can import. Raises `PluginError` if the device's is none."""
    found = {name: target for name, target in registered.items() if _is_importable(target)}
    if device in registered and device not in found:
        raise PluginError(
            f"{own_name}: plugin {device} was registered as {registered[device]}, which another process cannot import; "
            'define it at the top of a module that is a file, and register it as "module:name"'
        )
    return found


def _is_importable(target: str) -> bool:
    module, _, name = target.partition(":")
    return bool(name) and " " not in target and "<" not in name and module != "__main__"
