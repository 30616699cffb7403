"""What breaks if these fail: a compiled quantized model has other types than its definition, or is not checked."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from engine.errors import TypeInferenceError
from engine.ir import Constant, ElementType, Node, Parameter, TensorType, f32, i8, u8
from engine.ops.internal import Quantized, QuantizedConv, QuantizedMatMul, decompose

SCALE = Constant(np.float32(0.1))
ZERO = {u8: Constant(np.uint8(3)), i8: Constant(np.int8(-3))}


def vector(*values: float) -> Constant:
    return Constant(np.array(values, np.float32))


def weights(*shape: int) -> Constant:
    return Constant(np.ones(shape, np.int8))


def conv(x: list[Any], **changed: Any) -> Node:
    operands: dict[str, Any] = {
        "x": Parameter(u8, x), "x_scale": SCALE, "x_zero_point": ZERO[u8], "weights": weights(4, 2, 3, 3),
        "weights_scale": vector(1, 2, 3, 4),
    }  # fmt: skip
    return QuantizedConv(Quantized(**{**operands, **changed}), pads=(1, 1, 1, 1))


def product(x: list[Any], *, trans_b: bool = False, **changed: Any) -> Node:
    operands: dict[str, Any] = {
        "x": Parameter(i8, x), "x_scale": SCALE, "x_zero_point": ZERO[i8], "weights_scale": SCALE,
        "weights": weights(5, 6) if trans_b else weights(6, 5),
    }  # fmt: skip
    return QuantizedMatMul(Quantized(**{**operands, **changed}), trans_b=trans_b)


def options(shape: list[int], channels: int) -> list[dict[str, Any]]:
    """Each combination of the optional operands."""
    biases: list[dict[str, Any]] = [{}, {"bias": vector(*range(channels))}]
    residuals: list[dict[str, Any]] = [
        {},
        {"residual": Parameter(f32, shape)},
        {"residual": Parameter(u8, shape), "residual_scale": SCALE, "residual_zero_point": ZERO[u8]},
    ]
    middles: list[dict[str, Any]] = [{}, {"middle_scale": SCALE, "middle_zero_point": ZERO[i8]}]
    results: list[dict[str, Any]] = [{}, {"y_scale": vector(0.5), "y_zero_point": Constant(np.zeros(1, np.int8))}]
    return [a | b | c | d for a, b, c, d in itertools.product(biases, residuals, middles, results)]


def check(node: Node) -> None:
    (expected,) = [value.type for value in decompose(node)]
    assert node.output(0).type == expected


def test_types_are_those_of_the_definition() -> None:
    """With every combination of optional operands, and with unknown lengths."""
    for each in options([1, 4, 8, 8], 4):
        check(conv([1, 2, 8, 8], **each))
        check(conv(["N", 2, 8, None], **each))
    for each in options([7, 5], 5):
        check(product([7, 6], **each))
        check(product([7, 6], trans_b=True, **each))
        check(product(["N", 6], **each))


def test_a_result_has_the_type_of_its_zero_point() -> None:
    """The type of the quantized result, and f32 if it is not quantized."""
    kinds: list[ElementType] = [u8, i8]
    for kind in kinds:
        found = conv([1, 2, 8, 8], y_scale=SCALE, y_zero_point=ZERO[kind]).output(0).type
        assert found == TensorType(kind, Parameter(kind, [1, 4, 8, 8]).output(0).shape)
    assert conv([1, 2, 8, 8]).output(0).element_type is f32


@pytest.mark.parametrize(
    "changed",
    [
        {"bias": vector(1, 2)},
        {"weights_scale": vector(1, 2)},
        {"weights": weights(4, 3, 3, 3)},
        {"weights": weights(4, 2, 30, 3)},
        {"residual": Parameter(f32, [1, 4, 7, 8])},
        {"x_scale": vector(1, 2, 3)},
    ],
)
def test_operands_that_do_not_fit_are_errors(changed: dict[str, Any]) -> None:
    """The same operands are refused as by the definition."""
    with pytest.raises(TypeInferenceError):
        conv([1, 2, 8, 8], **changed)
