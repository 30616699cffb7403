"""Operators of extensions with a native kernel: a step of the plan, as any other."""

from __future__ import annotations

from engine.ir import Output
from engine.lowering import Refusal, RefusalCause
from engine.ops.extension import Operator, extension_of, operator_of
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.registry import LOWERINGS, OpLowering
from engine_cpu.segment import SegmentBuilder


@LOWERINGS.lowers_extensions
class ExtensionLowering(OpLowering[OperatorSpec]):
    """A function of a shared library, which prepares itself for the shapes of each plan."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        kernel, operator = _operator_of(spec).kernel, _operator_of(spec)
        assert kernel is not None
        why = kernel.refusal(spec.node, operator.kernel_attributes(spec.node))
        return None if why is None else Refusal(RefusalCause.OP, why)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node, operator = spec.node, _operator_of(spec)
        assert operator.kernel is not None
        given: dict[int, Output] = {i: value for i, value in enumerate(node.input_values) if value is not None}
        constants = {index: b.value(value) for index, value in given.items() if b.is_constant(value)}
        inputs = [b.input(value) for value in given.values()]
        outputs = [b.output(value) for value in node.outputs]
        title = f"{node} ({extension_of(node)})"
        call = operator.kernel.prepare(node, operator.kernel_attributes(node), constants, title)
        # From here on the plan keeps the call.
        b.step(node, "extension", inputs, outputs, call=call.token)


def _operator_of(spec: OperatorSpec) -> Operator:
    operator = operator_of(spec.node)
    assert operator is not None
    return operator
