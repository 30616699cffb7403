"""Lowers Cast and CastLike, which convert between element types."""

from __future__ import annotations

from engine.ir import ElementType
from engine.ir.element_type import bf16, boolean, f8e8m0, f16, f64
from engine.lowering import Refusal
from engine.ops.elementwise import ConversionSpec
from engine_opencl.conversions import register_type, rounded_code
from engine_opencl.elements import CONVERTED, INTEGERS, SMALL_INTEGERS, STORED, c_type
from engine_opencl.expressions import Operation
from engine_opencl.lowering.elementwise import JoinableLowering, finish, operand
from engine_opencl.lowering.registry import check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder


@lowers("Cast", "CastLike", spec=ConversionSpec)
class CastLowering(JoinableLowering[ConversionSpec]):
    """Conversion between stored types; float to integer truncates and saturates; bool is true for nonzero values."""

    def check(self, spec: ConversionSpec) -> Refusal | None:
        values = (spec.node.input_value(0),)
        return check_types(values, STORED) or check_types(spec.node.outputs, STORED)

    def lower(self, spec: ConversionSpec, b: LaunchPlanBuilder) -> None:
        x, y = spec.node.input_value(0), spec.output()
        finish(y, Operation(_code(spec), (operand(x, b),), register_type(y.element_type)), b)


def _code(spec: ConversionSpec) -> str:
    source, target = spec.node.input_value(0).element_type, spec.output().element_type
    if target is source:
        return "{0}"
    is_real = register_type(source) in ("float", "double")
    if is_real and target in SMALL_INTEGERS:
        return _rounded(target, spec, "({0} != {0} ? 0 : convert_int_sat({0}))")  # whose lowest bits remain
    if source is f64 and target is f8e8m0:  # ONNX's reference rounds to f32 first
        return _rounded(target, spec, "convert_float_rte({0})")
    if source is f64 and target in {f16, bf16, *CONVERTED} - SMALL_INTEGERS:
        return _rounded(target, spec, "to_odd({0})")
    if target is bf16 and source in INTEGERS and source.bits >= 32:
        return "bfloat_of_signed({0})" if source.is_signed else "bfloat_of_unsigned({0})"
    if target in {f16, bf16, *CONVERTED}:
        return _rounded(target, spec, "{0}")
    if target is boolean:
        return "({0} != 0)"
    if target not in INTEGERS or not is_real:
        return "{0}"
    return f"({{0}} != {{0}} ? ({c_type(target)})0 : convert_{c_type(target)}_sat({{0}}))"


def _rounded(target: ElementType, spec: ConversionSpec, value: str) -> str:
    """A value as the nearest number of a narrower type."""
    if target in CONVERTED:
        return rounded_code(target, value, spec.round_mode, saturate=spec.saturate)
    return f"rounded_to_half({value})" if target is f16 else f"rounded_to_bfloat({value})"
