"""The executable network: a model compiled for the device, shared by all of its requests."""

from __future__ import annotations

from engine.onnx import join_model, split_model
from engine.plugin_api import (
    BlobManifest,
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    Model,
    Pipeline,
    Plugin,
    SyncInferRequest,
)
from engine_template.program import Program, map_to_device
from engine_template.properties import STEP_COUNT, TRANSFORMATIONS
from engine_template.request import TemplateInferRequest
from engine_template.transform import transform_network

GRAPH = "graph"
WEIGHTS = "weights/"


class TemplateNetwork(ExecutableNetwork):
    """Compiling is three steps, by name: `transform_network`, `map_to_device`, `fill_weights`."""

    metrics = (STEP_COUNT,)
    program: Program

    @classmethod
    def compiled(cls, plugin: Plugin, config: Config, model: Model) -> TemplateNetwork:
        """Compile the user's model. An operation without kernels raises `UnsupportedError` when it is mapped."""
        network = cls(plugin, config, model)
        graph = transform_network(model) if config[TRANSFORMATIONS.name] else model.clone()
        network.load(graph)
        return network

    @classmethod
    def imported(cls, plugin: Plugin, config: Config, blob: BlobReader) -> TemplateNetwork:
        """Take up an exported network: its graph is transformed already. Weights are used where the blob holds them."""
        manifest: BlobManifest = blob.manifest
        network = cls(plugin, config, manifest)
        network.load(join_model(bytes(blob.section(GRAPH)), lambda name: blob.section(WEIGHTS + name)))
        return network

    def load(self, graph: Model) -> None:
        """The steps that compiling and importing share."""
        self.graph = graph
        self.program = map_to_device(graph)
        self.program.fill_weights(graph)

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request. It gets the program, not the network: a cycle would delay freeing both."""
        return TemplateInferRequest(self, self.program)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """Which executor runs which stage of an asynchronous request.

        Host stages run on the network's task executor and device stages on the device's queue, so while the device
        computes for one request the host prepares another. A device whose requests are one stage leaves this out.
        """
        host = self.task_executor
        device = self.plugin.device_queue  # type: ignore[attr-defined]
        return [
            (host, request.infer_preprocess),
            (device, request.start_pipeline),
            (device, request.wait_pipeline),
            (host, request.infer_postprocess),
        ]

    def export_sections(self, writer: BlobWriter) -> None:
        """Write what `imported` reads; configuration, inputs and outputs are in the manifest already."""
        skeleton, weights = split_model(self.graph)
        writer.add_section(GRAPH, skeleton)
        for name, _, data in weights:
            writer.add_section(WEIGHTS + name, data)

    def metric(self, name: str) -> object:
        """The network's own metrics; the engine answers the common ones."""
        return len(self.program.steps) if name == STEP_COUNT.name else None
