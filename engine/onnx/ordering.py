"""Checks names and order of a graph proto: every value must be defined once; nodes are sorted if necessary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from engine.errors import GraphError
from engine.onnx.calls import CallChecker
from engine.onnx.functions import describe, subgraphs
from engine.onnx.stored_tensors import check_tensor
from engine.startup.onnx_library import onnx

_Readers: TypeAlias = dict[str, str]
"""For each value that is read, a reader, for messages."""


def order_graph(graph: onnx.GraphProto, checker: CallChecker | None = None) -> None:
    """Check `graph` and the bodies in it, and sort their nodes topologically if they are not.

    Linear; the order of a sorted graph does not change. Raises the errors of `checker`, and `GraphError` for a value
    that is not defined, a value that is defined twice, and a cycle, naming nodes and values.
    """
    for name, reader in _order(graph, checker).items():
        raise GraphError(
            f"{reader} reads `{name}`, which is neither an input, nor an initializer, nor an output of another node: "
            "an initializer is missing, or the model is only a part of another"
        )


def _order(graph: onnx.GraphProto, checker: CallChecker | None) -> _Readers:
    """Sort `graph` and its bodies; return the values that it reads from enclosing graphs."""
    for tensor in graph.initializer:
        check_tensor(tensor)
    defined: set[str] = {tensor.name for tensor in graph.initializer}
    if len(defined) != len(graph.initializer):
        raise _twice("initializer", [tensor.name for tensor in graph.initializer])
    for sparse in graph.sparse_initializer:
        if sparse.values.name in defined:
            raise _twice("initializer", [*defined, sparse.values.name])
        defined.add(sparse.values.name)
    given = {value.name for value in graph.input}
    if len(given) != len(graph.input):
        raise _twice("input", [value.name for value in graph.input])
    defined |= given
    free: list[_Readers | None] = []
    early: _Readers = {}  # read before any node has defined it
    produced: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        inputs, outputs = list(node.input), list(node.output)
        if checker is not None:
            checker.check(node, inputs, outputs)
        captured = _captured(node, checker)
        free.append(captured)
        for name in inputs:
            if name and name not in defined and name not in early:
                early[name] = describe(node)
        if captured is not None:
            for name, reader in captured.items():
                if name not in defined:
                    early.setdefault(name, reader)
        for name in outputs:
            if not name:
                continue
            if name in defined:
                raise _redefined(graph, name, node, produced)
            defined.add(name)
            produced[name] = index
    for value in graph.output:
        if value.name not in defined:
            early.setdefault(value.name, f"the output list of graph `{graph.name}`")
    if any(name in produced for name in early):
        _sort(graph, produced, free)
    return {name: reader for name, reader in early.items() if name not in produced}


def _captured(node: onnx.NodeProto, checker: CallChecker | None) -> _Readers | None:
    """The values that the bodies of `node` read from enclosing graphs; None if it has no body."""
    captured: _Readers | None = None
    for body in subgraphs(node):
        captured = {} if captured is None else captured
        for name, reader in _order(body, checker).items():
            captured.setdefault(name, reader)
    return captured


def _sort(graph: onnx.GraphProto, produced: Mapping[str, int], free: list[_Readers | None]) -> None:
    nodes = list(graph.node)
    sources: list[list[int]] = []
    for node, captured in zip(nodes, free, strict=True):
        names = [*node.input, *(captured or ())]
        sources.append([produced[name] for name in names if name in produced])
    order = _topological(sources, nodes)
    ordered = [onnx.NodeProto() for _ in order]
    for copy, index in zip(ordered, order, strict=True):
        copy.CopyFrom(nodes[index])
    graph.ClearField("node")
    graph.node.extend(ordered)


def _topological(sources: list[list[int]], nodes: list[onnx.NodeProto]) -> list[int]:
    """Depth-first in the order of the file, so that the order changes little."""
    order: list[int] = []
    state = bytearray(len(sources))  # 1 while the node's sources are visited, 2 once it is done
    for root in range(len(sources)):
        stack = [root]
        while stack:
            index = stack[-1]
            if state[index]:
                stack.pop()
                if state[index] == 1:
                    state[index] = 2
                    order.append(index)
                continue
            state[index] = 1
            for source in reversed(sources[index]):
                if state[source] == 1:
                    raise GraphError(_cycle(source, sources, state, nodes))
                if not state[source]:
                    stack.append(source)
    return order


def _cycle(start: int, sources: list[list[int]], state: bytearray, nodes: list[onnx.NodeProto]) -> str:
    names, index = [describe(nodes[start])], start
    while len(names) < 20:
        index = next((source for source in sources[index] if state[source] == 1), start)
        names.append(describe(nodes[index]))
        if index == start:
            break
    return f"the graph has a cycle: {' <- '.join(names)}"


def _twice(what: str, names: list[str]) -> GraphError:
    seen: set[str] = set()
    repeated = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return GraphError(f"{what} `{repeated}` is defined twice")


def _redefined(graph: onnx.GraphProto, name: str, node: onnx.NodeProto, produced: Mapping[str, int]) -> GraphError:
    first = describe(graph.node[produced[name]]) if name in produced else "an input or initializer"
    return GraphError(f"value `{name}` is defined twice: by {first} and by {describe(node)}")
