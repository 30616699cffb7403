"""Products of computed matrices of 8-bit integers, with any zero points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import Node, Output
from engine.ir.element_type import i8
from engine.lowering import Refusal, RefusalCause
from engine.native import Attribute
from engine.ops.internal import INTERNAL_DOMAIN, ProductOperands
from engine.ops.spec import OperatorSpec
from engine_cpu.lowering.integer_limits import check_terms
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

_MAX_RANK: Final = 10


@lowers("QuantizedProduct", domain=INTERNAL_DOMAIN)
class QuantizedProductLowering(OpLowering[OperatorSpec]):
    """B is packed during the inference."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return check_matrices(spec.node.input_value(0), spec.node.input_value(3))

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node, operands = spec.node, ProductOperands.of(spec.node)
        scale = _number(operands.a_scale, b) * _number(operands.b_scale, b)
        attributes: dict[str, Attribute] = {"y": spec.output().element_type.name}
        if operands.y_scale is not None:
            scale /= _number(operands.y_scale, b)
            attributes["zero_point"] = int(_number(operands.y_zero_point, b))
        zeros = [b.input(node.input_value(index)) for index in (2, 5)]
        factor = b.constant(np.array([scale], np.float32))
        add_product(node, (node.input_value(0), node.input_value(3)), [*zeros, factor], attributes, b)


def check_matrices(a: Output, second: Output) -> Refusal | None:
    """A refusal unless both factors are matrices whose sums do not overflow."""
    if any(value.shape.rank.is_dynamic or not 2 <= value.shape.rank.min <= _MAX_RANK for value in (a, second)):
        reason = f"A is {a.shape}, B is {second.shape}; expected matrices of 2 to {_MAX_RANK} dimensions"
        return Refusal(RefusalCause.RANK, reason)
    lengths = [length.min for length in (a.shape[-1], second.shape[-2]) if length.is_static]
    return check_terms(max(lengths, default=0))


def add_product(
    node: Node, factors: tuple[Output, Output], more: Sequence[int], attributes: dict[str, Attribute], b: SegmentBuilder
) -> None:
    """Add the step of a product of A and B; `more`: the buffers of zero points and, unless the result is i32, scale."""
    x, second = factors
    a_shape, b_shape = b.shape(x), b.shape(second)
    batch = np.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    attributes |= {
        "m": a_shape[-2],
        "n": b_shape[-1],
        "k": a_shape[-1],
        "batch": list(batch),
        "a_batches": math.prod(a_shape[:-2]),
        "b_batches": math.prod(b_shape[:-2]),
        "a_step": _steps(a_shape[:-2], len(batch)),
        "b_step": _steps(b_shape[:-2], len(batch)),
        "a_signed": int(x.element_type is i8),
        "b_signed": int(second.element_type is i8),
    }
    inputs = [b.input(x), b.input(second), *more]
    b.step(node, "product_int8", inputs, [b.output(node.output(0))], **attributes)


def _steps(dims: Sequence[int], rank: int) -> list[int]:
    """The matrices between two indices of each dimension of the batch; 0 where all read the same one."""
    steps, step = [0] * (rank - len(dims)), math.prod(dims)
    for length in dims:
        step //= max(1, length)
        steps.append(step if length > 1 else 0)
    return steps


def _number(value: Any, b: SegmentBuilder) -> float:
    assert isinstance(value, Output)
    return float(b.value(value).item())
