"""Operators that compute each element from elements of the inputs: one generated kernel for a chain of them."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from engine.ir import ElementType, Node, Output
from engine.ir.element_type import boolean
from engine.lowering import Refusal
from engine.native import pointwise_functions
from engine.ops.activations import ActivationSpec
from engine.ops.internal import Activation, activation_of
from engine.ops.spec import OperatorSpec, SpecT
from engine.ops.traits import traits_of_operator
from engine_opencl.conversions import register_type
from engine_opencl.elements import CONVERTED, INTEGERS, REALS, c_type
from engine_opencl.expressions import Expression, Leaf, Operation, for_type
from engine_opencl.lowering.expression_kernel import emit
from engine_opencl.lowering.registry import OpenclDecisions, OpLowering, check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder

NUMBERS: Final = REALS | INTEGERS
ANY: Final = NUMBERS | {boolean}
BOOLEAN: Final = frozenset({boolean})

# Operator: its supported types, and the code with operands {0}, {1} ...; {T} is the C type of its result.
CODES: Final[dict[str, tuple[frozenset[ElementType], str]]] = {
    "Add": (NUMBERS, "({0} + {1})"),
    "Sub": (NUMBERS, "({0} - {1})"),
    "Mul": (NUMBERS, "({0} * {1})"),
    "Div": (NUMBERS, "quotient_{T}({0}, {1})"),
    "Neg": (NUMBERS, "(-{0})"),
    "Abs": (NUMBERS, "magnitude_{T}({0})"),
    "Sign": (NUMBERS, "({0} != {0} ? {0} : ({T})(({0} > 0) - ({0} < 0)))"),
    "BitwiseAnd": (INTEGERS, "({0} & {1})"),
    "BitwiseOr": (INTEGERS, "({0} | {1})"),
    "BitwiseXor": (INTEGERS, "({0} ^ {1})"),
    "BitwiseNot": (INTEGERS, "(~{0})"),
    "And": (BOOLEAN, "({0} & {1})"),
    "Or": (BOOLEAN, "({0} | {1})"),
    "Xor": (BOOLEAN, "({0} ^ {1})"),
    "Not": (BOOLEAN, "({0} ^ 1)"),
    "Equal": (ANY, "({0} == {1})"),
    "Less": (NUMBERS, "({0} < {1})"),
    "LessOrEqual": (NUMBERS, "({0} <= {1})"),
    "Greater": (NUMBERS, "({0} > {1})"),
    "GreaterOrEqual": (NUMBERS, "({0} >= {1})"),
    "IsNaN": (REALS, "(isnan({0}) != 0)"),
    "Where": (ANY | CONVERTED, "({0} ? {1} : {2})"),
}
_REAL: Final = re.compile(r"\breal\(([^()]*)\)")
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")
_SOURCE: Final = re.compile(r"\b[abc]\b")


def literal(value: float) -> str:
    """A number in OpenCL C, with exactly the bits of its float32."""
    single = np.float32(value)
    if np.isnan(single):
        return "NAN"
    if np.isinf(single):
        return "INFINITY" if single > 0 else "(-INFINITY)"
    return f"({float(single).hex()}f)"


def pointwise_code(name: str, *operands: str) -> str:
    """The code of a function of `engine.native.pointwise_functions`; each operand may be evaluated several times."""
    code = _REAL.sub(_as_float, pointwise_functions()[name].expression)
    sources = dict(zip("abc", operands, strict=False))
    return f"({_SOURCE.sub(lambda found: sources[found[0]], code)})"


def _as_float(real: re.Match[str]) -> str:
    return "(" + _NUMBER.sub(lambda number: f"{float(number[0])}f", real[1]) + ")"


def activation_code(activation: Activation, x: str) -> str:
    """The code of an activation of `x`, which may be evaluated several times."""
    if activation.name == "Relu":
        return f"relu({x})"
    return pointwise_code(activation.name, x, *map(literal, activation.parameters))


class JoinableLowering(OpLowering[SpecT]):
    """Operators that compute each element from elements of the inputs, so that one kernel can run a chain of them."""


@lowers(*CODES)
class ElementwiseLowering(JoinableLowering[OperatorSpec]):
    """Arithmetic, comparisons and logic with broadcasting."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        allowed, _ = CODES[spec.op_type]
        return check_types(spec.node.input_values[1:] if spec.op_type == "Where" else spec.node.input_values, allowed)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        _, code = CODES[spec.op_type]
        operands = tuple(operand(value, b) for value in spec.node.input_values if value is not None)
        result = register_type(spec.output().element_type)
        computed = [value.element_type for value in spec.node.input_values if value is not None][-1]
        code = for_type(code.replace("{T}", result), register_type(computed))
        finish(spec.output(), Operation(code, operands, result), b)


@lowers("Relu", *(name for name in pointwise_functions() if name != "Clip" and traits_of_operator(name).pointwise))
class PointwiseLowering(JoinableLowering[OperatorSpec]):
    """Functions of real numbers, whose code is made from the expressions in `csrc/pointwise.def`."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_types((*spec.node.input_values, *spec.node.outputs), REALS)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        operands = tuple(operand(value, b) for value in spec.node.input_values if value is not None)
        result = register_type(spec.output().element_type)
        finish(spec.output(), Operation(for_type(_code_of(spec), result), operands, result), b)


def _code_of(spec: OperatorSpec) -> str:
    activation = activation_of(spec.node)
    if activation is not None:
        return activation_code(activation, "{0}")
    inputs = [f"{{{index}}}" for index in range(spec.node.num_inputs)]
    parameters = map(literal, spec.parameters) if isinstance(spec, ActivationSpec) else ()
    return pointwise_code(spec.op_type, *inputs, *parameters)


@lowers("Sum", "Max", "Min", "Mean")
class VariadicLowering(JoinableLowering[OperatorSpec]):
    """Operators of any number of inputs."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_types(spec.node.input_values, NUMBERS if spec.op_type in ("Max", "Min") else REALS)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        y, is_mean = spec.output(), spec.op_type == "Mean"
        codes = {"Sum": "({0} + {1})", "Mean": "({0} + {1})", "Max": "larger({0}, {1})", "Min": "smaller({0}, {1})"}
        if y.element_type not in REALS:
            codes = {"Max": "max({0}, {1})", "Min": "min({0}, {1})"}
        result = c_type(y.element_type)
        first, *others = (operand(value, b) for value in spec.node.input_values if value is not None)
        for other in others:
            first = Operation(for_type(codes[spec.op_type], result), (first, other), result)
        if is_mean:
            first = Operation(f"({{0}} / {literal(len(others) + 1)})", (first,), result)
        finish(y, first if others or is_mean else Operation("{0}", (first,), result), b)


def operand(value: Output, b: LaunchPlanBuilder) -> Expression:
    """An input of an elementwise node: a pending expression, or the value in memory."""
    return b.deferred.pop(value, None) or Leaf(value)


def finish(value: Output, expression: Expression, b: LaunchPlanBuilder) -> None:
    """Pass the expression of a value on to its only, elementwise, consumer, or launch a kernel for it."""
    consumers = value.target_inputs
    if len(consumers) == 1 and _can_join(consumers[0].node, value, b.decisions):
        b.deferred[value] = expression
        return
    emit(value, expression, b)


def _can_join(consumer: Node, value: Output, decisions: OpenclDecisions) -> bool:
    chosen = decisions[consumer].chosen
    if chosen is None or not isinstance(chosen[1], JoinableLowering):
        return False
    return consumer.output(0).shape.get_shape() == value.shape.get_shape()
