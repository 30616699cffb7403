"""The executable network: a model that OpenVINO has compiled, and the graph that its blob has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UnsupportedError
from engine.lowering import GraphNetwork, read_graph
from engine.passes.runtime_info import is_operation
from engine.plugin_api import BlobManifest, BlobReader, Config, Model, SyncInferRequest
from engine.properties import DEVICE_ID, NUM_STREAMS
from engine_openvino.refusals import refusal
from engine_openvino.request import OpenvinoInferRequest
from engine_openvino.runtime import Compiled, device_name

if TYPE_CHECKING:
    from engine_openvino.plugin import OpenvinoPlugin


class OpenvinoNetwork(GraphNetwork["OpenvinoPlugin"]):
    """A network that OpenVINO runs; it is exported as its graph, which an import compiles again."""

    compiled_model: Compiled
    has_direct_outputs: bool

    @classmethod
    def compiled(cls, plugin: OpenvinoPlugin, config: Config, model: Model) -> OpenvinoNetwork:
        """Compile the user's model. Raises `UnsupportedError` for an operation that OpenVINO does not run."""
        return cls._made(plugin, config, model, model.clone())

    @classmethod
    def imported(cls, plugin: OpenvinoPlugin, config: Config, blob: BlobReader) -> OpenvinoNetwork:
        """Compile an exported network's graph."""
        return cls._made(plugin, config, blob.manifest, read_graph(blob))

    @classmethod
    def _made(
        cls, plugin: OpenvinoPlugin, config: Config, source: Model | BlobManifest, graph: Model
    ) -> OpenvinoNetwork:
        runtime, is_narrow = plugin.runtime, config["ALLOW_NARROW_TYPES"]
        for node in filter(is_operation, graph.ordered_nodes()):
            refused = refusal(node, runtime, is_narrow=is_narrow)
            if refused is not None:
                raise UnsupportedError(f"OPENVINO cannot run {node}: {refused.reason}")
        device = device_name(plugin.resolve_device_id(config[DEVICE_ID]))
        try:
            compiled = runtime.compile(graph, device, runtime.settings(device, config))
        except UnsupportedError as e:
            plugin.query_model(graph, config).require_supported("OPENVINO")
            raise UnsupportedError(f"OPENVINO cannot run model `{graph.name}`: {e}") from e
        streams = int(compiled.network.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        if streams > 1 and not config[NUM_STREAMS]:  # as many inferences in flight as OpenVINO has streams
            config = config.merged({NUM_STREAMS.name: streams})
        network = cls(plugin, config, source)
        network.graph, network.compiled_model = graph, compiled
        network.has_direct_outputs = compiled.has_direct_outputs()
        return network

    def create_infer_request_impl(self) -> SyncInferRequest:
        """A request with one of OpenVINO's."""
        nodes = filter(is_operation, self.graph.ordered_nodes()) if self.is_profiling else ()
        operators = {node.friendly_name: node.op_type for node in nodes}
        return OpenvinoInferRequest(
            self,
            self.plugin.runtime,
            self.compiled_model,
            operators,
            takes_wide=bool(self.config["ALLOW_NARROW_TYPES"]),
            writes_in_place=not self.has_direct_outputs,
        )
