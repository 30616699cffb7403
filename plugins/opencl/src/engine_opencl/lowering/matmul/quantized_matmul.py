"""Products of matrices of 8-bit integers."""

from __future__ import annotations

import math

import numpy as np

from engine.lowering import Refusal, RefusalCause
from engine.ops.spec import OperatorSpec
from engine_opencl.lowering.quantized_operands import TILE, QuantizedLowering, operands_of
from engine_opencl.lowering.registry import lowers
from engine_opencl.lowering.tables import table
from engine_opencl.plan_builder import LaunchPlanBuilder


@lowers("MatMulInteger", "QLinearMatMul")
class IntegerMatMulLowering(QuantizedLowering[OperatorSpec]):
    """Batched products, with zero points and scales per tensor, per row of the left or column of the right operand."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        for index in (0, 1 if node.op_type == "MatMulInteger" else 3):
            rank = len(node.input_value(index).shape)
            if rank < 2:
                return Refusal(RefusalCause.RANK, f"input {index} has {rank} axes; expected 2 or more")
        return super().check(spec)

    def lower(self, spec: OperatorSpec, b: LaunchPlanBuilder) -> None:
        node = spec.node
        given, y = operands_of(node), node.output(0)
        left, right, result = b.shape(given.a), b.shape(given.b), b.shape(y)
        m, n, k = left[-2], right[-1], left[-1]
        batch = result[:-2]
        places = [
            np.broadcast_to(np.arange(math.prod(shape[:-2])).reshape(shape[:-2]), batch).reshape(-1)
            for shape in (left, right)
        ]
        pairs = table(b, np.stack(places, axis=1).astype(np.int32))
        source = given.source("integer_gemm", b, y, M=m, N=n, K=k, ROWS=TILE)
        arguments = [b.input(given.a), b.input(given.b), pairs, *given.buffers(b), b.output(y)]
        b.launch(source, "integer_gemm", arguments, (n, -(-m // TILE), math.prod(batch)))
