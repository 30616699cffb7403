"""Elementwise operators whose code depends on attributes or on their inputs' types."""

from __future__ import annotations

from abc import abstractmethod

from engine.ir import Node
from engine.ir.element_type import i32, i64
from engine.lowering import Refusal
from engine.ops.internal import activation_of
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS, c_type
from engine_opencl.expressions import Expression, Operation
from engine_opencl.lowering.elementwise import (
    NUMBERS,
    WHOLE,
    ElementwiseLowering,
    activation_code,
    finish,
    literal,
    operand,
)
from engine_opencl.lowering.registry import check_types, lowers
from engine_opencl.plan import PlanBuilder


class ParametricLowering(ElementwiseLowering):
    """What these have in common: the code comes from the node."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values)

    @abstractmethod
    def code(self, node: Node) -> str:
        """OpenCL C with operands {0}, {1} ..."""

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        operands = tuple(operand(value, node, b) for value in node.input_values if value is not None)
        finish(node, Operation(self.code(node), operands, c_type(node.output(0).element_type)), b)


@lowers("Celu", "Selu", "ThresholdedRelu", "Shrink")
class RareActivationLowering(ParametricLowering):
    """Activations that few networks have."""

    def code(self, node: Node) -> str:
        names = ("lambd", "bias") if node.op_type == "Shrink" else ("alpha", "gamma")
        a = literal(float(attribute(node, names[0])))
        if node.op_type == "Celu":
            return f"({{0}} < 0.0f ? {a} * expm1({{0}} / {a}) : {{0}})"
        if node.op_type == "ThresholdedRelu":
            return f"({{0}} > {a} ? {{0}} : 0.0f)"
        second = literal(float(attribute(node, names[1])))
        if node.op_type == "Shrink":
            return f"({{0}} < -{a} ? {{0}} + {second} : ({{0}} > {a} ? {{0}} - {second} : 0.0f))"
        return f"({second} * ({{0}} > 0.0f ? {{0}} : {a} * expm1({{0}})))"


@lowers("IsInf")
class IsInfLowering(ParametricLowering):
    """Either infinity, or one of them."""

    def code(self, node: Node) -> str:
        tests = [("detect_positive", "{0} == INFINITY"), ("detect_negative", "{0} == -INFINITY")]
        wanted = [code for name, code in tests if attribute(node, name)]
        return f"({' || '.join(wanted)})" if wanted else "({0} != {0} && 0)"


@lowers("Mod")
class ModLowering(ParametricLowering):
    """The remainder with the divisor's sign, or with `fmod` the dividend's; of integers by zero it is 0."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, NUMBERS)

    def code(self, node: Node) -> str:
        if node.input_value(0).element_type in FLOATS:
            return "fmod({0}, {1})" if attribute(node, "fmod") else "floor_remainder({0}, {1})"
        return "remainder_of({0}, {1})" if attribute(node, "fmod") else "modulo({0}, {1})"


@lowers("BitShift")
class BitShiftLowering(ParametricLowering):
    """Bits that are moved out are lost; on the right the sign is repeated."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, WHOLE)

    def code(self, node: Node) -> str:
        return "shifted_left({0}, {1})" if attribute(node, "direction") == "LEFT" else "shifted_right({0}, {1})"


@lowers("Pow")
class PowLowering(ParametricLowering):
    """Powers of floats by any number, of integers by integers modulo 2^bits; of what is no integer the whole part
    stays."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        is_real = node.input_value(0).element_type in FLOATS
        return check_types(node.input_values[:1], NUMBERS) or check_types(
            node.input_values[1:], {*FLOATS, i32, i64} if is_real else NUMBERS
        )

    def code(self, node: Node) -> str:
        if node.input_value(0).element_type in FLOATS:
            return "pow({0}, (float){1})"
        return "real_power({0}, {1})" if node.input_value(1).element_type in FLOATS else "power({0}, {1})"


@lowers("Clip")
class ClipLowering(ElementwiseLowering):
    """Limits that are constants or computed; where they cross, the upper one holds."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((*node.input_values, *node.outputs), NUMBERS)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        element_type = node.output(0).element_type
        clipped: Expression = operand(node.input_value(0), node, b)
        activation = activation_of(node) if element_type in FLOATS else None
        if activation is not None:
            finish(node, Operation(activation_code(activation, "{0}"), (clipped,)), b)
            return
        names = ("larger", "smaller") if element_type in FLOATS else ("max", "min")
        for index, name in enumerate(names, 1):
            if node.has_input(index):
                limit = operand(node.input_value(index), node, b)
                clipped = Operation(f"{name}({{0}}, {{1}})", (clipped, limit), c_type(element_type))
        finish(
            node, clipped if isinstance(clipped, Operation) else Operation("{0}", (clipped,), c_type(element_type)), b
        )
