"""Elementwise operators whose code depends on attributes or on their inputs' types."""

from __future__ import annotations

from abc import abstractmethod

from engine.ir import Node
from engine.ir.element_type import i32, i64, u8
from engine.ops.registry import attribute
from engine_opencl.elements import FLOATS, c_type
from engine_opencl.expressions import Operation
from engine_opencl.lowering.elementwise import (
    NUMBERS,
    WHOLE,
    ElementwiseLowering,
    finish,
    literal,
    operand,
)
from engine_opencl.lowering.registry import Refusal, check_types, lowers
from engine_opencl.plan import PlanBuilder


class ParametricLowering(ElementwiseLowering):
    """What these have in common: the code comes from the node."""

    def check(self, node: Node) -> Refusal | None:
        return check_types(node.input_values)

    @abstractmethod
    def code(self, node: Node) -> str:
        """OpenCL C with operands {0}, {1} ..."""

    def lower(self, node: Node, b: PlanBuilder) -> None:
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
    """The remainder with the divisor's sign, or where `fmod` is set with the dividend's; by zero it is 0."""

    def check(self, node: Node) -> Refusal | None:
        if node.input_value(0).element_type in FLOATS and not attribute(node, "fmod"):
            return Refusal("attribute", "fmod is 0; expected 1 for floating point")
        return check_types(node.input_values, NUMBERS)

    def code(self, node: Node) -> str:
        if node.input_value(0).element_type in FLOATS:
            return "fmod({0}, {1})"
        return "remainder_of({0}, {1})" if attribute(node, "fmod") else "modulo({0}, {1})"


@lowers("BitShift")
class BitShiftLowering(ParametricLowering):
    """Bits that are moved out are lost."""

    def check(self, node: Node) -> Refusal | None:
        return check_types(node.input_values, {u8})

    def code(self, node: Node) -> str:
        return f"({{1}} > 7 ? 0 : {{0}} {'<<' if attribute(node, 'direction') == 'LEFT' else '>>'} {{1}})"


@lowers("Pow")
class PowLowering(ParametricLowering):
    """Powers of floats by any number, of integers by integers modulo 2^bits; of 1 / n only the whole part stays."""

    def check(self, node: Node) -> Refusal | None:
        if node.input_value(0).element_type in FLOATS:
            return check_types((node.input_value(1),), {*FLOATS, i32, i64})
        return check_types(node.input_values, WHOLE)

    def code(self, node: Node) -> str:
        return "pow({0}, (float){1})" if node.input_value(0).element_type in FLOATS else "power({0}, {1})"
