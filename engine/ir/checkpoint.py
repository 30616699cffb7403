"""`Checkpoint`: the state of a model, which can be restored with the same node objects."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from engine.ir.leaves import Constant
from engine.ir.model import Model
from engine.ir.node import Node, edits
from engine.ir.walk import all_nodes

_NODE_SLOTS: Final = ("_attached", "_name", "_names", "_pinned", "_seen", "_types", "domain", "op_type")
_MODEL_LISTS: Final = ("_parameters", "_results", "_sinks", "_variables", "captures")
_MODEL_DICTS: Final = ("metadata", "opset_imports", "rt_info")


class Checkpoint:
    """Saves everything that passes can change in a model and its bodies; linear in the number of nodes.

    The arrays of constants and attributes are not copied: they are immutable by convention.
    """

    __slots__ = ("_models", "_nodes", "_outside")

    def __init__(self, model: Model) -> None:
        self._nodes = {node: _NodeState(node) for node in all_nodes(model)}
        neighbours = {other for node in self._nodes for other in _neighbours(node)}
        self._outside = neighbours - self._nodes.keys()
        bodies = [body for node in self._nodes for body in node.bodies.values()]
        self._models = [(graph, _ModelState(graph)) for graph in [model, *bodies]]

    @property
    def nodes(self) -> Set[Node]:
        """The nodes that the model had, bodies included."""
        return self._nodes.keys()

    def restore(self) -> None:
        """Restore the model; nodes that were created since leave the graph."""
        for stranger in self._strangers():
            stranger._attached = False
            stranger._consumers = [None] * len(stranger._types)
        for node, state in self._nodes.items():
            state.restore(node)
        for graph, saved in self._models:
            saved.restore(graph)
        edits.count += 1

    def _strangers(self) -> set[Node]:
        """Nodes that were created since and are connected, directly or indirectly, to the model's nodes."""
        found: set[Node] = set()
        stack: list[Node] = [node for graph, _ in self._models for node in (*graph._results, *graph._sinks)]
        for node in self._nodes:
            stack += _neighbours(node)
        while stack:
            node = stack.pop()
            if node not in self._nodes and node not in self._outside and node not in found:
                found.add(node)
                stack += _neighbours(node)
        return found


def _neighbours(node: Node) -> list[Node]:
    readers = [target.node for output in node.outputs for target in output.target_inputs]
    return readers + [source.node for source in node._sources if source is not None]


class _NodeState:
    __slots__ = ("attributes", "consumers", "data", "rt_info", "sources", "values")

    def __init__(self, node: Node) -> None:
        self.values = [getattr(node, slot) for slot in _NODE_SLOTS]
        self.attributes = dict(node.attributes)
        self.sources = list(node._sources)
        self.consumers = [None if readers is None else dict(readers) for readers in node._consumers]
        self.rt_info = None if node._rt_info is None else dict(node._rt_info)
        self.data = (node._data, node._load) if isinstance(node, Constant) else None

    def restore(self, node: Node) -> None:
        for slot, value in zip(_NODE_SLOTS, self.values, strict=True):
            setattr(node, slot, value)
        node.attributes = self.attributes
        node._sources = self.sources
        node._consumers = [
            None if readers is None else {key: None for key in readers if key[0]() is not None}
            for readers in self.consumers
        ]
        node._rt_info = self.rt_info
        if isinstance(node, Constant) and self.data is not None:
            node._data, node._load = self.data


class _ModelState:
    __slots__ = ("dicts", "lists", "name")

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self.lists = {slot: list(getattr(model, slot)) for slot in _MODEL_LISTS}
        self.dicts = {slot: dict(getattr(model, slot)) for slot in _MODEL_DICTS}

    def restore(self, model: Model) -> None:
        model.name = self.name
        for slot, value in {**self.lists, **self.dicts}.items():
            setattr(model, slot, value)
        model._order = None
