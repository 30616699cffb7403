"""Groups the nodes of a segment that are lowered together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from engine.ir import Node, Output
from engine_cpu.item import Item
from engine_cpu.lowering import CpuDecisions

_MAX_NODES: Final = 16
_MAX_INPUTS: Final = 64
"""The limit for one item, given by the size of a step."""


def group_nodes(nodes: Sequence[Node], outputs: Collection[Output], decisions: CpuDecisions) -> list[Item]:
    """The items of a segment in execution order.

    Nodes with equal group keys are joined along the values between them, unless another item would have to run between
    them.

    Args:
        nodes: in execution order; each has a lowering, and all shapes are static.
        outputs: the values that are read outside the segment.
        decisions: the decisions for the nodes.
    """
    grouping = _Grouping(nodes, decisions)
    for node in nodes:
        grouping.place(node)
    outside = frozenset(outputs)
    return [_item(group, outside, decisions) for group in grouping.in_order()]


class _Group:
    """Nodes in execution order, with the numbers of the first and the last of them."""

    __slots__ = ("first", "inputs", "key", "last", "nodes", "sources")

    def __init__(self, node: Node, number: int, decisions: CpuDecisions) -> None:
        self.nodes = [node]
        self.first = self.last = number
        self.key = _key(node, decisions)
        self.inputs = node.num_inputs
        self.sources: list[Node] = []
        """The producers, within the segment, of the nodes' inputs."""


class _Grouping:
    def __init__(self, nodes: Sequence[Node], decisions: CpuDecisions) -> None:
        self.decisions = decisions
        self.numbers = {node: number for number, node in enumerate(nodes)}
        self.groups: dict[Node, _Group] = {}

    def place(self, node: Node) -> None:
        """Assign a node to a group; its producers already have groups."""
        group = _Group(node, self.numbers[node], self.decisions)
        group.sources = list(
            dict.fromkeys(v.node for v in node.input_values if v is not None and v.node in self.groups)
        )
        self.groups[node] = group
        if group.key is None:
            return
        for source in group.sources:
            other = self.groups[source]
            if other is not group and self._can_join(group, other):
                group = self._joined(group, other)

    def in_order(self) -> list[_Group]:
        """The groups, each after those that it reads, otherwise in the order of their first nodes."""
        ordered: dict[_Group, None] = {}
        for start in self.groups.values():
            stack = [(start, iter(self._producers(start)))]
            while stack:
                group, rest = stack[-1]
                if group in ordered:
                    stack.pop()
                    continue
                following = next((each for each in rest if each not in ordered), None)
                if following is None:
                    ordered[group] = None
                    stack.pop()
                else:
                    stack.append((following, iter(self._producers(following))))
        return list(ordered)

    def _can_join(self, group: _Group, other: _Group) -> bool:
        if other.key != group.key or len(group.nodes) + len(other.nodes) > _MAX_NODES:
            return False
        return group.inputs + other.inputs <= _MAX_INPUTS and not self._has_detour(group, other)

    def _has_detour(self, group: _Group, other: _Group) -> bool:
        """Whether a path leaves the two groups and returns: their union could run neither before nor after it."""
        first = min(group.first, other.first)
        seen: set[_Group] = set()
        stack = [p for each in (group, other) for p in self._producers(each) if p is not group and p is not other]
        while stack:
            at = stack.pop()
            if at is group or at is other:
                return True
            if at in seen or at.last < first:  # none of its inputs can be downstream of the two
                continue
            seen.add(at)
            stack.extend(self._producers(at))
        return False

    def _producers(self, group: _Group) -> Iterable[_Group]:
        return (self.groups[source] for source in group.sources if self.groups[source] is not group)

    def _joined(self, group: _Group, other: _Group) -> _Group:
        group.nodes = sorted(group.nodes + other.nodes, key=self.numbers.__getitem__)
        group.first, group.last = min(group.first, other.first), max(group.last, other.last)
        group.inputs += other.inputs
        group.sources = list(dict.fromkeys((*other.sources, *group.sources)))
        for node in other.nodes:
            self.groups[node] = group
        return group


def _key(node: Node, decisions: CpuDecisions) -> object:
    """A key that is equal for nodes that may run together; None if a node runs alone."""
    decision = decisions[node]
    key = decision.lowering.group_key(decision.spec)
    return None if key is None else (decision.lowering, key)


def _item(group: _Group, outside: frozenset[Output], decisions: CpuDecisions) -> Item:
    first = decisions[group.nodes[0]]
    if len(group.nodes) == 1:
        return Item.of(first.spec, first.lowering)
    inside = frozenset(group.nodes)
    read = [value for node in group.nodes for value in node.input_values if value is not None]
    inputs = tuple(dict.fromkeys(value for value in read if value.node not in inside))
    outputs = tuple(
        value
        for node in group.nodes
        for value in node.outputs
        if value in outside or any(target.node not in inside for target in value.target_inputs)
    )
    return Item(tuple(decisions[node].spec for node in group.nodes), first.lowering, inputs, outputs)
