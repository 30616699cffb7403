"""Elementwise operators whose code depends on attributes, or on the types of their inputs."""

from __future__ import annotations

from abc import abstractmethod

from engine.ir.element_type import f64, u64
from engine.lowering import Refusal
from engine.ops.elementwise import BitShiftSpec, IsInfSpec, ModSpec
from engine.ops.internal import activation_of
from engine.ops.spec import OperatorSpec, SpecT
from engine_opencl.elements import FLOATS, INTEGERS, REALS, c_type
from engine_opencl.expressions import Expression, Operation, for_type
from engine_opencl.lowering.elementwise import NUMBERS, JoinableLowering, activation_code, finish, operand
from engine_opencl.lowering.registry import check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder


class ParametricLowering(JoinableLowering[SpecT]):
    """Base: the code depends on the spec."""

    def check(self, spec: SpecT) -> Refusal | None:
        return check_types(spec.node.input_values, REALS)

    @abstractmethod
    def code(self, spec: SpecT) -> str:
        """OpenCL C code with operands {0}, {1} ..."""

    def lower(self, spec: SpecT, b: LaunchPlanBuilder) -> None:
        operands = tuple(operand(value, b) for value in spec.node.input_values if value is not None)
        y = spec.output()
        computed = [value.element_type for value in spec.node.input_values if value is not None][-1]
        finish(y, Operation(for_type(self.code(spec), c_type(computed)), operands, c_type(y.element_type)), b)


@lowers("IsInf", spec=IsInfSpec)
class IsInfLowering(ParametricLowering[IsInfSpec]):
    """Either infinity, or one of them."""

    def code(self, spec: IsInfSpec) -> str:
        wanted = ["{0} == INFINITY"] * spec.detect_positive + ["{0} == -INFINITY"] * spec.detect_negative
        return f"({' || '.join(wanted)})" if wanted else "({0} != {0} && 0)"


@lowers("Mod", spec=ModSpec)
class ModLowering(ParametricLowering[ModSpec]):
    """The remainder with the sign of the divisor, or with `fmod` of the dividend; 0 for integers modulo zero."""

    def check(self, spec: ModSpec) -> Refusal | None:
        return check_types(spec.node.input_values, NUMBERS)

    def code(self, spec: ModSpec) -> str:
        if spec.output().element_type in REALS:
            return "fmod({0}, {1})" if spec.fmod else "floor_remainder({0}, {1})"
        return f"{'remainder' if spec.fmod else 'modulo'}_{c_type(spec.output().element_type)}({{0}}, {{1}})"


@lowers("BitShift", spec=BitShiftSpec)
class BitShiftLowering(ParametricLowering[BitShiftSpec]):
    """Bits shifted out are lost; a right shift replicates the sign."""

    def check(self, spec: BitShiftSpec) -> Refusal | None:
        return check_types(spec.node.input_values, INTEGERS)

    def code(self, spec: BitShiftSpec) -> str:
        return f"{spec.direction.lower()}_{c_type(spec.output().element_type)}({{0}}, {{1}})"


@lowers("Pow")
class PowLowering(ParametricLowering[OperatorSpec]):
    """Float bases with any exponent; integer bases with integer exponents modulo 2^bits, or float ones, saturated."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        base, exponent = spec.node.input_values
        is_real = spec.output().element_type in REALS
        if not is_real and exponent is not None and exponent.element_type in REALS:
            return check_types((base,), INTEGERS - {u64})
        return check_types((base,), NUMBERS) or check_types((exponent,), NUMBERS)

    def code(self, spec: OperatorSpec) -> str:
        base, exponent = spec.node.input_value(0).element_type, spec.node.input_value(1).element_type
        if base in REALS:
            # In the wider type of both; another type of the result rounds it.
            wide = "double" if f64 in (base, exponent) else "float"
            return f"pow(({wide}){{0}}, ({wide}){{1}})"
        if exponent in REALS:
            return f"convert_{c_type(base)}_sat(real_power({{0}}, {{1}}))"
        if not exponent.is_signed:
            return "unsigned_power({0}, {1})"
        return "({1} < 0 ? {0} == 1 : unsigned_power({0}, {1}))" if base is u64 else "power({0}, {1})"


@lowers("Clip")
class ClipLowering(JoinableLowering[OperatorSpec]):
    """Constant or computed limits; if min > max, the result is max."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_types((*spec.node.input_values, *spec.node.outputs), NUMBERS)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        y = spec.output()
        element_type = y.element_type
        clipped: Expression = operand(spec.node.input_value(0), b)
        activation = activation_of(spec.node) if element_type in FLOATS else None
        if activation is not None:
            finish(y, Operation(activation_code(activation, "{0}"), (clipped,)), b)
            return
        names = ("larger", "smaller") if element_type in REALS else ("max", "min")
        for index, name in enumerate(names, 1):
            if (limit := spec.input(index)) is not None:
                operands = (clipped, operand(limit, b))
                code = for_type(f"{name}({{0}}, {{1}})", c_type(element_type))
                clipped = Operation(code, operands, c_type(element_type))
        finish(y, clipped if isinstance(clipped, Operation) else Operation("{0}", (clipped,), c_type(element_type)), b)
