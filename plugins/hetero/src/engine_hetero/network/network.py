"""The executable network: a network per subgraph, and their connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from engine.ir.sizes import known_bytes
from engine.plugin_api import (
    BlobManifest,
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    Executor,
    MemoryForecast,
    Model,
    Pipeline,
    Plugin,
    SyncInferRequest,
    ThreadExecutor,
    UnsupportedError,
    shared_executor,
)
from engine.properties import DEVICE_ID, EXCLUSIVE_ASYNC_REQUESTS, OPTIMAL_NUMBER_OF_INFER_REQUESTS
from engine_hetero.device_list import DeviceList
from engine_hetero.network.blob_parts import read_parts, write_parts
from engine_hetero.network.dataflow import Dataflow
from engine_hetero.network.fitting import require_fitting
from engine_hetero.network.request import HeteroInferRequest
from engine_hetero.properties import HOST_TRANSFERS, SUBGRAPH_COUNT, SUBGRAPH_DEVICES, SUBGRAPH_LOWER_BOUND
from engine_hetero.wiring.certificate import Certificate
from engine_hetero.wiring.wiring import Wiring


class HeteroNetwork(ExecutableNetwork):
    """Holds the parts' networks; a blob also contains the wiring and the certificate."""

    metrics = (SUBGRAPH_COUNT, SUBGRAPH_LOWER_BOUND, SUBGRAPH_DEVICES, HOST_TRANSFERS)
    dataflow: Dataflow
    certificate: Certificate

    @classmethod
    def compiled(
        cls,
        plugin: Plugin,
        config: Config,
        model: Model,
        wiring: Wiring,
        networks: Sequence[ExecutableNetwork],
        certificate: Certificate,
    ) -> HeteroNetwork:
        """Assemble the network of `model` from the compiled networks of its parts."""
        network = cls(plugin, config, model)
        network.certificate = certificate
        network._connect(wiring, networks)
        return network

    @classmethod
    def imported(cls, plugin: Plugin, config: Config, blob: BlobReader, devices: DeviceList) -> HeteroNetwork:
        """Load the sections of `export_sections`, after verifying the certificate."""
        manifest: BlobManifest = blob.manifest
        network = cls(plugin, config, manifest)
        wiring, network.certificate, networks = read_parts(plugin.core, blob, devices, network.signature)
        require_fitting(devices.budgets, [part.device for part in wiring.parts], networks)
        network._connect(wiring, networks)
        return network

    def _connect(self, wiring: Wiring, networks: Sequence[ExecutableNetwork]) -> None:
        """The step shared by compiling and importing."""
        executors = self._device_executors(networks, wiring)
        self.dataflow = Dataflow.of(wiring, networks, [executors[part.device] for part in wiring.parts])
        self._networks = tuple(networks)

    @property
    def graph(self) -> tuple[Model, ...]:
        """The parts' graphs, in order; an imported part reads its own then."""
        return tuple(network.graph for network in self._networks)

    def _device_executors(self, networks: Sequence[ExecutableNetwork], wiring: Wiring) -> Mapping[str, Executor]:
        """For each device, an executor of the network, with as many threads as the device's networks can use."""
        executors: dict[str, Executor] = {}
        for device in dict.fromkeys(part.device for part in wiring.parts):
            own = [n for n, part in zip(networks, wiring.parts, strict=True) if part.device == device]
            if self.config[EXCLUSIVE_ASYNC_REQUESTS]:
                device_id = own[0].plugin.resolve_device_id(own[0].config[DEVICE_ID])
                executors[device] = shared_executor(f"{own[0].plugin.name}.{device_id}")
            else:
                executors[device] = ThreadExecutor(f"{self.plugin.name}:{self.name}:{device}", _requests_of(own))
        return executors

    def parts(self) -> Mapping[str, ExecutableNetwork]:
        """The networks of the parts, as "part0" and so on, in the order of the wiring."""
        return {f"part{number}": network for number, network in enumerate(self.dataflow.networks)}

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request, with one request of every part."""
        return HeteroInferRequest(self, self.dataflow)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """One stage per subgraph, on its device's executor; pre- and postprocessing run with the nearest one."""
        assert isinstance(request, HeteroInferRequest)
        executors = self.dataflow.executors or (self.task_executor,)
        parts = [(executor, request.part_stage(p)) for p, executor in enumerate(self.dataflow.executors)]
        parts = parts or [(self.task_executor, request.start_pipeline)]
        return [(executors[0], request.infer_preprocess), *parts, (executors[-1], request.infer_postprocess)]

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the wiring, the certificate, and each part's blob."""
        write_parts(writer, self.dataflow, self.certificate)

    def metric(self, name: str) -> object:
        """The metrics of the division; the optimal number of requests is combined over all devices."""
        parts = self.dataflow.wiring.parts
        match name:
            case SUBGRAPH_COUNT.name:
                return len(parts)
            case SUBGRAPH_LOWER_BOUND.name:
                return self.certificate.lower_bound
            case SUBGRAPH_DEVICES.name:
                return tuple(part.device for part in parts)
            case "EXECUTION_DEVICES":
                return tuple(dict.fromkeys(part.device for part in parts))
            case HOST_TRANSFERS.name:
                return _transfers(self.dataflow)
            case OPTIMAL_NUMBER_OF_INFER_REQUESTS.name:
                networks = self.dataflow.networks
                devices = dict.fromkeys(part.device for part in parts)
                return (
                    sum(
                        _requests_of([n for n, p in zip(networks, parts, strict=True) if p.device == device])
                        for device in devices
                    )
                    or None
                )
        return None

    def memory(self) -> dict[str, int]:
        """The sum of what the networks of the subgraphs hold."""
        total: Counter[str] = Counter()
        for network in self.dataflow.networks:
            total.update(network.memory_statistics())
        return dict(total)

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """The sum of the networks of the subgraphs, whose inputs are the network's or outputs of other subgraphs.

        Raises `UnsupportedError` if a subgraph has inputs of unknown lengths: what reaches it follows from what the
        other subgraphs compute.
        """
        parts = {}
        for number, network in enumerate(self.dataflow.networks):
            known = [known_bytes(port.type) for port in (*network.inputs, *network.outputs)]
            if None in known:
                device = self.dataflow.wiring.parts[number].device
                raise UnsupportedError(
                    f"{self.name}: the memory of subgraph {number} on {device} is not known, since only an inference "
                    "knows the lengths of its values; give the model's inputs known shapes before it is compiled"
                )
            parts[f"part{number}"] = network.memory_forecast()
        own = [sum(known_bytes(port.type) or 0 for port in ports) for ports in (self.inputs, self.outputs)]
        inputs, outputs = own
        passed = max(0, sum(part.outputs for part in parts.values()) - outputs)
        states = sum(known_bytes(state.after.type) or 0 for state in self.signature.states)
        return MemoryForecast.of_parts(parts, inputs=inputs, outputs=outputs, states=states, passed=passed)

    def release_caches(self) -> None:
        """Have the networks of the subgraphs release their memory."""
        for network in self.dataflow.networks:
            network.release_memory()


def _transfers(dataflow: Dataflow) -> dict[str, dict[str, int]]:
    found = {}
    for network, part in zip(dataflow.networks, dataflow.wiring.parts, strict=True):
        if network.context is not None:
            moved = network.context.transfers
            found[part.device] = {"to_device": moved.to_device, "to_host": moved.to_host}
    return found


def _requests_of(networks: Sequence[ExecutableNetwork]) -> int:
    """The number of requests that keeps a device busy with these networks."""
    return max(int(network.get_metric(OPTIMAL_NUMBER_OF_INFER_REQUESTS.name)) for network in networks)
