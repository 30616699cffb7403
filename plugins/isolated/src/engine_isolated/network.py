"""The executable network: the network of another device, in another process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from engine.errors import DeviceError
from engine.plugin_api import (
    BlobManifest,
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    Executor,
    Model,
    NodeCounts,
    Pipeline,
    SyncInferRequest,
    ThreadExecutor,
)
from engine.properties import EXCLUSIVE_ASYNC_REQUESTS, NUM_STREAMS, OPTIMAL_NUMBER_OF_INFER_REQUESTS
from engine_isolated.memory import SharedMemory
from engine_isolated.properties import DEVICE_METRICS, OWN_METRICS, PROCESS_STATISTICS
from engine_isolated.request import IsolatedInferRequest
from engine_isolated.supervisor import Order, Supervisor
from engine_isolated.target import Target

NETWORK: Final = "network"
"""The section with the blob of the device."""


class IsolatedNetwork(ExecutableNetwork):
    """Has the inputs and outputs of the user's model; each inference runs in the process of the network."""

    metrics = OWN_METRICS
    supervisor: Supervisor
    _facts: Mapping[str, Any]

    @classmethod
    def compiled(cls, plugin: Any, config: Config, model: Model, target: Target) -> Self:
        """Have a process compile the model, which is kept for the next process. Raises the errors of the device."""
        network = cls(plugin, config, model)
        from engine_isolated.models import extensions_of, shared_model  # which a network from a blob does not need

        additions = target.additions(extensions_of(model))
        shared, places = shared_model(model)
        arguments = {**target.arguments, "model": places}
        network._begin(target, Order(target.device, additions, "compile", shared, arguments))
        return network

    @classmethod
    def imported(cls, plugin: Any, config: Config, blob: BlobReader, target: Target) -> Self:
        """Have a process import the blob in the section of `export_sections`, which is kept for the next process."""
        manifest: BlobManifest = blob.manifest
        network = cls(plugin, config, manifest)
        data = memoryview(blob.section(NETWORK)).cast("B")
        arguments = {**target.arguments, "size": data.nbytes, "is_trusted": blob.is_trusted}
        order = Order(
            target.device,
            target.additions(network.extensions),
            "import",
            SharedMemory.of([data], data.nbytes),
            arguments,
        )
        network._begin(target, order)
        return network

    def _begin(self, target: Target, order: Order) -> None:
        where = self.signature.network
        self.supervisor = Supervisor(where, order, target.bounds)
        self._facts = self.supervisor.start(self.signature)
        weakref.finalize(self, self.supervisor.close).atexit = False
        self.supervisor.require_room()
        self.loaded_from_cache = self._facts["is_cached"]
        self.remarks += self._facts["summary"]["fallbacks"]
        if self.config[NUM_STREAMS] or self.config[EXCLUSIVE_ASYNC_REQUESTS]:
            self._executor: Executor = self.task_executor
        else:
            count = self._facts["metrics"][OPTIMAL_NUMBER_OF_INFER_REQUESTS.name]
            self._executor = ThreadExecutor(f"{self.plugin.name}:{self.name}", count)

    def create_infer_request_impl(self) -> SyncInferRequest:
        """Make a request. It refers to the supervisor, not to the network."""
        return IsolatedInferRequest(self, self.supervisor)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """All stages on one of NUM_STREAMS threads, or of as many as the device runs inferences at once."""
        return [(self._executor, request.start_pipeline), (self._executor, request.wait_pipeline)]

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the device's blob. Raises `UnsupportedError` if the device cannot export."""
        self.supervisor.require(_never)
        answer = self.supervisor.ask("export")
        if answer is None:
            raise DeviceError(f"{self.signature.network}: its process has ended; export it again")
        size, fds = answer
        if len(fds) != 1 or not isinstance(size, int):
            for fd in fds:
                os.close(fd)
            raise DeviceError(f"{self.signature.network}: its process sent no blob")
        shared = SharedMemory.received(fds[0], size)
        shared.close_fd()
        writer.add_section(NETWORK, shared.buffer)

    def metric(self, name: str) -> object:
        """The metrics of the process, and those of the network in it that were told when it was made."""
        match name:
            case PROCESS_STATISTICS.name:
                return self.supervisor.statistics()
            case DEVICE_METRICS.name:
                answer = self.supervisor.ask("metrics")
                return {} if answer is None else answer[0]
        return self._facts["metrics"].get(name)

    def node_counts(self) -> NodeCounts:
        """The counts of the device's network."""
        summary = self._facts["summary"]
        return NodeCounts(*(summary[name] for name in ("nodes", "reference_nodes", "work", "reference_work")))

    def memory(self) -> dict[str, int]:
        """What the device's network holds in its process, if that runs."""
        answer = self.supervisor.ask("memory")
        return {} if answer is None else dict(answer[0])

    def release_caches(self) -> None:
        """Have the device's network release its memory."""
        self.supervisor.ask("release")

    def prepare(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Have the device's network prepare. Raises `InputError`."""
        self.supervisor.ask("prepare", shapes=list(shapes))


def _never() -> None:
    """Nothing ends an export early."""
