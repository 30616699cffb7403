"""`Item`: nodes that become steps together; one node, unless a grouping joins several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.ir import Node, Output

if TYPE_CHECKING:
    from engine_cpu.lowering.registry import OpLowering


@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """A unit of lowering.

    `inputs` are those of the node by position, None where one is omitted; of several nodes, the distinct values
    that come from outside, constants included. `outputs` are those of the node; of several, the values that are read
    outside.
    """

    nodes: tuple[Node, ...]
    lowering: OpLowering
    inputs: tuple[Output | None, ...]
    outputs: tuple[Output, ...]

    @classmethod
    def of(cls, node: Node, lowering: OpLowering) -> Item:
        """An item of one node."""
        return cls((node,), lowering, tuple(node.input_values), tuple(node.outputs))

    @property
    def node(self) -> Node:
        """The last node, which gives the item its name."""
        return self.nodes[-1]
