"""`GraphNetwork`: a network that is exported as its transformed graph, with the weights beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.errors import UnsupportedError
from engine.ir import Constant, Model
from engine.onnx import join_model, split_model
from engine.plugin_api import BlobReader, BlobWriter, ExecutableNetwork, PluginT

GRAPH: Final = "graph"
"""The section of the graph without its weights."""
WEIGHTS: Final = "weights/"
"""What the names of the sections of weights begin with."""


class GraphNetwork(ExecutableNetwork[PluginT]):
    """A network whose `graph` is all that it takes to make it again: what was compiled before is transformed already.

    A subclass reads it with `read_graph`; one that exports more, such as compiled kernels, overrides
    `export_sections` and calls this one.
    """

    graph: Model

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the graph and its weights; configuration, inputs and outputs are in the manifest already."""
        write_graph(writer, self.graph, self.is_left_out)

    def is_left_out(self, constant: Constant) -> bool:
        """Whether an export needs no data of a constant, since the device keeps it in another form."""
        return False


def write_graph(writer: BlobWriter, graph: Model, is_left_out: Callable[[Constant], bool] | None = None) -> None:
    """Write a graph as sections, its large constants as sections of their own, which an import uses in place.

    `is_left_out` tells for a constant whether its data is not needed again; by default all of it is.
    """
    skeleton, weights = split_model(graph, is_left_out)
    writer.add_section(GRAPH, skeleton)
    for name, _, data in weights:
        writer.add_section(WEIGHTS + name, data)


def read_graph(blob: BlobReader) -> Model:
    """The graph that `write_graph` wrote; its constants are views of the blob. Raises `BlobError`."""
    return join_model(bytes(blob.section(GRAPH)), lambda name: blob.section(WEIGHTS + name))


def check_precision(network: str, made: str, asked: str) -> None:
    """Raise `UnsupportedError` where a blob was compiled for another precision than its import asks for."""
    if made != asked:
        raise UnsupportedError(
            f"{network}: the blob computes in {made}, INFERENCE_PRECISION_HINT asks for {asked}; leave the hint out, "
            "or compile the model for it"
        )


def constants_of(graph: Model) -> list[Constant]:
    """The constants of a graph, in topological order."""
    return [node for node in graph.ordered_nodes() if isinstance(node, Constant)]
