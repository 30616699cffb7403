"""`Item`: nodes that are lowered together; one node, unless a grouping joins several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from engine.ir import Node, Output
from engine.ops.spec import OperatorSpec
from engine.startup import dataclass
from engine_cpu.layout import LayoutOption


class ItemLowering(Protocol):
    """The methods of `engine_cpu.lowering.registry.OpLowering` that work on items need."""

    def alias_of(self, spec: Any) -> int | None:
        """The input that output 0 is an alias of."""
        ...

    def placements(self, spec: Any, option: LayoutOption) -> Sequence[int | None]:
        """The place of each input within output 0."""
        ...

    def item_layouts(self, item: Item) -> Sequence[LayoutOption]:
        """The ways to run the item."""
        ...

    def lower_item(self, item: Item, b: Any) -> None:
        """Add the steps of the item to a `SegmentBuilder`."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """A unit of lowering.

    `inputs` are the node's by position, None for omitted ones; for several nodes, the distinct values from outside,
    constants included. `outputs` are the node's; for several nodes, the values read outside.
    """

    specs: tuple[OperatorSpec, ...]
    lowering: ItemLowering
    inputs: tuple[Output | None, ...]
    outputs: tuple[Output, ...]

    @classmethod
    def of(cls, spec: OperatorSpec, lowering: ItemLowering) -> Item:
        """Make an item of one node, with the node's inputs and outputs."""
        return cls((spec,), lowering, tuple(spec.node.input_values), tuple(spec.node.outputs))

    @property
    def spec(self) -> OperatorSpec:
        """The spec of the last node, which gives the item its name."""
        return self.specs[-1]

    @property
    def node(self) -> Node:
        """The last of the nodes, which names the item."""
        return self.spec.node

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the item, in execution order."""
        return tuple(spec.node for spec in self.specs)
