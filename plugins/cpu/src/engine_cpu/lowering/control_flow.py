"""If, Loop and Scan: their bodies are compiled, so a node without a kernel in a body decides."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Model, TensorType, ValueType
from engine.ir.walk import CANNOT_RUN
from engine.lowering import Decisions, Refusal, RefusalCause
from engine.ops.spec import OperatorSpec
from engine_cpu.layout import LayoutOption
from engine_cpu.lowering.registry import LOWERINGS, OpLowering, lowers
from engine_cpu.segment import SegmentBuilder


@lowers("If", "Loop", "Scan")
class ControlFlow(OpLowering[OperatorSpec]):
    """Runs as a segment of its own, not as steps of a plan; see `repetition` and `choice` in `engine_cpu.segments`."""

    takes_any_type = True

    def check(self, spec: OperatorSpec) -> Refusal | None:
        """See `Lowering`; a node in a body that has no kernel. A branch that cannot run needs none."""
        for name, body in spec.node.bodies.items():
            if CANNOT_RUN in body.rt_info:
                continue
            if why := _refusal_in(body):
                return Refusal(why.cause, f"{name}: {why.reason}")
        return None

    def layouts(self, spec: OperatorSpec) -> Sequence[LayoutOption]:
        """None: it is never part of a plan."""
        return ()

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        """Never called, since control flow has segments of its own."""
        raise AssertionError(f"{spec.node} is a segment of its own, not a step of a plan")


def _refusal_in(body: Model) -> Refusal | None:
    for parameter in (*body.parameters, *body.captures):
        if not isinstance(parameter.type, TensorType):
            return _no_tensor(parameter.friendly_name, parameter.type)
    for node, why in Decisions(LOWERINGS).refusals(body):
        return Refusal(why.cause, f"{node}: {why.reason}")
    return None


def _no_tensor(name: str, found: ValueType) -> Refusal:
    return Refusal(RefusalCause.ELEMENT_TYPE, f"{name} is {found}; expected a tensor")
