"""What the device knows of an operator: one class each, found by the operator's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from engine.ir import Node, Output, TensorType
from engine_cpu.layout import Layout, LayoutOption

if TYPE_CHECKING:
    from engine_cpu.item import Item
    from engine_cpu.segment import SegmentBuilder


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node has no native kernel.

    `cause` is one of "op", "element type", "shape", "attribute", "dynamic shape", "constant"; `reason` says what was
    found and what is expected.
    """

    cause: str
    reason: str


class OpLowering(ABC):
    """How one operator, or several that are alike, becomes steps of a plan."""

    @abstractmethod
    def check(self, node: Node) -> Refusal | None:
        """Say why `node` cannot run natively; None where it can.

        Looks at types, attributes, rank and which inputs are constant. Lengths may be unknown: the answer must hold
        for all of them.
        """

    def layouts(self, node: Node) -> Sequence[LayoutOption]:
        """The ways to run `node`, whose shapes are static now; the first is preferred where others cost the same."""
        return (LayoutOption.uniform(Layout.PLAIN, node.num_inputs, node.num_outputs),)

    @abstractmethod
    def lower(self, node: Node, b: SegmentBuilder) -> None:
        """Add the steps of `node`, in the layouts of `b.option(node)`. All shapes are static."""

    # -- zero copy -----------------------------------------------------------------------------------------

    def alias_of(self, node: Node) -> int | None:
        """The input whose very bytes output 0 has in PLAIN layout, as a Reshape has; None where there is none.

        `lower` then calls `b.alias`. With this known beforehand, a network output can be written where the alias
        ends up.
        """
        return None

    def placements(self, node: Node, option: LayoutOption) -> Sequence[int | None]:
        """For each input, the byte of output 0 from which on it lies there contiguously, as in a Concat; None if not.

        Producers then write into the output itself where they can; `b.is_placed` tells which have.
        """
        return ()

    # -- several nodes as one ------------------------------------------------------------------------------

    def group_key(self, node: Node) -> Hashable | None:
        """Nodes that read one another, have one lowering and equal keys become one item; None: never."""
        return None

    def item_layouts(self, item: Item) -> Sequence[LayoutOption]:
        """As `layouts`, for an item; one of several nodes has the layouts of `item.inputs` and `item.outputs`."""
        return self.layouts(item.node)

    def lower_item(self, item: Item, b: SegmentBuilder) -> None:
        """As `lower`, for an item."""
        self.lower(item.node, b)


_L = TypeVar("_L", bound=type[OpLowering])
_LOWERINGS: Final[dict[tuple[str, str], OpLowering]] = {}


def lowers(*op_types: str, domain: str = "") -> Callable[[_L], _L]:
    """Register a class of lowerings, made without arguments, for operators of one domain."""

    def register(cls: _L) -> _L:
        lowering = cls()
        for op_type in op_types:
            if (domain, op_type) in _LOWERINGS:
                raise ValueError(f"{op_type} of domain {domain!r} has two lowerings")
            _LOWERINGS[domain, op_type] = lowering
        return cls

    return register


def find_lowering(node: Node) -> OpLowering | None:
    """The lowering for a node's operator; None where it has none."""
    return _LOWERINGS.get((node.domain, node.op_type))


def refusal(node: Node) -> Refusal | None:
    """Why `node` cannot run natively; None where it can."""
    lowering = find_lowering(node)
    if lowering is None:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Refusal("op", f"{name} has no kernel on this device")
    # The operator's own reason says more than that it leaves the rank of its outputs open.
    return _unknown_rank(node.input_values) or lowering.check(node) or _unknown_rank(node.outputs)


def _unknown_rank(values: Iterable[Output | None]) -> Refusal | None:
    for value in values:
        if value is not None and isinstance(value.type, TensorType) and value.shape.rank.is_dynamic:
            return Refusal("dynamic shape", f"the rank of {value.name} is unknown")
    return None


def given_inputs(node: Node) -> list[Output]:
    """The inputs that are not omitted."""
    return [value for value in node.input_values if value is not None]
