"""The executable network: a model that OpenVINO has compiled, and the graph that its blob has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UnsupportedError
from engine.lowering import GraphNetwork, read_graph
from engine.passes.runtime_info import is_operation
from engine.plugin_api import BlobManifest, BlobReader, BlobWriter, Config, Model, SyncInferRequest
from engine.properties import DEVICE_ID, EXECUTION_PRECISION, NUM_STREAMS
from engine_openvino.refusals import refusal
from engine_openvino.request import OpenvinoInferRequest
from engine_openvino.runtime import Compiled, device_name
from engine_openvino.stored import restored, store

if TYPE_CHECKING:
    from engine_openvino.plugin import OpenvinoPlugin


class OpenvinoNetwork(GraphNetwork["OpenvinoPlugin"]):
    """A network that OpenVINO runs; it is exported as its graph, which an import compiles again."""

    metrics = (EXECUTION_PRECISION,)
    compiled_model: Compiled
    device: str
    precision: str
    has_direct_outputs: bool

    @classmethod
    def compiled(cls, plugin: OpenvinoPlugin, config: Config, model: Model) -> OpenvinoNetwork:
        """Compile the user's model. Raises `UnsupportedError` for an operation that OpenVINO does not run."""
        graph, device = model.clone(), _device(plugin, config)
        return cls._made(plugin, config, model, graph, device, _compiled(plugin, config, graph, device))

    @classmethod
    def imported(cls, plugin: OpenvinoPlugin, config: Config, blob: BlobReader) -> OpenvinoNetwork:
        """Use an exported network's compiled model, or else compile its graph."""
        graph, device = read_graph(blob), _device(plugin, config)
        compiled = restored(blob, plugin.runtime, device, config) or _compiled(plugin, config, graph, device)
        return cls._made(plugin, config, blob.manifest, graph, device, compiled)

    @classmethod
    def _made(
        cls,
        plugin: OpenvinoPlugin,
        config: Config,
        source: Model | BlobManifest,
        graph: Model,
        device: str,
        compiled: Compiled,
    ) -> OpenvinoNetwork:
        streams = int(compiled.network.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        if streams > 1 and not config[NUM_STREAMS]:  # as many inferences in flight as OpenVINO has streams
            config = config.merged({NUM_STREAMS.name: streams})
        network = cls(plugin, config, source)
        network.graph, network.device, network.compiled_model = graph, device, compiled
        network.precision = compiled.network.get_property("INFERENCE_PRECISION_HINT").to_string()
        network._compare_precision()
        network.has_direct_outputs = compiled.has_direct_outputs()
        return network

    def metric(self, name: str) -> object:
        """The precision, by OpenVINO's word."""
        return self.precision if name == EXECUTION_PRECISION.name else None

    def _compare_precision(self) -> None:
        """Raise `UnsupportedError` if OpenVINO computes in less than f32 unasked; tell if it does not as asked."""
        asked, made = self.config["INFERENCE_PRECISION_HINT"], self.precision
        if made == asked:
            return
        if asked == "f32":
            raise UnsupportedError(
                f"OpenVINO's {self.device} computes in {made}, not in f32; accept it: INFERENCE_PRECISION_HINT={made}"
            )
        self.remarks.append(f"INFERENCE_PRECISION_HINT is {asked}, and is ignored: OpenVINO computes in {made} here")

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the graph, and with EXPORT_COMPILED what OpenVINO has compiled."""
        super().export_sections(writer)
        if self.config["EXPORT_COMPILED"]:
            store(writer, self.compiled_model, self.plugin.runtime, self.device, self.config)

    def create_infer_request_impl(self) -> SyncInferRequest:
        """A request with one of OpenVINO's."""
        nodes = list(filter(is_operation, self.graph.ordered_nodes()))
        # OpenVINO names a node that gives an output after the output.
        producers = {value.name: node for node in nodes for value in node.outputs}
        named = {result.friendly_name: producers.get(result.input_value(0).name) for result in self.graph.results}
        aliases = {name: node for name, node in named.items() if node is not None}
        operators = {node.friendly_name: node for node in nodes} if self.is_profiling else {}
        return OpenvinoInferRequest(
            self,
            self.plugin.runtime,
            self.compiled_model,
            aliases | operators,
            takes_wide=bool(self.config["ALLOW_NARROW_TYPES"]),
            writes_in_place=not self.has_direct_outputs,
        )


def _device(plugin: OpenvinoPlugin, config: Config) -> str:
    return device_name(plugin.resolve_device_id(config[DEVICE_ID]))


def _compiled(plugin: OpenvinoPlugin, config: Config, graph: Model, device: str) -> Compiled:
    runtime, is_narrow = plugin.runtime, config["ALLOW_NARROW_TYPES"]
    for node in filter(is_operation, graph.ordered_nodes()):
        refused = refusal(node, runtime, is_narrow=is_narrow)
        if refused is not None:
            raise UnsupportedError(f"OPENVINO cannot run {node}: {refused.reason}")
    try:
        return runtime.compile(graph, device, runtime.settings(device, config))
    except UnsupportedError as e:
        plugin.query_model(graph, config).require_supported("OPENVINO")
        raise UnsupportedError(f"OPENVINO cannot run model `{graph.name}`: {e}") from e
