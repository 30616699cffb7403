"""Makes parts of subgraphs: one model per subgraph.

Constants and shape arithmetic are cloned into every part that reads them. If a part needs only the lengths of a tensor,
the host passes these, and the tensor is not moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.ir import (
    DECLARED_LENGTHS,
    Constant,
    Node,
    Output,
    Parameter,
    PartialShape,
    Result,
    TensorType,
    ValueType,
)
from engine.lowering import SHAPE_SOURCES
from engine.plugin_api import Model
from engine.startup import dataclass
from engine_hetero.query.model_graph import ModelGraph


@dataclass(frozen=True)
class PartModel:
    """A subgraph as a separate model.

    Attributes:
        model: its parameters and results have the names of the values.
        device: the device string.
        nodes: the numbers of its operations in the graph.
        inputs: the value of the graph for each parameter.
        outputs: the value of the graph for each result.
    """

    model: Model
    device: str
    nodes: tuple[int, ...]
    inputs: tuple[Output, ...]
    outputs: tuple[Output, ...]


def split(graph: ModelGraph, members: Sequence[Sequence[int]], devices: Sequence[str]) -> tuple[PartModel, ...]:
    """The parts of a graph.

    Args:
        members: the numbers of each part's nodes, ascending; parts in execution order.
        devices: the device of each part. If there is no part, the first device runs a part with constant results.
    """
    return _Splitter(graph, members, devices).split()


class _Splitter:
    """Finds the inputs and outputs of every part, then builds the parts in order."""

    def __init__(self, graph: ModelGraph, members: Sequence[Sequence[int]], devices: Sequence[str]) -> None:
        self.graph = graph
        self.devices = devices
        results = [result.input_value(0) for result in graph.model.results]
        self.constant_results = [value for value in dict.fromkeys(results) if isinstance(value.node, Constant)]
        self.members = list(members) or ([()] if self.constant_results else [])
        self.part_of = {graph.nodes[number]: p for p, numbers in enumerate(self.members) for number in numbers}
        self.read = [self._read_by(numbers) for numbers in self.members]
        self.floating = [self._floating_of(p) for p in range(len(self.members))]
        self.outputs: list[dict[Output, int]] = [{} for _ in self.members]
        for value in (*(v for read in self.read for v in read), *results):
            if (part := self.part_of.get(value.node)) is not None and value not in self.outputs[part]:
                self.outputs[part][value] = len(self.outputs[part])
        for value in self.constant_results:
            self.outputs[0][value] = len(self.outputs[0])
        self.loose = _from_loops(graph.model)
        self.order = {node: position for position, node in enumerate(graph.model.ordered_nodes())}

    def _read_by(self, numbers: Iterable[int]) -> dict[Output, None]:
        """The values that nodes read from outside their part, except constants and lengths."""
        inside = {self.graph.nodes[number] for number in numbers}
        return {
            value: None
            for number in numbers
            for value in self.graph.nodes[number].input_values
            if value is not None
            and value.node not in inside
            and value.node not in self.graph.floating
            and not isinstance(value.node, Constant)
        }

    def _floating_of(self, part: int) -> dict[Node, None]:
        """The shape arithmetic that the nodes of a part need."""
        stack = [self.graph.nodes[number] for number in self.members[part]]
        found: dict[Node, None] = {}
        while stack:
            for value in stack.pop().input_values:
                if value is not None and value.node in self.graph.floating and value.node not in found:
                    found[value.node] = None
                    stack.append(value.node)
        return found

    def split(self) -> tuple[PartModel, ...]:
        self._ask_for_lengths()
        return tuple(self._part(p) for p in range(len(self.members)))

    def _ask_for_lengths(self) -> None:
        """Make parts output the lengths of values that are not themselves passed to other parts."""
        for part, floating in enumerate(self.floating):
            for node in floating:
                if self._is_given(node, part):
                    value = node.input_value(0)
                    maker = self.part_of.get(value.node)
                    if maker is not None and value not in self.outputs[maker]:
                        self.outputs[maker].setdefault(node.output(0), len(self.outputs[maker]))

    def _is_given(self, node: Node, part: int) -> bool:
        """Whether a part receives the result of a `Shape` or `Size` instead of computing it."""
        if node.op_type not in SHAPE_SOURCES or node.domain:
            return False
        value = node.input_value(0)
        is_here = self.part_of.get(value.node) == part or value in self.read[part]
        return not is_here and not isinstance(value.node, Constant) and value.node not in self.graph.floating

    def _part(self, part: int) -> PartModel:
        border: dict[Output, Parameter] = {}
        copies: dict[Output, Output] = {}
        made: dict[Node, Node] = {}

        def read(value: Output) -> Output:
            """The copy of a value in this part: an existing one, a constant, or a new input."""
            if value in copies:
                return copies[value]
            if isinstance(value.node, Constant):
                copy = value.node.clone_with_new_inputs([]).output(0)
            else:
                value_type = _untied(value.type) if value.node in self.loose else value.type
                border[value] = Parameter(value_type, friendly_name=value.name)
                copy = border[value].output(0)
            copies[value] = copy
            return copy

        own = [self.graph.nodes[number] for number in self.members[part]]
        asked = [value.node for value in self.outputs[part] if value.node in self.graph.floating]
        given = {node for node in self.floating[part] if self._is_given(node, part)}
        needed = {*own, *asked, *(node for node in self.floating[part] if node not in given)}
        for node in sorted(needed, key=self.order.__getitem__):
            copy = node.clone_with_new_inputs([None if v is None else read(v) for v in node.input_values])
            made[node] = copy
            copies.update(zip(node.outputs, copy.outputs, strict=True))
        results = [Result(read(value), value.name) for value in self.outputs[part]]
        sinks = [made[sink] for sink in self.graph.model.sinks if sink in made]
        model = _model(self.graph.model, part, results, list(border.values()), sinks)
        ends = tuple(border), tuple(self.outputs[part])
        return PartModel(model, self.devices[part], tuple(self.members[part]), *ends)


def _from_loops(model: Model) -> frozenset[Node]:
    """The nodes whose lengths may be 0, contrary to their types, because a loop runs zero iterations."""
    found: set[Node] = set()
    for node in model.ordered_nodes():
        sources = (value.node for value in node.input_values if value is not None)
        if node.op_type in ("Loop", "Scan") or any(source in found for source in sources):
            found.add(node)
    return frozenset(found)


def _untied(value_type: ValueType) -> ValueType:
    """The type without the symbols of its lengths."""
    if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic:
        return value_type
    dims = [dim if dim.symbol is None else None for dim in value_type.shape.dims]
    return TensorType(value_type.element_type, PartialShape(dims))


def _model(whole: Model, part: int, results: list[Result], parameters: list[Parameter], sinks: Sequence[Node]) -> Model:
    """A model with names that are unique among its inputs and among its outputs."""
    for nodes in (results, parameters):
        taken: set[str] = set()
        for node in nodes:
            name, count = node.friendly_name, 1
            while node.friendly_name in taken:
                count += 1
                node.friendly_name = f"{name}:{count}"
            taken.add(node.friendly_name)
    model = Model(results, parameters, sinks, name=f"{whole.name}.{part}")
    model.opset_imports = dict(whole.opset_imports)
    if whole.rt_info.get(DECLARED_LENGTHS):
        model.rt_info[DECLARED_LENGTHS] = True
    return model
