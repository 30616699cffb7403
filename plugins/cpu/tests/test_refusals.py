"""Every lowering answers a query, whatever the types of the inputs."""

from __future__ import annotations

import pytest
from engine_cpu.lowering import decisions
from engine_cpu.lowering.registry import LOWERINGS
from onnx.defs import get_schema

from engine.ir import Node, Parameter, PartialShape, TensorType, f32
from engine.ops.registry import CANONICAL_OPSET

OPERATORS = (
    "Add", "Attention", "AveragePool", "BatchNormalization", "Cast", "Concat", "Conv", "ConvTranspose", "CumSum",
    "DepthToSpace", "Expand", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "GroupNormalization", "LSTM",
    "LayerNormalization", "MatMul", "MaxPool", "Pad", "ReduceMean", "Reshape", "Resize", "Slice", "Softmax", "Split",
    "TopK", "Transpose", "Where",
)  # fmt: skip


@pytest.mark.parametrize("op_type", OPERATORS)
def test_an_operation_on_values_of_unknown_rank_is_refused(op_type: str) -> None:
    schema = get_schema(op_type, CANONICAL_OPSET)
    values = [Parameter(f32, PartialShape.dynamic(), f"x{index}").output(0) for index in range(schema.min_input)]
    node = Node(op_type, values, {}, types=[TensorType(f32, PartialShape.dynamic())])
    assert ("", op_type) in LOWERINGS.operators
    refused = decisions().refusal(node)
    assert refused is not None
    assert refused.cause == "dynamic shape"
