"""The executable network: a model compiled for the device, shared by all of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.lowering import GraphNetwork, is_static, read_graph
from engine.plugin_api import (
    BlobManifest,
    BlobReader,
    Config,
    MemoryForecast,
    Model,
    Pipeline,
    SyncInferRequest,
)
from engine.properties import MEMORY_BUDGET, NO_LIMIT, NUM_STREAMS
from engine_template.memory import Budget, forecast
from engine_template.program import Program, map_to_device
from engine_template.properties import OPERATION_COUNT, TRANSFORMATIONS
from engine_template.request import TemplateInferRequest
from engine_template.transform import transform_network

if TYPE_CHECKING:
    from engine.ir import Node
    from engine_template.plugin import TemplatePlugin


class TemplateNetwork(GraphNetwork["TemplatePlugin"]):
    """Compiling is three steps, by name: `transform_network`, `map_to_device`, `fill_weights`.

    As a `GraphNetwork`, it is exported as its graph; a device with compiled kernels also exports these.
    """

    metrics = (OPERATION_COUNT,)
    program: Program

    @classmethod
    def compiled(cls, plugin: TemplatePlugin, config: Config, model: Model) -> TemplateNetwork:
        """Compile the user's model. Raises `UnsupportedError` for an operation without a kernel."""
        network = cls(plugin, config, model)
        graph = transform_network(model) if config[TRANSFORMATIONS.name] else model.clone()
        network.load(graph)
        return network

    @classmethod
    def imported(cls, plugin: TemplatePlugin, config: Config, blob: BlobReader) -> TemplateNetwork:
        """Load an exported network: its graph is already transformed. Weights are used in place in the blob."""
        manifest: BlobManifest = blob.manifest
        network = cls(plugin, config, manifest)
        network.load(read_graph(blob))
        return network

    def load(self, graph: Model) -> None:
        """The steps shared by compiling and importing."""
        self.graph = graph
        self.program = map_to_device(graph)
        self.program.fill_weights(graph)
        self.budget: Budget | None = None
        if (budget := self.config[MEMORY_BUDGET]) < NO_LIMIT and not is_static(graph):
            streams = self.config[NUM_STREAMS] or 1
            self.budget = Budget(self.name, budget, self.signature, streams, graph, self.program)

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request. It refers to the program, not the network: a reference cycle would delay freeing both."""
        return TemplateInferRequest(self, self.program, self.budget)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """The stages of an asynchronous request, each with its executor.

        Host stages run on the network's task executor and device stages on the device's queue, so while the device
        computes for one request the host prepares another. A device whose requests have a single stage omits this.
        """
        host = self.task_executor
        device = self.plugin.device_queue
        return [
            (host, request.infer_preprocess),
            (device, request.start_pipeline),
            (device, request.wait_pipeline),
            (host, request.infer_postprocess),
        ]

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """What the evaluator keeps: the constants, and the values that are still to be read."""
        constants = (self.program.memory[slot] for slot in self.program.constants)
        return forecast(self.signature, self.config[NUM_STREAMS] or 1, self.graph, constants, shapes)

    def is_reference(self, node: Node) -> bool:
        """All operations, since evaluating is what the device does."""
        return True

    def metric(self, name: str) -> object:
        """The network's own metrics; the engine answers the common ones."""
        return len(self.program.operations) if name == OPERATION_COUNT.name else None
