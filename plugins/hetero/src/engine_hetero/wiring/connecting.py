"""Connects parts: finds where each input of a part and each output of the network comes from."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Constant, Node, Output
from engine.ops.creation import ShapeSpec
from engine_hetero.parts.splitting import PartModel
from engine_hetero.query.model_graph import ModelGraph
from engine_hetero.wiring.wiring import NETWORK, Lengths, PartWiring, Source, Wiring


def connect(graph: ModelGraph, parts: Sequence[PartModel], seconds: Sequence[float] = ()) -> Wiring:
    """The connections of the parts of a graph; `seconds` are their predicted times, if known."""
    sources = _Sources(graph, parts)
    wired = tuple(
        PartWiring(
            part.device,
            tuple(map(sources.of, part.inputs)),
            len(part.outputs),
            len(part.nodes),
            seconds[number] if seconds else None,
        )
        for number, part in enumerate(parts)
    )
    outputs = tuple(sources.of(result.input_value(0)) for result in graph.model.results)
    return Wiring(wired, outputs, len(graph.model.parameters))


class _Sources:
    """Where the values of a graph come from."""

    def __init__(self, graph: ModelGraph, parts: Sequence[PartModel]) -> None:
        self.floating = graph.floating
        self.network = {parameter.output(0): index for index, parameter in enumerate(graph.model.parameters)}
        self.part_of = {graph.nodes[number]: p for p, part in enumerate(parts) for number in part.nodes}
        self.outputs = [{value: index for index, value in enumerate(part.outputs)} for part in parts]

    def of(self, value: Output) -> Source:
        """The source of a value for a part, or for the network's outputs."""
        if value in self.network:
            return Source(NETWORK, self.network[value])
        if value.node in self.floating:
            tensor = value.node.input_value(0)
            if tensor in self.network:
                return Source(NETWORK, self.network[tensor], _lengths(value.node))
            part = self.part_of[tensor.node]
            if tensor in self.outputs[part]:
                return Source(part, self.outputs[part][tensor], _lengths(value.node))
            return Source(part, self.outputs[part][value])
        part = 0 if isinstance(value.node, Constant) else self.part_of[value.node]
        return Source(part, self.outputs[part][value])


def _lengths(node: Node) -> Lengths:
    if node.op_type == "Size":
        return Lengths(is_size=True)
    spec = ShapeSpec.of(node)
    return Lengths(start=spec.start, end=spec.end)
