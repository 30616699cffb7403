"""The plugin that `Core` discovers. It compiles and imports networks, and answers queries."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from engine.errors import UnsupportedError
from engine.ir import Node
from engine.plugin_api import (
    BlobReader,
    Config,
    CoreHandle,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
    RefusalCause,
    RemoteContext,
    Support,
    ThreadExecutor,
)
from engine.properties import MEMORY_BUDGET
from engine_template.context import TemplateContext
from engine_template.properties import TRANSFORMATIONS


class TemplatePlugin(Plugin):
    """A device that evaluates each operation with the reference evaluator: correct, not fast."""

    name = "TEMPLATE"
    version = "0.1.0"
    api_version = 2
    oldest_blob_version = "0.1"
    properties = (MEMORY_BUDGET, TRANSFORMATIONS)

    def __init__(self, core: CoreHandle) -> None:
        super().__init__(core)
        # Shared by all networks of the device. Here it is the device itself: one thread that runs one program after the
        # other, like a command queue. The thread starts with the first asynchronous inference.
        self.device_queue = ThreadExecutor("TEMPLATE:device")

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A new network from a model. `model` belongs to the user: the network clones what it changes."""
        from engine_template.network import TemplateNetwork  # with all that compiles: listing devices does without it

        return TemplateNetwork.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network from the sections of an export; the engine has already checked the manifest."""
        from engine_template.network import TemplateNetwork

        return TemplateNetwork.imported(self, config, blob)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """The support of each operation, by friendly name."""
        operations = [n for n in model.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "Result")]
        return QueryResult({node.friendly_name: support_of(node) for node in operations})

    def create_context(self, device: str, config: Config, handles: Mapping[str, object]) -> RemoteContext:
        """A context, for tensors that stay in the device's memory. Networks need not know it when they are compiled: if
        their kernels belonged to a context, `compile_in_context` would also be overridden."""
        return TemplateContext(self, device, handles)

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        match name:
            case "FULL_DEVICE_NAME":
                return f"Reference evaluator on {platform.processor() or platform.machine()}"
            case "OPTIMIZATION_CAPABILITIES":
                return ("FP32", "FP16", "BF16", "INT8")
            case "IS_REFERENCE":  # a real device omits this
                return True
        return None


def support_of(node: Node) -> Support:
    """Whether the device has kernels for one operation. A real device also checks types, shapes and attributes."""
    from engine.ops.reference import compile_node

    try:
        compile_node(node)
    except UnsupportedError as e:
        return Support.refused(RefusalCause.OP, str(e))
    return Support.native()
