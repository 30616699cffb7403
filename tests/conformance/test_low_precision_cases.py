"""The ONNX suite's cases of quantized operators, f16, bf16, and types of 2 to 8 bits: CPU runs them natively, except
for those listed here.

If this fails, models of a common form run on the reference evaluator, dozens of times slower.
"""

from __future__ import annotations

import onnx

from engine import Core
from engine.ir.element_type import ALL, bf16, boolean, f16, i8, u8
from engine.plugin_api import SupportLevel
from engine.testing.onnx_suite import CASES

QUANTIZED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"}
STORED = {element_type.onnx for element_type in ALL if element_type in (f16, bf16) or 0 < element_type.bits <= 8}
STORED -= {u8.onnx, i8.onnx, boolean.onnx}


# Patterns of names, each with the reason.
def is_low_precision(model: onnx.ModelProto) -> bool:
    operators = {node.op_type for node in model.graph.node}
    ports = [*model.graph.input, *model.graph.output]
    types = {port.type.tensor_type.elem_type for port in ports if port.type.HasField("tensor_type")}
    return bool(operators & QUANTIZED or types & STORED or any(op.startswith("QLinear") for op in operators))


def test_cases_of_low_precision_run_natively() -> None:
    core, slow, count = Core(), [], 0
    for name, case in CASES.items():
        if case.model is None or not is_low_precision(case.model):
            continue
        count += 1
        answer = core.query_model(case.model, "CPU")
        if any(support.level is not SupportLevel.NATIVE for support in answer.nodes.values()):
            slow.append(name)
    assert count >= 265
    assert slow == []
