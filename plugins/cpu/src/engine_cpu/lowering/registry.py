"""The lowering interface of the device, and its registry by operator name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Final, TypeAlias, cast

from engine.ir import Constant, Node, Output
from engine.lowering import Decisions, Lowering, LoweringTable, PreparedGraph, is_known_when_bound
from engine.ops.spec import SpecT
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption
from engine_cpu.segment import SegmentBuilder
from engine_cpu.weights import WeightStore


class OpLowering(Lowering[SpecT]):
    """Lowers one operator, or several similar ones, to steps of a plan. `values` may be computed (`check_values`)."""

    def late_values(self, spec: SpecT) -> tuple[int, ...]:
        """The inputs that are not constants, and whose values a plan of the node is made for."""
        return tuple(i for i in self._bound(spec) if not isinstance(spec.node.input_value(i).node, Constant))

    def is_bound_late(self, spec: SpecT) -> bool:
        return any(not is_known_when_bound(spec.node.input_value(index)) for index in self._bound(spec))

    def _bound(self, spec: SpecT) -> list[int]:
        """The inputs of a node that must be known when its plan is made.

        Also where the file declares the lengths of the results, which may be wrong: the values decide.
        """
        return [index for index in self.values if spec.node.has_input(index)]

    def layouts(self, spec: SpecT) -> Sequence[LayoutOption]:
        """The options for a node with static shapes; the first is preferred if costs are equal."""
        return (LayoutOption.uniform(Layout.PLAIN, spec.node.num_inputs, spec.node.num_outputs),)

    @abstractmethod
    def lower(self, spec: SpecT, b: SegmentBuilder) -> None:
        """Add the steps of a node, in the layouts of `b.option(spec.node)`. All shapes are static."""

    def pack(self, spec: SpecT, weights: WeightStore, precision: str) -> Sequence[Output]:
        """Store constants in the format in which `lower` reads them, if it is the same for all lengths of the inputs.

        `precision` is the network's, "f32" or "bf16". Returns the constants that `lower` then reads in no other form:
        a network with dynamic shapes need not keep them. Others are packed when a plan is built.
        """
        return ()

    # -- zero copy -----------------------------------------------------------------------------------------

    def alias_of(self, spec: SpecT) -> int | None:
        """The input with the same bytes as output 0 in PLAIN layout, as for a Reshape; None if there is none.

        `lower` must then call `b.alias`. Declaring it lets the producer write to the buffer of the network output.
        """
        return None

    def placements(self, spec: SpecT, option: LayoutOption) -> Sequence[int | None]:
        """For each input, the byte offset at which it is contiguous in output 0, as for a Concat; None if it is not.

        Producers then write directly into the output if they can; `b.is_placed` says for which inputs.
        """
        return ()

    # -- several nodes as one ------------------------------------------------------------------------------

    def group_key(self, spec: SpecT) -> Hashable | None:
        """Connected nodes with the same lowering and equal keys become one item; None to prevent this."""
        return None

    def item_layouts(self, item: Item) -> Sequence[LayoutOption]:
        """Like `layouts`, for an item; for several nodes, with the layouts of `item.inputs` and `item.outputs`."""
        return self.layouts(cast(SpecT, item.spec))

    def lower_item(self, item: Item, b: SegmentBuilder) -> None:
        """Like `lower`, for an item; override it if `group_key` joins several nodes."""
        self.lower(cast(SpecT, item.spec), b)


CpuDecisions: TypeAlias = "Decisions[OpLowering[Any]]"
CpuGraph: TypeAlias = "PreparedGraph[OpLowering[Any]]"

LOWERINGS: Final[LoweringTable[OpLowering[Any]]] = LoweringTable()
lowers = LOWERINGS.lowers


def decisions() -> CpuDecisions:
    """Start the decisions about a graph, in which each node has a lowering or a refusal."""
    return Decisions(LOWERINGS)


def given_inputs(node: Node) -> list[Output]:
    """The inputs that are not omitted."""
    return [value for value in node.input_values if value is not None]
