"""`Item`: nodes that become steps together; one node, unless a grouping joins several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.ir import Node, Output
from engine.ops.spec import OperatorSpec

if TYPE_CHECKING:
    from engine_cpu.lowering.registry import OpLowering


@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """A unit of lowering.

    `inputs` are those of the node by position, None where one is omitted; of several nodes, the distinct values
    that come from outside, constants included. `outputs` are those of the node; of several, the values that are read
    outside.
    """

    specs: tuple[OperatorSpec, ...]
    lowering: OpLowering[Any]
    inputs: tuple[Output | None, ...]
    outputs: tuple[Output, ...]

    @classmethod
    def of(cls, spec: OperatorSpec, lowering: OpLowering[Any]) -> Item:
        """An item of one node."""
        return cls((spec,), lowering, tuple(spec.node.input_values), tuple(spec.node.outputs))

    @property
    def spec(self) -> OperatorSpec:
        """The spec of the last node, which gives the item its name."""
        return self.specs[-1]

    @property
    def node(self) -> Node:
        """The last node."""
        return self.spec.node

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in an order in which they can run."""
        return tuple(spec.node for spec in self.specs)
