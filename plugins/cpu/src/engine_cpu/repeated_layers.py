"""A short form of a model whose layers repeat: most plans of a family are lowered for a few of its layers only.

A decoder is a chain of layers, each with variables of its own. Layers of one structure have steps that differ between
lengths in the same way. So a family is fitted to one plan of the whole model, and to plans of a model without the
repetitions, whose numbers the steps of all layers take; see `engine_cpu.expansion`.

Nodes are divided by the variables that they are computed from: slice 0 has those that no variable reaches, and slice k
those that the variables of the first k layers reach and that later ones do not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from engine.ir import Constant, Model, Node, Output, Parameter, Result, boolean
from engine.lowering import SHAPE_SOURCES
from engine.ops.spec import attribute_key, has_long_attributes
from engine.passes.runtime_info import is_operation
from engine.startup import dataclass

_INPUT: Final = 1
"""The bit of the inputs that are not variables, in the set of what a node is computed from."""
_MAX_COMPARED: Final = 64
"""The most integers of a constant that must be equal in two layers; others are weights."""
_MIN_REMOVED: Final = 2
"""How many repetitions the short form must save."""
_MAX_SETS: Final = 2000


@dataclass(frozen=True, slots=True)
class ShortForm:
    """A model without the repetitions of its layers.

    Attributes:
        graph: the model; what it has in common with the whole has the same names.
        inputs: the inputs of the whole model that it has, by index, in its order.
        removed: how many repetitions it lacks.
    """

    graph: Model
    inputs: tuple[int, ...]
    removed: int


class _Repetition(NamedTuple):
    """Slices `start` to `start + period` are kept, and `removed` repetitions behind them are not."""

    start: int
    period: int
    removed: int

    @property
    def kept_end(self) -> int:
        return self.start + self.period

    @property
    def end(self) -> int:
        return self.kept_end + self.removed * self.period


def short_form(graph: Model) -> ShortForm | None:
    """The short form of a model with variables; None if its layers do not repeat often enough."""
    if len(graph.variables) <= _MIN_REMOVED or any(node.has_bodies for node in graph.ordered_nodes()):
        return None
    sources = _sources(graph)
    slices = _slices(graph, sources)
    if slices is None:
        return None
    repetition = _repetition(_signatures(graph, slices, sources))
    return None if repetition is None else _without(graph, slices, repetition)


def _slices(graph: Model, sources: Mapping[Node, int]) -> list[list[Node]] | None:
    """The operations by slice, each in topological order; None if the variables do not form a chain."""
    reached = {found for node, found in sources.items() if found & _INPUT and is_operation(node)}
    if len(reached) > _MAX_SETS:
        return None
    ends = sorted(
        (each for each in reached if all(each & other in (each, other) for other in reached)), key=int.bit_count
    )
    if not ends:
        return None
    sizes = [end.bit_count() for end in ends]
    place: dict[Node, int] = {}
    order, early = graph.ordered_nodes(), _early(graph, sources)
    for node in reversed(order):
        if sources.get(node, 0) & _INPUT:
            # The ends are a chain, so the first one that has as many elements has all of them, if any has.
            at = bisect_left(sizes, sources[node].bit_count())
            while at < len(ends) and sources[node] & ~ends[at]:
                at += 1
            place[node] = at
        else:  # computed from shapes, constants and a layer's own variables: where it is read, or before all layers
            readers = {place[each.node] for value in node.outputs for each in value.target_inputs if each.node in place}
            is_common = node in early and (len(readers) > 1 or 0 in readers)
            place[node] = 0 if is_common else min(readers, default=len(ends))
    slices: list[list[Node]] = [[] for _ in range(len(ends) + 1)]
    for node in order:
        if is_operation(node):
            if any(s is not None and is_operation(s.node) and place[s.node] > place[node] for s in node.sources):
                return None
            slices[place[node]].append(node)
    return slices


def _sources(graph: Model) -> dict[Node, int]:
    """The inputs whose values each node is computed from, as a set of bits; shapes do not count."""
    variables = {variable.parameter: 2 << index for index, variable in enumerate(graph.variables)}
    found: dict[Node, int] = {}
    for node in graph.ordered_nodes():
        if isinstance(node, Parameter):
            found[node] = variables.get(node.friendly_name, _INPUT)
        elif isinstance(node, Constant) or (node.op_type in SHAPE_SOURCES and not node.domain):
            found[node] = 0
        elif not isinstance(node, Result):
            bits = 0
            for source in node.sources:
                if source is not None:
                    bits |= found[source.node]
            found[node] = bits
    return found


def _early(graph: Model, sources: Mapping[Node, int]) -> set[Node]:
    """The nodes that are computed from constants and shapes alone, and these from no variable's value."""
    found: set[Node] = set()
    for node in graph.ordered_nodes():
        if is_operation(node) and not sources[node]:
            read = [value.node for value in node.sources if value is not None and is_operation(value.node)]
            if all(each in found or sources[each] == _INPUT for each in read):
                found.add(node)
    return found


def _signatures(graph: Model, slices: Sequence[Sequence[Node]], sources: Mapping[Node, int]) -> list[Hashable]:
    """What slices that lower equally have in common: operators, attributes, types, and what reads what."""
    places = {node: (number, index) for number, nodes in enumerate(slices) for index, node in enumerate(nodes)}
    states = {v.parameter: (v.axis, v.bound, v.batch_axis, v.is_placed, v.is_masked) for v in graph.variables}
    kept = {variable.result for variable in graph.variables}
    outputs: dict[Node, list[Hashable]] = {}
    for result in graph.results:
        source = result.input_value(0)
        name = "" if result.friendly_name in kept else result.friendly_name
        outputs.setdefault(source.node, []).append((source.index, name))

    def read(value: Output | None, number: int) -> Hashable:
        if value is None:
            return None
        node = value.node
        if isinstance(node, Constant):
            return _form_of(node)
        if isinstance(node, Parameter):
            state = states.get(node.friendly_name)
            return node.friendly_name if state is None else (value.type, state)
        at, index = places[node]
        # The values of earlier slices are as far away for all layers, unless they are the same ones for all.
        is_common = at == 0 or (at != number and not sources[node] & _INPUT)
        return (("of all", at) if is_common else at - number), index, value.index

    def signature(number: int, nodes: Sequence[Node]) -> Hashable:
        return tuple(
            (
                # A node that cannot be compared is equal to itself only.
                node if has_long_attributes(node) else tuple(attribute_key(node, is_kept=True)),
                tuple(read(value, number) for value in node.sources),
                tuple(node.output_types),
                tuple(outputs.get(node, ())),
            )
            for node in nodes
        )

    return [signature(number, nodes) for number, nodes in enumerate(slices)]


def _form_of(constant: Constant) -> Hashable:
    """Its type, and its value if that is one of lengths, axes and the like; other numbers are a layer's own."""
    is_counted = constant.element_type.is_integral or constant.element_type is boolean
    if not is_counted or constant.output(0).shape.size() > _MAX_COMPARED:
        return constant.output(0).type
    return constant.output(0).type, constant.data.tobytes()


def _repetition(signatures: Sequence[Hashable]) -> _Repetition | None:
    """The repetition that removes the most slices, of the shortest period."""
    best: _Repetition | None = None
    for period in range(1, len(signatures) // (_MIN_REMOVED + 1) + 1):
        start = 0
        while start + period < len(signatures):
            end = start
            while end + period < len(signatures) and signatures[end] == signatures[end + period]:
                end += 1
            removed = (end - start) // period
            if removed >= _MIN_REMOVED and (best is None or removed * period > best.removed * best.period):
                best = _Repetition(start, period, removed)
            start = end + 1
    return best


def _without(graph: Model, slices: Sequence[Sequence[Node]], repetition: _Repetition) -> ShortForm | None:
    """The model without these slices, whose readers read what is at the same place of the kept ones."""
    start, period, removed = repetition
    twins = {
        node: slices[start + (number - start) % period][index]
        for number in range(repetition.kept_end, repetition.end)
        for index, node in enumerate(slices[number])
    }
    copies: dict[Node, Node] = {}
    short = graph.clone(copies)
    kept = {variable.result for variable in graph.variables}
    left = [result for result in graph.results if result.friendly_name not in kept]
    for node in (*left, *(node for nodes in slices[repetition.end :] for node in nodes)):
        for index, source in enumerate(node.sources):
            if source is not None and source.node in twins:
                copies[node].input(index).replace_source_output(copies[twins[source.node]].output(source.index))
    results = {result.friendly_name: result for result in graph.results}
    gone = [each for each in graph.variables if results[each.result].input_value(0).node in twins]
    copies.clear()  # or else nodes that nothing reads stay
    for variable in gone:
        short.remove_variable(variable.name)
        short.remove_result(short.result(variable.result))
    for variable in gone:
        parameter = short.parameter(variable.parameter)
        if parameter.is_consumed:
            return None
        short.remove_parameter(parameter)
    names = {parameter.friendly_name for parameter in short.parameters}
    inputs = tuple(index for index, each in enumerate(graph.parameters) if each.friendly_name in names)
    return ShortForm(short, inputs, removed)
