"""`HostedPlugin`: the engine's part of every plugin. Its hooks are documented in `engine.plugin_api`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, ClassVar, final

from engine.errors import DeviceNotFoundError, PluginContractError
from engine.hosting.wrapping import metric_value, plugin_errors
from engine.properties import CONFIG, DEVICE_ID, DEVICE_PROPERTIES, METRIC, TARGET, Config, Property, PropertySet
from engine.runtime.lifecycle import ForkSafeLock


class HostedPlugin(ABC):
    """Configuration, metrics and ids of a device. All methods may be called from any thread."""

    name: ClassVar[str]
    version: ClassVar[str]
    api_version: ClassVar[int]
    properties: ClassVar[Iterable[Property[Any]]] = ()

    def __init__(self) -> None:
        self._declared = DEVICE_PROPERTIES.combined(self.properties)
        self._config = Config(self._declared, where=self.name)
        self._lock = ForkSafeLock()

    @abstractmethod
    def device_ids(self) -> Sequence[str]:
        """The ids of the present devices, the default first; empty if the plugin is unavailable."""

    @abstractmethod
    def metric(self, name: str, device_id: str) -> object:
        """The value of a metric of the device with this id; None for the declared default."""

    @abstractmethod
    def host_features(self, device_id: str) -> Mapping[str, str | Collection[str]]:
        """The features of this machine that the requirements of blobs are compared with."""

    @abstractmethod
    def _imports_networks(self) -> bool:
        """Whether the plugin defines `import_network`."""

    @abstractmethod
    def _makes_contexts(self) -> bool:
        """Whether the plugin defines `create_context`."""

    @final
    @property
    def declared(self) -> PropertySet:
        """All properties of the device: those common to all devices, and its own."""
        return self._declared

    @final
    @property
    def config(self) -> Config:
        """The default configuration of this device, as changed by `set_config`."""
        return self._config

    @final
    def set_config(self, values: Mapping[str, object]) -> None:
        """Change the defaults of later compilations: all of `values`, or none. Raises `PropertyError`."""
        with self._lock:
            self._config = self._config.merged(values)

    @final
    def get_config(self, name: str) -> Any:
        """Return the default of a config key. Raises `PropertyError` listing the keys."""
        return self._config[name]

    @final
    def get_metric(self, name: str, device_id: str = "") -> Any:
        """Return a metric of a device. Raises `PropertyError` listing the metrics; `PluginContractError`."""
        where = self.name
        return metric_value(self._declared, name, lambda: self._metric(name, device_id), where)

    def _metric(self, name: str, device_id: str) -> object:
        match name:
            case "SUPPORTED_METRICS":
                return self._declared.of(METRIC).names
            case "SUPPORTED_CONFIG_KEYS":
                return self._declared.of(CONFIG).names
            case "AVAILABLE_DEVICES":
                return self._device_ids()
            case "IMPORT_EXPORT_SUPPORT":
                return self._imports_networks()
            case "REMOTE_CONTEXT_SUPPORT":
                return self._makes_contexts()
        # Whether it must be named is a fact about the plugin, and is asked so that its devices need not be looked for.
        is_of_device = name != "ONLY_IF_NAMED"
        value = self.metric(name, self.resolve_device_id(device_id) if is_of_device else device_id)
        match name:
            case "FULL_DEVICE_NAME" if value is None:
                return self.name
            case "OPTIMIZATION_CAPABILITIES" if self._imports_networks() and isinstance(value, (tuple, list, NoneType)):
                return (*(value or ()), "EXPORT_IMPORT")
        return value

    @final
    def get_property(self, name: str, device_id: str = "") -> Any:
        """Return a metric or a config key's default. Raises `PropertyError`, `PluginContractError`."""
        if self._declared.require(name, where=self.name).mutability is CONFIG:
            return self.get_config(name)
        return self.get_metric(name, device_id)

    @final
    def resolve_device_id(self, device_id: str) -> str:
        """Return `device_id`, or the first device's id if it is empty. Raises `DeviceNotFoundError`."""
        ids = self._device_ids()
        if not ids:
            raise DeviceNotFoundError(f"{self.name} finds no device on this machine")
        if device_id and device_id not in ids:
            raise DeviceNotFoundError(f"{self.name} has no device {device_id!r}; devices: {', '.join(ids)}")
        return device_id or ids[0]

    @final
    def device_id_of(self, config: Config) -> str:
        """The id of the device of a configuration; "" if that is for another machine, and this one has no such device.

        Raises `DeviceNotFoundError`.
        """
        try:
            return self.resolve_device_id(config[DEVICE_ID])
        except DeviceNotFoundError:
            if config.get(TARGET.name) and not config[DEVICE_ID]:
                return ""
            raise

    def _device_ids(self) -> tuple[str, ...]:
        with plugin_errors(self.name, "device_ids"):
            ids = self.device_ids()
        if not isinstance(ids, (list, tuple)) or not all(isinstance(each, str) and each for each in ids):
            raise PluginContractError(f"plugin {self.name}: device_ids returned {ids!r}, expected a list of ids: ['0']")
        return tuple(ids)
