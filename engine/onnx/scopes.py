"""Distinct names for the values of a body and of the graphs around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.onnx.functions import subgraphs, walk_graphs
from engine.onnx.naming import UniqueNames
from engine.startup.onnx_library import onnx


def separate_scopes(graph: onnx.GraphProto) -> None:
    """Rename the values of bodies whose names an enclosing graph also defines.

    The specification forbids such names, but within a body they can only mean the body's own value. ONNX's inference
    takes the type of the outer one. Inputs of bodies keep their names, which it reads correctly.
    """
    unique: list[UniqueNames] = []  # made at the first clash: most models have none

    def fresh(name: str) -> str:
        if not unique:
            unique.append(UniqueNames())
            for part in walk_graphs(graph):
                for taken in (*_inputs(part), *_made(part)):
                    unique[0].take(taken)
        return unique[0].take(name)

    def separate(part: onnx.GraphProto, outer: Sequence[frozenset[str]]) -> None:
        if outer:
            inputs = _inputs(part)
            clashes = [n for n in _made(part) if n and n not in inputs and any(n in names for names in outer)]
            if clashes:
                _rename(part, {name: fresh(name) for name in clashes})
        visible = (*outer, frozenset([*_inputs(part), *_made(part)]))
        for node in part.node:
            for body in subgraphs(node):
                separate(body, visible)

    if any(True for node in graph.node for _ in subgraphs(node)):
        separate(graph, ())


def _inputs(graph: onnx.GraphProto) -> dict[str, None]:
    return dict.fromkeys(value.name for value in graph.input)


def _made(graph: onnx.GraphProto) -> dict[str, None]:
    """The names of initializers and of the outputs of nodes."""
    names = dict.fromkeys(tensor.name for tensor in graph.initializer)
    names |= dict.fromkeys(sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        for name in node.output:
            names[name] = None
    return names


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Replace names where they are defined and read, also in bodies that do not define them again."""
    sparse = (each.values for each in graph.sparse_initializer)
    for value in (*graph.initializer, *sparse, *graph.value_info, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for body in subgraphs(node):
            own = _inputs(body).keys() | _made(body).keys()
            inner = {name: new for name, new in names.items() if name not in own}
            if inner:
                _rename(body, inner)
