"""The executable network: one device after the other; each inference runs on one of them."""

from __future__ import annotations

import io
import json
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence

from engine.errors import BlobCorruptError, BlobError, BlobFormatError
from engine.plugin_api import (
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    MemoryForecast,
    Model,
    Pipeline,
    Plugin,
    Signature,
    SyncInferRequest,
)
from engine.properties import CHOICE_IS_FINAL, DEVICE_PRIORITIES, OPTIMAL_NUMBER_OF_INFER_REQUESTS, PERFORMANCE_HINT
from engine_auto.choices import Choices
from engine_auto.devices import DeviceList
from engine_auto.properties import CANDIDATES, CHOICE_REASON, MEASURE_SECONDS, OWN_METRICS
from engine_auto.request import AutoInferRequest, CurrentExecutor
from engine_auto.selection import Selection
from engine_auto.sequences import SequenceSelection

_DEVICE = "device"
_NETWORK = "network"


class AutoNetwork(ExecutableNetwork):
    """Runs each inference on the device of EXECUTION_DEVICES at its beginning."""

    metrics = OWN_METRICS
    selection: Selection

    @classmethod
    def compiled(cls, plugin: Plugin, config: Config, model: Model, devices: DeviceList) -> AutoNetwork:
        """A network that is ready on one device. If there may be others, a copy of the model is kept for them."""
        network = cls(plugin, config, model)
        is_alone = devices.is_stated and len(devices.names) == 1
        kept = model
        if not is_alone:
            kept = model.clone()
            plugin.core.note_copy(kept, model)
        kind = SequenceSelection if network.signature.states else Selection
        network._begin(
            kind(
                network.signature.network,
                plugin.core,
                kept,
                devices,
                config[PERFORMANCE_HINT.name],
                config[MEASURE_SECONDS.name],
                Choices(config, model, devices.names),
            )
        )
        network.selection.start()
        if is_alone:
            network.selection.forget_model()
        network.loaded_from_cache = network.selection.was_cached
        return network

    @classmethod
    def imported(cls, plugin: Plugin, config: Config, blob: BlobReader) -> AutoNetwork:
        """The network of the sections of `export_sections`, which has one device.

        Raises `BlobError` if the device is not in the configuration, and the errors of its import.
        """
        network = cls(plugin, config, blob.manifest)
        try:
            name = json.loads(bytes(blob.section(_DEVICE)))["name"]
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise BlobFormatError(f"the section with the name of the device is malformed: {e}") from e
        listed = config[DEVICE_PRIORITIES.name]
        if listed and name not in listed.split(","):
            raise BlobError(
                f"the blob is for {name}, which is not among the devices {listed}; import it as {plugin.name}, or "
                "compile the model again"
            )
        device = DeviceList(plugin.name, plugin.core, config).device(name)
        inner = plugin.core.import_model(blob.nested(_NETWORK), name, device.config)
        _check_equal(network.signature, inner.signature)
        kind = SequenceSelection if network.signature.states else Selection
        network._begin(kind(network.signature.network, plugin.core, None, None))
        network.selection.take(device, inner, "the blob is for it")
        return network

    def _begin(self, selection: Selection) -> None:
        self.selection = selection
        self.remarks = selection.remarks  # a device may also be given up later
        self._executor = CurrentExecutor(selection)
        weakref.finalize(self, selection.close).atexit = False

    def wait_for_choice(self, timeout: float | None = None) -> bool:
        """Wait until the device is final; False if `timeout` (s) passes before.

        False at once if the model leaves lengths open and no inference has begun: the devices are measured with the
        shapes of the first one.
        """
        return self.selection.wait(timeout)

    def parts(self) -> Mapping[str, ExecutableNetwork]:
        """The network that is used now."""
        return {"network": self.selection.now()[1]}

    def create_infer_request_impl(self) -> SyncInferRequest:
        """Make a request; each of its inferences runs on the device that is chosen then."""
        return AutoInferRequest(self, self.selection)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """All stages on a thread for the device that is used when the inference is started."""
        return [(self._executor, request.start_pipeline), (self._executor, request.infer_postprocess)]

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the name and the blob of the device that is chosen; waits while devices are compiled for and measured.

        Raises `UnsupportedError` if the device cannot export.
        """
        self.selection.wait()
        candidate, network = self.selection.now()
        stream = io.BytesIO()
        network.export_model(stream)
        writer.add_section(_DEVICE, json.dumps({"name": candidate.name}).encode())
        writer.add_section(_NETWORK, stream.getbuffer())

    def metric(self, name: str) -> object:
        """The metrics of the choice, and of the network that is used now."""
        match name:
            case CANDIDATES.name:
                return self.selection.described()
            case CHOICE_REASON.name:
                return self.selection.reason
            case CHOICE_IS_FINAL.name:
                return self.selection.is_final
            case "EXECUTION_DEVICES" | OPTIMAL_NUMBER_OF_INFER_REQUESTS.name:
                return self.selection.now()[1].get_metric(name)
        return None

    def memory(self) -> dict[str, int]:
        """The sum of what the networks hold that exist now."""
        total: Counter[str] = Counter()
        for network in self.selection.networks():
            total.update(network.memory_statistics())
        return dict(total)

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """The memory of the network that is used now; while devices are compared, others exist beside it."""
        return self.selection.now()[1].forecast_memory(shapes)

    def release_caches(self) -> None:
        """Have the networks release their memory."""
        for network in self.selection.networks():
            network.release_memory()

    def prepare(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Have the networks that exist now prepare."""
        for network in self.selection.networks():
            network.prepare(shapes)


def _check_equal(outer: Signature, inner: Signature) -> None:
    """Raise `BlobCorruptError` unless the ports are equal, since requests pass tensors on unchecked."""
    kinds = (("inputs", outer.inputs, inner.inputs), ("outputs", outer.outputs, inner.outputs))
    for what, ours, theirs in (*kinds, ("variables", outer.states, inner.states)):
        if [each.to_json() for each in ours] != [each.to_json() for each in theirs]:
            raise BlobCorruptError(f"the {what} of the blob do not match the network in it")
