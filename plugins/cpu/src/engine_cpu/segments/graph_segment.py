"""`GraphSegment`: nodes that run together, before they are compiled."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Constant, Model, Node, Output, Parameter, Result
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class GraphSegment:
    """Nodes of one kind, in execution order, with their non-constant inputs from outside and their outputs."""

    nodes: tuple[Node, ...]
    inputs: tuple[Output, ...]
    outputs: tuple[Output, ...]

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> GraphSegment:
        """Find the values that these nodes read, and the values that others read of them."""
        inside = set(nodes)
        inputs = {
            value: None
            for node in nodes
            for value in node.input_values
            if value is not None and value.node not in inside and not isinstance(value.node, Constant)
        }
        outputs = [
            output
            for node in nodes
            for output in node.outputs
            if any(target.node not in inside for target in output.target_inputs)
        ]
        return cls(tuple(nodes), tuple(inputs), tuple(outputs))

    def extract(self) -> Model:
        """The nodes as a separate model: parameters in the order of the inputs, results in the order of the outputs."""
        copies: dict[Output, Output] = {}
        parameters = []
        for index, value in enumerate(self.inputs):
            parameter = Parameter(value.type, friendly_name=f"input_{index}")
            parameters.append(parameter)
            copies[value] = parameter.output(0)
        for node in self.nodes:
            for source in node.input_values:
                if source is not None and source not in copies:  # a constant
                    copies[source] = source.node.clone_with_new_inputs([]).output(0)
            copy = node.clone_with_new_inputs([None if v is None else copies[v] for v in node.input_values])
            copies.update(zip(node.outputs, copy.outputs, strict=True))
        results = [Result(copies[value], f"output_{index}") for index, value in enumerate(self.outputs)]
        return Model(results, parameters, name=self.nodes[-1].friendly_name)
