"""Which nodes of a segment are lowered together."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.ir import Node, Output
from engine_cpu.item import Item
from engine_cpu.lowering.registry import find_lowering


def group_nodes(nodes: Sequence[Node], outputs: Collection[Output]) -> list[Item]:
    """The items of a segment in an order in which they can run.

    Args:
        nodes: in an order in which they can run; each has a lowering, and all shapes are static.
        outputs: the values that are read outside of the segment.
    """
    items = []
    for node in nodes:
        lowering = find_lowering(node)
        assert lowering is not None, node
        items.append(Item.of(node, lowering))
    return items
