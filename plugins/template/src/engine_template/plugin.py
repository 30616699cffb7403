"""The plugin: what `Core` discovers. It compiles, imports and answers what the device supports."""

from __future__ import annotations

import platform

from engine.errors import UnsupportedError
from engine.ir import Node
from engine.ops.reference import compile_node
from engine.plugin_api import (
    API_VERSION,
    BlobReader,
    Config,
    CoreHandle,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
    RefusalCause,
    Support,
    ThreadExecutor,
)
from engine_template.network import TemplateNetwork
from engine_template.properties import TRANSFORMATIONS


class TemplatePlugin(Plugin):
    """A device that evaluates each operation with the reference evaluator: right rather than fast."""

    name = "TEMPLATE"
    version = "0.1.0"
    api_version = API_VERSION  # a plugin outside this repository writes the number it was made for: 1
    properties = (TRANSFORMATIONS,)

    def __init__(self, core: CoreHandle) -> None:
        super().__init__(core)
        # What all networks of the device share. Here it is the device itself: one thread that runs one program
        # after the other, as a command queue would. Its thread starts with the first asynchronous inference.
        self.device_queue = ThreadExecutor("TEMPLATE:device")

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A new network from a model. `model` belongs to the user: the network clones what it changes."""
        return TemplateNetwork.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network from what `TemplateNetwork.export_sections` wrote; the engine has checked the manifest."""
        return TemplateNetwork.imported(self, config, blob)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """Which operations can run here, by friendly name."""
        operations = [n for n in model.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "Result")]
        return QueryResult({node.friendly_name: support_of(node) for node in operations})

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        match name:
            case "FULL_DEVICE_NAME":
                return f"Reference evaluator on {platform.processor() or platform.machine()}"
            case "OPTIMIZATION_CAPABILITIES":
                return ("FP32", "FP16", "BF16", "INT8")
        return None


def support_of(node: Node) -> Support:
    """Whether the device has kernels for one operation. A real device looks at types, shapes and attributes too."""
    try:
        compile_node(node)
    except UnsupportedError as e:
        return Support.refused(RefusalCause.OP, str(e))
    return Support.native()
