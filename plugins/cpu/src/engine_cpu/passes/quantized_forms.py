"""The convolutions and products between quantizations that have kernels which multiply integers."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine.ir import Constant, Output, u8
from engine.lowering import first_refusal
from engine.ops.conv import ConvSpec
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine.ops.spec import OperatorSpec
from engine.passes.common.quantization_capabilities import PrecisionRestriction, QuantizationCapabilities
from engine_cpu.lowering.checks import check_spatial_rank, check_steps
from engine_cpu.lowering.integer_limits import (
    MAX_TERMS,
    check_integer_conv,
    check_integer_product,
    check_zero_points,
)


def _limits_of_conv(spec: OperatorSpec) -> str | None:
    assert isinstance(spec, ConvSpec)
    refusal = first_refusal(
        check_spatial_rank(spec.node.input_value(0)),
        check_steps(spec),
        check_integer_conv(spec, spec.weights),
        None if _is_symmetric(spec.weights) else check_zero_points(spec, spec.weights),
    )
    return None if refusal is None else refusal.reason


def _is_symmetric(weights: Output) -> bool:
    """Whether dequantized constants have the zero point 0 as i8, or 128 as u8."""
    from engine.passes.common.quantized_operands import dequantization_of  # with what only quantized models need

    source = dequantization_of(weights)
    if source is None:
        return True
    points = source.input_value(2).node if source.has_input(2) else Constant(np.zeros((), np.uint8))
    center = 128 if source.input_value(0).element_type is u8 else 0
    return isinstance(points, Constant) and bool((points.data == center).all())


def _limits_of_product(spec: OperatorSpec) -> str | None:
    if isinstance(spec, GemmSpec):
        return "there is no integer kernel for a transposed A" if spec.transA else None
    assert isinstance(spec, MatMulSpec)
    refusal = check_integer_product(spec, spec.node.input_value(1))
    return None if refusal is None else refusal.reason


CAPABILITIES: Final = QuantizationCapabilities(
    "CPU",
    [
        PrecisionRestriction(
            operator="Conv",
            symmetric_weights=False,
            transposed=True,
            max_terms=MAX_TERMS,
            limits=_limits_of_conv,
        ),
        PrecisionRestriction(
            operator="MatMul",
            symmetric_weights=False,
            computed_weights=True,
            computed_scales=True,
            max_terms=MAX_TERMS,
            limits=_limits_of_product,
        ),
        PrecisionRestriction(operator="AveragePool"),
        PrecisionRestriction(operator="Add"),
        PrecisionRestriction(operator="Mul"),
        PrecisionRestriction(operator="Softmax"),
    ],
    tables=True,
)
"""What the device computes on integers."""
