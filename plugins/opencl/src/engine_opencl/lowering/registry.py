"""The lowering interface of the device, and its registry by operator name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeAlias

from engine import lowering
from engine.ir import Constant, ElementType, Output
from engine.lowering import (
    Decisions,
    Lowering,
    LoweringTable,
    PreparedGraph,
    Refusal,
    RefusalCause,
    is_known_when_bound,
    is_omitted,
)
from engine.ops.spec import SpecT
from engine_opencl.elements import FLOATS
from engine_opencl.plan_builder import LaunchPlanBuilder


class OpLowering(Lowering[SpecT]):
    """Lowers one operator, or several similar ones, to kernel launches."""

    def is_bound_late(self, spec: SpecT) -> bool:
        """See `Lowering`."""
        values = [spec.node.input_value(index) for index in self.values if spec.node.has_input(index)]
        return any(not isinstance(value.node, Constant) and is_known_when_bound(value) for value in values)

    @abstractmethod
    def lower(self, spec: SpecT, b: LaunchPlanBuilder) -> None:
        """Add the launches of the spec's node. All shapes are known."""


OpenclDecisions: TypeAlias = "Decisions[OpLowering[Any]]"
OpenclGraph: TypeAlias = "PreparedGraph[OpLowering[Any]]"

LOWERINGS: Final[LoweringTable[OpLowering[Any]]] = LoweringTable(binds_values=True)
lowers = LOWERINGS.lowers


def check_types(values: Sequence[Output | None], allowed: Collection[ElementType] = FLOATS) -> Refusal | None:
    """A refusal if a present value has an unsupported element type, or floating-point types differ."""
    if refused := lowering.check_types(values, allowed):
        return refused
    given = [value for value in values if value is not None and not is_omitted(value)]
    floating = [value for value in given if value.element_type in FLOATS]
    for value in floating[1:]:
        if value.element_type is not floating[0].element_type:
            first = f"{floating[0].name} {floating[0].element_type}"
            return Refusal(
                RefusalCause.ELEMENT_TYPE, f"{value.name} is {value.element_type} and {first}; expected one type"
            )
    return None
