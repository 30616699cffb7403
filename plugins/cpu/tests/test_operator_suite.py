"""Every operator that CPU claims, over the operator suite, in every layout that it can run in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from engine_cpu.item import Item
from engine_cpu.lowering import decisions
from engine_cpu.segment import lower_segment
from engine_cpu.tuning import CpuTuner
from engine_cpu.weights import WeightStore
from numpy.typing import NDArray

from engine import Core
from engine.ir import Model, Parameter
from engine.native import Context, default_isa
from engine.ops.cases import OperatorCase
from engine.testing import OperatorSuite
from engine.testing.operators import assert_right


class TestCpuOperators(OperatorSuite):
    device = "CPU"
    test_onnx_case = None  # in test_onnx_cases.py, for another process

    def check_case(self, core: Core, case: OperatorCase, model: Model, feeds: Mapping[str, NDArray[Any]]) -> None:
        super().check_case(core, case, model, feeds)
        check_layouts(case, model, feeds)


def check_layouts(case: OperatorCase, model: Model, feeds: Mapping[str, NDArray[Any]]) -> None:
    """A network uses one layout; the others must be right too."""
    node = model.results[0].input_value(0).node
    decision = decisions()[node]
    if decision.chosen is None or case.is_dynamic or any(value.shape.is_dynamic for value in node.outputs):
        return
    item = Item.of(decision.spec, decision.lowering)
    values = [v for v in node.input_values if v is not None and isinstance(v.node, Parameter)]
    for option in decision.lowering.layouts(decision.spec):
        if option.precision == "bf16":
            continue
        store = WeightStore(default_isa())
        segment = lower_segment([item], {item: option}, values, node.outputs, store, CpuTuner(2))
        results = [np.full(v.shape.get_shape(), 77).astype(v.element_type.numpy) for v in node.outputs]
        Context(segment.plan).run([np.ascontiguousarray(feeds[v.node.friendly_name]) for v in values], results)
        assert_right(case, results)
