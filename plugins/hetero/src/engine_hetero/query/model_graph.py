"""The partitioner's view of a model: numbered operations, and the values between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.ir import Constant, Node, Output, Parameter, Result, TensorType
from engine.ir.element_type import string
from engine.lowering import SHAPE_SOURCES
from engine.ops import find_op
from engine.passes.work import byte_size
from engine.plugin_api import Model
from engine.startup import dataclass

Ints: TypeAlias = NDArray[np.int64]

_SMALL: Final = 64
"""The maximum number of elements in shape arithmetic: the lengths of a tensor, a few tables of them."""


@dataclass(frozen=True)
class ModelGraph:
    """The operations that devices run, and the edges between them.

    Constants and shape arithmetic (`floating`) are cheap, so they are not nodes but are cloned into every subgraph that
    reads them.

    Attributes:
        model: the model, which must not change.
        nodes: the operations, producers before consumers; their index is their number.
        names: their friendly names.
        index: the number of each operation.
        edges: (E, 2), producer and consumer; one for each combination of producer, consumer and value.
        values: (E,) the value of each edge: the producer's, or its lengths that the consumer needs.
        byte_sizes: (E,) its size; unknown lengths count as 1.
        floating: shape arithmetic, which belongs to no subgraph.
    """

    model: Model
    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    index: Mapping[Node, int]
    edges: Ints
    values: tuple[Output, ...]
    byte_sizes: Ints
    floating: frozenset[Node]

    @classmethod
    def of(cls, model: Model, refused: Collection[str] = ()) -> ModelGraph:
        """The graph of `model`. Linear.

        `refused` names the operations that some device does not support, which therefore cannot be cloned everywhere.
        """
        floating = _floating(model, refused)
        nodes = tuple(n for n in model.ordered_nodes() if not _is_leaf(n) and n not in floating)
        index = {node: number for number, node in enumerate(nodes)}
        asked = _asked_lengths(model, floating)
        edges: dict[tuple[int, int, Output], None] = {}
        for number, node in enumerate(nodes):
            for value in _distinct(node.input_values):
                if value.node in index:
                    edges[index[value.node], number, value] = None
                for lengths in asked.get(value.node, ()):
                    source = lengths.node.input_value(0).node
                    if source in index:
                        edges[index[source], number, lengths] = None
        pairs = np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2)
        values = tuple(edge[2] for edge in edges)
        sizes = np.array([byte_size(value) for value in values], np.int64)
        names = tuple(node.friendly_name for node in nodes)
        return cls(model, nodes, names, index, pairs, values, sizes, floating)

    def __len__(self) -> int:
        return len(self.nodes)


def has_known_size(value: Output) -> bool:
    """Whether the bytes of a value are known before an inference."""
    return isinstance(value.type, TensorType) and value.shape.is_static


def _distinct(values: Iterable[Output | None]) -> Iterable[Output]:
    return dict.fromkeys(value for value in values if value is not None)


def _asked_lengths(model: Model, floating: frozenset[Node]) -> dict[Node, tuple[Output, ...]]:
    """For every floating operation, the results of the `Shape` and `Size` nodes that it is computed from."""
    asked: dict[Node, tuple[Output, ...]] = {}
    for node in model.ordered_nodes():
        if node not in floating:
            continue
        if node.op_type in SHAPE_SOURCES and node.input_value(0).node not in floating:
            asked[node] = (node.output(0),)
        else:
            sources = _distinct(node.input_values)
            asked[node] = tuple(dict.fromkeys(each for value in sources for each in asked.get(value.node, ())))
    return asked


def _floating(model: Model, refused: Collection[str]) -> frozenset[Node]:
    """The shape arithmetic: small, repeatable operations computed only from shapes and constants.

    Operations that a Result reads, and their consumers, are excluded, since a Result reads from a subgraph.
    """
    found: set[Node] = set()
    kept = {result.input_value(0).node for result in model.results}.union(model.sinks)
    for node in model.ordered_nodes():
        if _is_leaf(node) or node in kept or node.friendly_name in refused or not _is_repeatable(node):
            continue
        if node.op_type in SHAPE_SOURCES:
            found.add(node)
        else:
            sources = {value.node for value in node.input_values if value is not None}
            if all(isinstance(s, Constant) or s in found for s in sources) and any(s in found for s in sources):
                found.add(node)
    return frozenset(found)


def _is_repeatable(node: Node) -> bool:
    """Whether a copy in another subgraph gives the same result cheaply. Custom operators might be random."""
    op = find_op(node.op_type, node.domain)
    is_known = op is not None and op.is_deterministic and not node.domain
    return is_known and not node.bodies and all(_is_small(output) for output in node.outputs)


def _is_small(output: Output) -> bool:
    if not isinstance(output.type, TensorType) or output.element_type is string:
        return False
    return output.shape.is_static and output.shape.size() <= _SMALL


def _is_leaf(node: Node) -> bool:
    return isinstance(node, (Parameter, Constant, Result))
