"""Operators of extensions with a native kernel: a step of the plan, as any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import DeviceError
from engine.ir import Node, Output, TensorType
from engine.lowering import Refusal, RefusalCause
from engine.ops.origin import extension_of, operator_of
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.registry import LOWERINGS, OpLowering
from engine_cpu.segment import SegmentBuilder

if TYPE_CHECKING:
    from engine.ops.extension import Operator


@LOWERINGS.lowers_extensions
class ExtensionLowering(OpLowering[OperatorSpec]):
    """A function of a shared library, which prepares itself for the shapes of each plan."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node, operator = spec.node, _operator_of(spec)
        assert operator.kernel is not None
        why = operator.kernel.refusal(node, operator.kernel_attributes(node))
        if why is not None:
            return Refusal(RefusalCause.OP, why)
        if _has_known_inputs(node) and operator.kernel_types(node) is None:
            return Refusal(
                RefusalCause.SHAPE, f"the type rule of {extension_of(node)} does not tell what its kernel writes"
            )
        return None

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node, operator = spec.node, _operator_of(spec)
        assert operator.kernel is not None
        given: dict[int, Output] = {i: value for i, value in enumerate(node.input_values) if value is not None}
        constants = {index: b.value(value) for index, value in given.items() if b.is_constant(value)}
        inputs = [b.input(value) for value in given.values()]
        outputs = [b.output(value) for value in node.outputs]
        title = f"{node} ({extension_of(node)})"
        types = operator.kernel_types(node)
        if types is None or [(t.element_type, t.shape.get_shape()) for t in types] != [
            (value.element_type, value.shape.get_shape()) for value in node.outputs
        ]:
            stated = ", ".join(str(value.type) for value in node.outputs)
            found = "unknown lengths" if types is None else ", ".join(map(str, types))
            raise DeviceError(f"{title}: its outputs are declared as {stated}, but the type rule gives {found}")
        call = operator.kernel.prepare(node, operator.kernel_attributes(node), constants, title)
        # From here on the plan keeps the call.
        b.step(node, "extension", inputs, outputs, call=call.token)


def _has_known_inputs(node: Node) -> bool:
    types = [value.type for value in node.input_values if value is not None]
    return all(isinstance(each, TensorType) and each.shape.is_static for each in types)


def _operator_of(spec: OperatorSpec) -> Operator:
    operator = operator_of(spec.node)
    assert operator is not None
    return operator
