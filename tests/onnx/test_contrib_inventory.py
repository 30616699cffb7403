"""The operators of onnxruntime's domain: each is read, or listed as one that is not.

If it fails after an upgrade of onnxruntime, the upgrade has operators that the page does not know.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state

from engine import Core
from engine.errors import UnsupportedError
from engine.onnx.contrib import DOMAIN, OPERATORS

PAGE = Path(__file__).parents[2] / "docs" / "onnxruntime-operators.md"


def listed() -> set[str]:
    """The operators in the first column of the page's table."""
    text = PAGE.read_text(encoding="utf-8").partition("## Operators that are not read")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")][1:]
    return {name for row in rows for name in re.findall(r"\w+", row)}


def test_each_operator_with_a_kernel_is_read_or_listed() -> None:
    kernels = {
        each.op_name
        for each in onnxruntime_pybind11_state.get_all_opkernel_def()
        if each.domain == DOMAIN and each.provider == "CPUExecutionProvider"
    }
    assert not listed() & OPERATORS.keys(), "listed as not read"
    unknown = kernels - OPERATORS.keys() - listed()
    is_known_release = f"onnxruntime {'.'.join(onnxruntime.__version__.split('.')[:2])} " in PAGE.read_text("utf-8")
    if not is_known_release and os.environ.get("ENGINE_NEW_ONNX") != "fail":
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has further operators: {', '.join(sorted(unknown))}")
    assert not unknown
    assert not listed() - kernels, "no kernel"


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_a_node_of_a_listed_operator_is_refused_by_name(device: str) -> None:
    assert "Inverse" in listed()
    tensor = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 2])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 2])
    node = helper.make_node("Inverse", ["x"], ["y"], "turned", domain=DOMAIN)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [tensor], [result]), opset_imports=opsets, ir_version=8)
    with pytest.raises(UnsupportedError, match=r"com\.microsoft\.Inverse.*turned|turned.*Inverse"):
        Core().compile_model(model, device)
