"""What the device knows of an operator: one class each, found by the operator's name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Final, TypeAlias, cast

from engine.ir import Node, Output
from engine.lowering import Decisions, Lowering, LoweringTable, PreparedGraph
from engine.ops.spec import SpecT
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption
from engine_cpu.segment import SegmentBuilder


class OpLowering(Lowering[SpecT]):
    """How one operator, or several that are alike, becomes steps of a plan."""

    def layouts(self, spec: SpecT) -> Sequence[LayoutOption]:
        """The ways to run a node, whose shapes are static now; the first is preferred where others cost the same."""
        return (LayoutOption.uniform(Layout.PLAIN, spec.node.num_inputs, spec.node.num_outputs),)

    @abstractmethod
    def lower(self, spec: SpecT, b: SegmentBuilder) -> None:
        """Add the steps of a node, in the layouts of `b.option(spec.node)`. All shapes are static."""

    # -- zero copy -----------------------------------------------------------------------------------------

    def alias_of(self, spec: SpecT) -> int | None:
        """The input whose very bytes output 0 has in PLAIN layout, as a Reshape has; None where there is none.

        `lower` then calls `b.alias`. With this known beforehand, a network output can be written where the alias
        ends up.
        """
        return None

    def placements(self, spec: SpecT, option: LayoutOption) -> Sequence[int | None]:
        """For each input, the byte of output 0 from which on it lies there contiguously, as in a Concat; None if not.

        Producers then write into the output itself where they can; `b.is_placed` tells which have.
        """
        return ()

    # -- several nodes as one ------------------------------------------------------------------------------

    def group_key(self, spec: SpecT) -> Hashable | None:
        """Nodes that read one another, have one lowering and equal keys become one item; None: never."""
        return None

    def item_layouts(self, item: Item) -> Sequence[LayoutOption]:
        """As `layouts`, for an item; one of several nodes has the layouts of `item.inputs` and `item.outputs`."""
        return self.layouts(cast(SpecT, item.spec))

    def lower_item(self, item: Item, b: SegmentBuilder) -> None:
        """As `lower`, for an item."""
        self.lower(cast(SpecT, item.spec), b)


CpuDecisions: TypeAlias = "Decisions[OpLowering[Any]]"
CpuGraph: TypeAlias = "PreparedGraph[OpLowering[Any]]"

LOWERINGS: Final[LoweringTable[OpLowering[Any]]] = LoweringTable()
lowers = LOWERINGS.lowers


def decisions() -> CpuDecisions:
    """The decisions for a graph whose nodes nobody has asked about yet."""
    return Decisions(LOWERINGS)


def given_inputs(node: Node) -> list[Output]:
    """The inputs that are not omitted."""
    return [value for value in node.input_values if value is not None]
