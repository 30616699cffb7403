"""`Decisions`: how a device runs each node of a graph, decided once and shared by all users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from engine.ir import Constant, Model, Node
from engine.lowering.checks import BOUND, SHAPE_SOURCES
from engine.lowering.refusal import Refusal
from engine.lowering.table import Decision, LoweringT, LoweringTable
from engine.passes.folding import is_foldable, is_foldable_operation
from engine.passes.runtime_info import is_operation


class Decisions(Generic[LoweringT]):
    """The decisions of one device, each made at its first use.

    Query, partitioning and compilation of a graph share one object, so that their answers agree. A decision depends on
    the types of a node's values: after a change of the graph, or for a copy of it with other shapes, make a new object.
    Not thread-safe.
    """

    def __init__(self, table: LoweringTable[LoweringT]) -> None:
        self.table = table
        self._made: dict[Node, Decision[LoweringT]] = {}

    def __getitem__(self, node: Node) -> Decision[LoweringT]:
        decision = self._made.get(node)
        if decision is None:
            decision = self._made[node] = self.table.decide(node)
        return decision

    def refusal(self, node: Node) -> Refusal | None:
        """Why `node` has no kernel; None if it has one."""
        return self[node].refusal

    def refusals(self, graph: Model) -> Iterator[tuple[Node, Refusal]]:
        """The operations of a prepared graph that have no kernel, and why, in topological order.

        A value that becomes constant once all lengths and bound inputs are known needs no kernel: it is folded then. A
        value computed only from constants that `prepare` did not fold cannot be folded, and does need one.
        """
        known: set[Node] = set()
        for node in graph.ordered_nodes():
            is_given = isinstance(node, Constant) or node.rt_info.get(BOUND)
            if is_given or (_is_known(node, known) and not is_foldable(node)):
                known.add(node)
            elif is_operation(node) and (why := self.refusal(node)) is not None:
                yield node, why


def _is_known(node: Node, known: set[Node]) -> bool:
    if node.op_type in SHAPE_SOURCES and not node.domain:
        return True
    sources = [value.node for value in node.input_values if value is not None]
    return bool(sources) and known.issuperset(sources) and is_foldable_operation(node)
