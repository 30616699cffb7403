"""`GraphNetwork`: a network that is exported as its transformed graph and its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.errors import BlobFormatError
from engine.ir import Constant, Model, Node
from engine.ir.walk import all_nodes
from engine.onnx import join_model, split_model
from engine.ops.cost import evaluation_time
from engine.ops.origin import extension_of
from engine.passes.runtime_info import is_operation
from engine.plugin_api import BlobReader, BlobWriter, ExecutableNetwork, NodeCounts, PluginT

EXTENSIONS: Final = "extensions"
"""The requirement that lists the extensions of a blob; see `engine.extensions`."""
GRAPH: Final = "graph"
"""The section with the graph, without its weights."""
WEIGHTS: Final = "weights/"
"""The prefix of the names of weight sections."""


class GraphNetwork(ExecutableNetwork[PluginT]):
    """A network that can be rebuilt from its `graph`, which is already transformed.

    A subclass imports it with `read_graph`; to export more, such as compiled kernels, it overrides `export_sections`
    and calls the inherited method.
    """

    graph: Model

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the graph and its weights; configuration, inputs and outputs are already in the manifest."""
        write_graph(writer, self.graph, self.is_omitted)

    def is_omitted(self, constant: Constant) -> bool:
        """Whether an export omits the data of a constant, because the device stores it in another form."""
        return False

    def is_reference(self, node: Node) -> bool:
        """Whether the reference evaluator runs an operation; by default, the device has kernels for all."""
        return False

    def node_counts(self) -> NodeCounts:
        """The graph's operations, and the ones that `is_reference` names; of control flow, the operation itself."""
        nodes = [node for node in self.graph.ordered_nodes() if is_operation(node)]
        evaluated = [node for node in nodes if self.is_reference(node)]
        return NodeCounts(
            len(nodes), len(evaluated), sum(map(evaluation_time, nodes)), sum(map(evaluation_time, evaluated))
        )

    def memory(self) -> dict[str, int]:
        """The constants of the graph that are in memory, or mapped."""
        constants = (node for node in all_nodes(self.graph) if isinstance(node, Constant))
        return {"constants": sum(constant.byte_size for constant in constants if constant.is_loaded)}


def write_graph(writer: BlobWriter, graph: Model, is_omitted: Callable[[Constant], bool] | None = None) -> None:
    """Write a graph as sections; each large constant is a separate section, which an import maps in place.

    `is_omitted` says whether the data of a constant is omitted; by default all data is written.
    """
    skeleton, weights = split_model(graph, is_omitted)
    writer.add_section(GRAPH, skeleton)
    for name, _, data in weights:
        writer.add_section(WEIGHTS + name, data)


def read_graph(blob: BlobReader) -> Model:
    """The graph that `write_graph` wrote; its constants are views of the blob.

    Raises `BlobError`, also for an operator of an extension that the manifest does not require: only required ones were
    compared with the extensions of the core that imports the blob, and another core of the process may have more.
    """
    graph = join_model(bytes(blob.section(GRAPH)), lambda name: blob.section(WEIGHTS + name))
    required = blob.manifest.requirements.get(EXTENSIONS, ())
    listed = {required} if isinstance(required, str) else set(required)
    for node in all_nodes(graph):
        extension = extension_of(node)
        if extension and extension not in listed:
            raise BlobFormatError(
                f"{blob.where}: {node} is an operator of extension {extension}, which the manifest does not require; "
                "the blob was changed: export it again"
            )
    return graph


def constants_of(graph: Model) -> list[Constant]:
    """The constants of a graph, in topological order."""
    return [node for node in graph.ordered_nodes() if isinstance(node, Constant)]
