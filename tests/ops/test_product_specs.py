"""Specs of products, Einsum and quantization: defaults, what they resolve, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import OperatorSpecError
from engine.ir import Node, Parameter, PartialShape, TensorType, f16, f32, i8
from engine.ops.einsum import EinsumSpec
from engine.ops.fused_activation import Activation
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.internal.scale_shift import ScaleShiftSpec
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine.ops.quantize import QuantizeSpec


def node(op_type: str, *shapes: Any, domain: str = "", **attributes: Any) -> Node:
    """A node that no inference has seen; a shape is a list, or None for an unknown rank."""
    values = [Parameter(f32, PartialShape.dynamic() if shape is None else shape) for shape in shapes]
    types = [TensorType(f32, PartialShape.dynamic())]
    return Node(op_type, values, attributes, domain=domain, types=types)


def test_products() -> None:
    plain = MatMulSpec.of(node("MatMul", [2, 3], [3, 4]))
    assert (plain.trans_b, plain.activation) == (False, None)
    attributes = {"trans_b": 1, "activation": "HardSigmoid", "activation_parameters": (0.5, 0.25)}
    fused = MatMulSpec.of(node("FusedMatMul", [2, 3], [4, 3], domain=INTERNAL_DOMAIN, **attributes))
    assert (fused.trans_b, fused.activation) == (True, Activation("HardSigmoid", (0.5, 0.25)))
    gemm = GemmSpec.of(node("Gemm", [2, 3], [4, 3], alpha=2, transB=1))
    assert (gemm.alpha, gemm.beta, gemm.transA, gemm.transB) == (2.0, 1.0, False, True)
    scaled = node("ScaleShift", [1, 2, 3], [2], [2], domain=INTERNAL_DOMAIN, activation="Relu")
    assert ScaleShiftSpec.of(scaled).activation == Activation("Relu")


def test_equations() -> None:
    spec = EinsumSpec.of(node("Einsum", [2, 3], [3, 4], equation="ij, jk -> ik"))
    assert spec.labels is not None
    assert (spec.labels.terms, spec.labels.result) == ((("i", "j"), ("j", "k")), ("i", "k"))
    assert (spec.is_explicit, spec.has_ellipsis) == (True, False)
    assert EinsumSpec.of(node("Einsum", [2, 3], None, equation="ij,jk")).labels is None


def test_quantization() -> None:
    spec = QuantizeSpec.of(node("QuantizeLinear", [2, 3, 4], [4], axis=-1))
    assert (spec.axis, spec.block_size, spec.output_dtype, spec.precision, spec.saturate) == (2, 0, None, None, True)
    spec = QuantizeSpec.of(node("QuantizeLinear", [4], [], output_dtype=i8.onnx, precision=f16.onnx, saturate=0))
    assert (spec.output_dtype, spec.precision, spec.saturate) == (i8, f16, False)
    assert spec.axis == 1  # which the one scale ignores
    back = QuantizeSpec.of(node("DequantizeLinear", None, [4], axis=-2, block_size=16))
    assert (back.axis, back.block_size) == (-2, 16)


@pytest.mark.parametrize(
    ("cls", "op_type", "shapes", "attributes", "message"),
    [
        (GemmSpec, "Gemm", ([2, 3], [3, 4]), {"alpha": "1"}, "attribute alpha is '1'; allowed: a float"),
        (
            EinsumSpec,
            "Einsum",
            ([2],),
            {"equation": "i-"},
            "attribute equation is 'i-'; allowed: comma-separated terms",
        ),
        (EinsumSpec, "Einsum", ([2],), {}, "required attribute 'equation' is missing"),
        (QuantizeSpec, "DequantizeLinear", ([2], [2]), {"axis": 1, "block_size": 1}, "axis is 1; allowed: -1..0"),
        (QuantizeSpec, "QuantizeLinear", ([2], [2]), {"block_size": -1}, "block_size is -1; allowed: 0 or more"),
        (QuantizeSpec, "QuantizeLinear", ([2], []), {"precision": 99}, "precision is 99; allowed: a value of Tensor"),
    ],
)
def test_what_cannot_be_is_refused(
    cls: Any, op_type: str, shapes: Any, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        cls.of(node(op_type, *shapes, **attributes))
