"""Checks of metrics and configuration: all declared properties can be read, and no others can be set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from engine.core import Core
from engine.errors import DeviceNotFoundError, PropertyError, UnsupportedError
from engine.plugin_api import CONFIG, METRIC, ExecutableNetwork, Property
from engine.properties import CONFIG_PROPERTIES, DEVICE_PROPERTIES, NETWORK_METRICS, OPTIMIZATION_CAPABILITIES
from engine.testing.behaviour.base import DeviceChecks

# Values that are invalid for any property of the type.
_WRONG_TYPES: Final[Mapping[type, tuple[object, ...]]] = {
    bool: (1, "true", None),
    int: ("1", 1.5, True, None),
    float: ("1", True, float("nan"), None),
    str: (1, b"text", None, "\ud800"),
    tuple: ("one", (1,), None),
    dict: ([("a", 1)], {1: "a"}, None),
}


class PropertyChecks(DeviceChecks):
    """Declared properties can be read and set; others are refused with a list of the declared ones."""

    area: ClassVar[str] = "properties"

    def test_device_metrics(self, core: Core) -> None:
        """Every metric in SUPPORTED_METRICS can be read, and the metrics of all devices are present."""
        supported = core.get_property(self.device, "SUPPORTED_METRICS")
        assert len(set(supported)) == len(supported)
        assert set(DEVICE_PROPERTIES.of(METRIC).names) <= set(supported)
        declared = core.supported_properties(self.device)
        assert set(declared.of(METRIC).names) == set(supported)
        for name in supported:
            value = core.get_property(self.device, name)
            assert declared[name].validate(value) == value

    def test_device_config_keys(self, core: Core) -> None:
        """Every key in SUPPORTED_CONFIG_KEYS has a default, executors' keys included."""
        supported = core.get_property(self.device, "SUPPORTED_CONFIG_KEYS")
        assert len(set(supported)) == len(supported)
        assert set(CONFIG_PROPERTIES.names) <= set(supported)
        declared = core.supported_properties(self.device)
        assert set(declared.of(CONFIG).names) == set(supported)
        for name in supported:
            value = core.get_property(self.device, name)
            assert declared[name].validate(value) == value

    def test_device_describes_itself(self, core: Core) -> None:
        """A readable name; ids; capabilities from the choices that the property declares."""
        assert core.get_property(self.device, "FULL_DEVICE_NAME").strip()
        ids = core.get_property(self.device, "AVAILABLE_DEVICES")
        assert ids
        assert len(set(ids)) == len(ids)
        capabilities = core.get_property(self.device, OPTIMIZATION_CAPABILITIES.name)
        assert capabilities == OPTIMIZATION_CAPABILITIES.validate(capabilities), "a device adds no names of its own"
        assert len(set(capabilities)) == len(capabilities)
        assert ("EXPORT_IMPORT" in capabilities) == core.get_property(self.device, "IMPORT_EXPORT_SUPPORT")

    def test_network_metrics(self, network: ExecutableNetwork) -> None:
        """Every metric that the network names can be read; the name is the model's."""
        supported = network.get_metric("SUPPORTED_METRICS")
        assert set(NETWORK_METRICS.names) <= set(supported)
        for name in supported:
            assert network.get_property(name) == network.get_metric(name)
        assert network.get_metric("NETWORK_NAME") == "basic"
        assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1
        assert network.get_metric("EXECUTION_DEVICES")
        assert network.get_metric("LOADED_FROM_CACHE") is False

    def test_network_config(self, core: Core, network: ExecutableNetwork) -> None:
        """Every key of the device can be read from the network."""
        supported = network.get_metric("SUPPORTED_CONFIG_KEYS")
        assert set(supported) == set(core.get_property(self.device, "SUPPORTED_CONFIG_KEYS"))
        for name in supported:
            assert network.get_property(name) == network.get_config(name)

    def test_every_config_value_is_kept(self, core: Core, tmp_path: Path) -> None:
        """The configuration of a network can be read back, and results are the same."""
        sample = self.basic.sample()
        tried = 0
        for declared, value in other_values(self.compile(core, self.basic.model()), tmp_path):
            try:
                network = self.compile(core, self.basic.model(), **{declared.name: value})
            except UnsupportedError:
                continue  # such as an element type that this machine's hardware lacks
            assert network.get_config(declared.name) == value
            self.assert_outputs(network(sample.inputs), sample.outputs)
            tried += 1
        assert tried

    def test_defaults_can_be_set(self, core: Core) -> None:
        """For one device, and with lower precedence for all devices; arguments of compile take precedence over both."""
        core.set_property({"PERF_COUNT": True, "NUM_STREAMS": 3})
        core.set_property(self.plugin_name, {"NUM_STREAMS": 2})
        network = core.compile_model(self.basic.model(), self.device)
        assert (network.get_config("PERF_COUNT"), network.get_config("NUM_STREAMS")) == (True, 2)
        network = core.compile_model(self.basic.model(), self.device, {"NUM_STREAMS": 1, "PERF_COUNT": False})
        assert (network.get_config("PERF_COUNT"), network.get_config("NUM_STREAMS")) == (False, 1)
        assert core.get_property(self.device, "NUM_STREAMS") == 2
        assert Core().get_property(self.device, "NUM_STREAMS") == 0

    def test_wrong_values_are_refused(self, core: Core) -> None:
        """Each message names the property and says what is allowed; no default changes."""
        declared = core.supported_properties(self.device)
        for prop in declared.of(CONFIG):
            before = core.get_property(self.device, prop.name)
            for value in _wrong_values(prop):
                for attempt in (
                    lambda: self.compile(core, self.basic.model(), **{prop.name: value}),  # noqa: B023
                    lambda: core.set_property(self.plugin_name, {"PERF_COUNT": True, prop.name: value}),  # noqa: B023
                    lambda: core.query_model(self.basic.model(), self.device, {prop.name: value}),  # noqa: B023
                ):
                    with pytest.raises(PropertyError) as caught:
                        attempt()
                    assert prop.name in str(caught.value)
                    assert prop.allowed in str(caught.value)
            assert core.get_property(self.device, prop.name) == before
        assert core.get_property(self.device, "PERF_COUNT") is False

    def test_unknown_and_read_only_names_are_refused(self, core: Core, network: ExecutableNetwork) -> None:
        """The message lists the existing names."""
        for attempt in (
            lambda: self.compile(core, self.basic.model(), PERF_COUNTS=True),
            lambda: core.get_property(self.device, "PERF_COUNTS"),
            lambda: network.get_config("PERF_COUNTS"),
            lambda: network.get_property("PERF_COUNTS"),
        ):
            with pytest.raises(PropertyError, match=r"PERF_COUNTS.*did you mean PERF_COUNT\?.*NUM_STREAMS"):
                attempt()
        with pytest.raises(PropertyError, match="NETWORK_NAME"):
            network.get_metric("NETWORK_NAMES")
        with pytest.raises(PropertyError, match=r"FULL_DEVICE_NAME is a read-only metric"):
            self.compile(core, self.basic.model(), FULL_DEVICE_NAME="mine")
        with pytest.raises(PropertyError, match="PERF_COUNT is a config key"):
            network.plugin.get_metric("PERF_COUNT")

    def test_every_device_id_compiles(self, core: Core) -> None:
        """By device string and by DEVICE_ID; an unknown id is refused with a list of the existing ones."""
        sample = self.basic.sample()
        ids = core.get_property(self.device, "AVAILABLE_DEVICES")
        for device_id in ids:
            named = core.compile_model(self.basic.model(), self.with_id(device_id), dict(self.config))
            assert named.get_config("DEVICE_ID") == device_id
            chosen = core.compile_model(self.basic.model(), self.with_id(""), {**self.config, "DEVICE_ID": device_id})
            for network in (named, chosen):
                self.assert_outputs(network(sample.inputs), sample.outputs)
        with pytest.raises(DeviceNotFoundError, match=ids[0]):
            core.compile_model(self.basic.model(), self.with_id("no-such-device"))
        with pytest.raises(DeviceNotFoundError, match=ids[0]):
            core.compile_model(self.basic.model(), self.with_id(""), {"DEVICE_ID": "no-such-device"})


def other_values(network: ExecutableNetwork, folder: Path) -> Iterator[tuple[Property[Any], object]]:
    """A value of each config property that differs from the network's."""
    for declared in network.plugin.declared.of(CONFIG):
        current = network.get_config(declared.name)
        if declared.name == "CACHE_DIR":
            yield declared, str(folder / "cache")
        elif declared.name == "MAX_TENSOR_BYTES" or declared.is_bytes:
            yield declared, 1 << 30  # with the smallest value, every model would be refused
        elif declared.type is bool:
            yield declared, not current
        elif declared.type is str and declared.choices is not None:
            yield from ((declared, choice) for choice in declared.choices if choice != current)
        elif declared.type is int:
            smallest = 0 if declared.minimum is None else int(declared.minimum)
            yield declared, smallest + 1 if smallest == current else smallest


def _wrong_values(declared: Property[Any]) -> Iterator[object]:
    # A number of bytes may be given as text.
    yield from (each for each in _WRONG_TYPES[declared.type] if not (declared.is_bytes and isinstance(each, str)))
    if declared.minimum is not None:
        yield declared.type(declared.minimum) - 1
    if declared.maximum is not None:
        yield declared.type(declared.maximum) + 1
    if declared.choices is not None:
        wrong = "NO SUCH CHOICE"
        yield wrong if declared.type is str else (wrong,)
