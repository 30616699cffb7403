"""Checks of what properties do: metrics that stay, values that are kept, streams, exclusive requests, hints."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from engine.core import Core
from engine.errors import PropertyError, UnsupportedError
from engine.plugin_api import CONFIG, METRIC, ExecutableNetwork, Property
from engine.testing.behaviour.base import DeviceChecks, start_at_gate, start_beside
from engine.testing.behaviour.properties import other_values


class EffectChecks(DeviceChecks):
    """A property has the declared type, keeps its value, and does what it says."""

    area: ClassVar[str] = "properties"

    def test_metrics_have_the_declared_type_each_time(self, core: Core) -> None:
        """Applications may read a metric at any time: it has one type, and one value unless something happens."""
        declared = core.supported_properties(self.device).of(METRIC)
        first = {prop.name: core.get_property(self.device, prop.name) for prop in declared}
        network = self.compile(core, self.basic.model())
        before = {name: network.get_metric(name) for name in network.get_metric("SUPPORTED_METRICS")}
        self.check_usable(network.create_infer_request(), self.basic.sample())
        for prop in declared:
            value = core.get_property(self.device, prop.name)
            is_right = isinstance(value, Mapping) if prop.type is dict else type(value) is prop.type
            assert is_right, f"{prop.name} is a {type(value).__name__}, declared {prop.type.__name__}"
            assert value == first[prop.name], f"{prop.name} changed from {first[prop.name]!r} to {value!r}"
        for name, former in before.items():
            value = network.get_metric(name)
            assert type(value) is type(former), f"{name} changed its type from {type(former)} to {type(value)}"
            assert value == former, f"{name} of the network changed from {former!r} to {value!r}"

    def test_ids_of_devices_stay(self, core: Core) -> None:
        """A device string that is right once is right again, in every core."""
        ids = [core.get_property(self.device, "AVAILABLE_DEVICES") for _ in range(5)]
        ids += [self.make_core().get_property(self.device, "AVAILABLE_DEVICES") for _ in range(2)]
        assert len(set(ids)) == 1, f"AVAILABLE_DEVICES changes from one reading to the next: {ids}"

    def test_every_property_is_described(self, core: Core) -> None:
        """Name, type, mutability, documentation; config keys also have a valid default and say what they allow."""
        for prop in core.supported_properties(self.device):
            assert prop.doc.strip(), f"{prop.name} has no documentation"
            assert prop.mutability in (CONFIG, METRIC), f"{prop.name} is neither a config key nor a metric"
            if prop.mutability is CONFIG:
                assert prop.allowed.strip(), f"{prop.name} does not say what it allows"
                kind = Mapping if prop.type is dict else prop.type
                assert isinstance(prop.default, kind), f"{prop.name} has the default {prop.default!r}"
                assert prop.validate(prop.default) == prop.default, f"the default of {prop.name} is not valid"

    def test_metrics_cannot_be_set(self, core: Core) -> None:
        """A metric is read-only, and the message says so."""
        for prop in core.supported_properties(self.device).of(METRIC):
            before = core.get_property(self.device, prop.name)
            with pytest.raises(PropertyError, match=rf"{prop.name}.*read-only"):
                core.set_property(self.plugin_name, {prop.name: before})

    def test_every_default_takes_effect(self, core: Core, tmp_path: Path) -> None:
        """A default that `set_property` sets holds for the device, and for networks compiled later."""
        keys = {prop.name for prop in core.supported_properties(self.device).of(CONFIG)}
        for prop, value in self._accepted(core, tmp_path):
            fresh = self.make_core()
            fresh.set_property(self.plugin_name, {prop.name: value})
            said = fresh.get_property(self.device, prop.name)
            assert said == value, f"{prop.name} was set to {value!r} and is read as {said!r}"
            config = {name: v for name, v in self.config.items() if name != prop.name}
            network = fresh.compile_model(self.basic.model(), self.device, config)
            got = network.get_config(prop.name)
            assert got == value, f"{prop.name} was set to {value!r}; a network compiled later has {got!r}"
            assert {p.name for p in fresh.supported_properties(self.device).of(CONFIG)} == keys

    def test_every_value_is_kept_by_a_blob(self, core: Core, tmp_path: Path) -> None:
        """An imported network has the value of every key that it was compiled with, unless the import changes it."""
        self.require_export(core)
        sample = self.basic.sample()
        for prop, value in self._accepted(core, tmp_path):
            if prop.is_local:
                continue
            network, blob = self.compile(core, self.basic.model(), **{prop.name: value}), io.BytesIO()
            former = self.compile(core, self.basic.model()).get_config(prop.name)
            network.export_model(blob)
            kept = core.import_model(blob.getvalue(), self.device)
            got = kept.get_config(prop.name)
            assert got == value, f"{prop.name} was exported as {value!r} and imported as {got!r}"
            self.assert_outputs(kept(sample.inputs), sample.outputs)
            try:
                changed = core.import_model(blob.getvalue(), self.device, {prop.name: former}).get_config(prop.name)
            except UnsupportedError as e:
                if prop.name not in str(e):
                    raise
                continue  # values that are compiled into the blob cannot be changed
            assert changed == former, f"{prop.name} was set to {former!r} on import and is {changed!r}"

    def test_id_selects_the_device(self, core: Core) -> None:
        """A network that is compiled for one of several devices runs on that device."""
        if ":" in self.device:
            pytest.skip(f"{self.device} runs on other devices")
        for device_id in core.get_property(self.device, "AVAILABLE_DEVICES"):
            network = core.compile_model(self.basic.model(), self.with_id(device_id), dict(self.config))
            said = network.get_metric("EXECUTION_DEVICES")
            assert said == (f"{self.plugin_name}.{device_id}",), f"compiled for id {device_id}; runs on {said}"

    @pytest.mark.parametrize("streams", [1, 3])
    def test_so_many_streams_run_at_the_same_time(self, core: Core, streams: int) -> None:
        """NUM_STREAMS background inferences of a network run at once, and no more."""
        network = self.compile(core, self.basic.model(), NUM_STREAMS=streams, EXCLUSIVE_ASYNC_REQUESTS=False)
        position = self._position_on_task_executor(network)
        sample = self.basic.sample()
        with self.gated(network, position) as gate:
            requests = [network.create_infer_request() for _ in range(streams + 1)]
        with gate:
            for request in requests:
                start_beside(request, sample.inputs)
            for number in range(streams):
                assert gate.is_reached(self.limit / 2), (
                    f"NUM_STREAMS={streams}, but only {number} inferences run at once"
                )
            is_more = gate.is_reached(self.patience)
            assert not is_more, f"NUM_STREAMS={streams}, but {streams + 1} inferences run at once"
        for request in requests:
            self.eventually(lambda: request.starts > 0, "the inference starts")  # noqa: B023
            request.wait(self.limit)
            self.assert_outputs(request.results, sample.outputs)

    def test_exclusive_requests_never_overlap(self, core: Core) -> None:
        """With EXCLUSIVE_ASYNC_REQUESTS, background inferences of two networks run one after the other."""
        networks = [self.compile(core, self.basic.model(), EXCLUSIVE_ASYNC_REQUESTS=True) for _ in range(2)]
        position = self._position_on_task_executor(networks[0])
        samples = [self.basic.sample(seed) for seed in range(2)]
        (first, gate), (second, other) = [self.gated_request(network, position) for network in networks]
        with gate, other:
            start_at_gate(first, gate, samples[0].inputs)
            start_beside(second, samples[1].inputs)
            assert not other.is_reached(self.patience), "inferences of two networks run at the same time"
            gate.open()
            other.wait_until_reached()
        for request, sample in zip((first, second), samples, strict=True):
            request.wait(self.limit)
            self.assert_outputs(request.results, sample.outputs)

    def test_throughput_takes_as_many_requests_as_latency(self, core: Core) -> None:
        """PERFORMANCE_HINT=THROUGHPUT asks for at least as many concurrent requests as LATENCY."""
        asked = [
            self.compile(core, self.basic.model(), PERFORMANCE_HINT=hint).get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
            for hint in ("LATENCY", "THROUGHPUT")
        ]
        assert asked[0] <= asked[1], f"LATENCY asks for {asked[0]} requests, THROUGHPUT for {asked[1]}"

    def test_profile_is_taken_only_with_perf_count(self, core: Core) -> None:
        """PERF_COUNT decides about each network alone, also after an import that changes it."""
        sample = self.basic.sample()
        networks = {wanted: self.compile(core, self.basic.model(), PERF_COUNT=wanted) for wanted in (False, True)}
        pairs = list(networks.items())
        if core.get_property(self.device, "IMPORT_EXPORT_SUPPORT"):
            for wanted, network in networks.items():
                blob = io.BytesIO()
                network.export_model(blob)
                pairs.append((not wanted, core.import_model(blob.getvalue(), self.device, {"PERF_COUNT": not wanted})))
        for wanted, network in pairs:
            request = network.create_infer_request()
            request.infer(sample.inputs)
            info = request.profiling_info
            assert bool(info.stages) is wanted, f"PERF_COUNT={wanted}, and {len(info.stages)} stages were recorded"
            assert bool(info.nodes) is wanted, f"PERF_COUNT={wanted}, and {len(info.nodes)} nodes were recorded"

    def _position_on_task_executor(self, network: ExecutableNetwork) -> int:
        steps = network.pipeline(network.create_infer_request_impl())
        for position, (executor, _) in enumerate(steps):
            if executor is network.task_executor:
                return position
        pytest.skip(f"{self.device}: no stage runs on the network's task executor")

    def _accepted(self, core: Core, folder: Path) -> list[tuple[Property[object], object]]:
        """One other value for every config key that has one which this machine supports."""
        found: dict[str, tuple[Property[object], object]] = {}
        for prop, value in other_values(self.compile(core, self.basic.model()), folder):
            if prop.name in found or prop.name == "DEVICE_ID":
                continue
            try:
                self.compile(core, self.basic.model(), **{prop.name: value})
            except UnsupportedError:
                continue  # such as an element type that this machine's hardware lacks
            found[prop.name] = prop, value
        assert found, "no config key has another value"
        return list(found.values())
