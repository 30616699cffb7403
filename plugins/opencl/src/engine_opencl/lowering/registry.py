"""The lowering interface of the device, and its registry by operator name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeAlias

from engine import lowering
from engine.ir import Constant, ElementType, Node, Output
from engine.ir.element_type import f64
from engine.lowering import (
    Decision,
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
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.elements import FLOATS, REALS
from engine_opencl.plan_builder import LaunchPlanBuilder


class OpLowering(Lowering[SpecT]):
    """Lowers one operator, or several similar ones, to kernel launches."""

    def is_bound_late(self, spec: SpecT) -> bool:
        values = [spec.node.input_value(index) for index in self.values if spec.node.has_input(index)]
        return any(not isinstance(value.node, Constant) and is_known_when_bound(value) for value in values)

    def computes_with(self, spec: SpecT) -> Sequence[Output | None]:
        """The values whose elements kernels compute with, and not only copy; all, unless a lowering says otherwise."""
        return *spec.node.input_values, *spec.node.outputs

    @abstractmethod
    def lower(self, spec: SpecT, b: LaunchPlanBuilder) -> None:
        """Add the launches of the spec's node. All shapes are known."""


class MovingLowering(OpLowering[SpecT]):
    """Base of lowerings that copy elements bit by bit, which every device does for every type."""

    def computes_with(self, spec: SpecT) -> Sequence[Output | None]:
        return ()


class _WithoutF64(LoweringTable[OpLowering[Any]]):
    """The same lowerings for devices that only move f64: in OpenCL, its arithmetic is optional."""

    def __init__(self, table: LoweringTable[OpLowering[Any]]) -> None:
        super().__init__(binds_values=table.binds_values)
        self._lowerings, self._homes = table._lowerings, table._homes

    def decide(self, node: Node) -> Decision[OpLowering[Any]]:
        """See `LoweringTable`."""
        decision = super().decide(node)
        if decision.chosen is not None:
            spec, lowering = decision.chosen
            for value in lowering.computes_with(spec):
                if value is not None and not is_omitted(value) and value.element_type is f64:
                    reason = f"{value.name} is f64; the device has no arithmetic for it (cl_khr_fp64)"
                    return Decision(Refusal(RefusalCause.ELEMENT_TYPE, reason), None)
        return decision


OpenclTable: TypeAlias = "LoweringTable[OpLowering[Any]]"
OpenclDecisions: TypeAlias = "Decisions[OpLowering[Any]]"
OpenclGraph: TypeAlias = "PreparedGraph[OpLowering[Any]]"

LOWERINGS: Final[OpenclTable] = LoweringTable(binds_values=True)
lowers = LOWERINGS.lowers
_LOWERINGS_WITHOUT_F64: Final = _WithoutF64(LOWERINGS)


def lowerings_of(facts: DeviceFacts) -> OpenclTable:
    """The table of lowerings for a device; without f64 if it has none."""
    return LOWERINGS if facts.has_fp64 else _LOWERINGS_WITHOUT_F64


def check_types(values: Sequence[Output | None], allowed: Collection[ElementType] = FLOATS) -> Refusal | None:
    """A refusal if a present value has an unsupported element type, or floating-point types differ."""
    if refused := lowering.check_types(values, allowed):
        return refused
    given = [value for value in values if value is not None and not is_omitted(value)]
    floating = [value for value in given if value.element_type in REALS]
    for value in floating[1:]:
        if value.element_type is not floating[0].element_type:
            first = f"{floating[0].name} {floating[0].element_type}"
            return Refusal(
                RefusalCause.ELEMENT_TYPE, f"{value.name} is {value.element_type} and {first}; expected one type"
            )
    return None
