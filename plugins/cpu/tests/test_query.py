"""CPU's query answers for partitioners: which nodes may be separated."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from engine_cpu.lowering.registry import LOWERINGS
from onnx import TensorProto, helper

from engine import Core, ops
from engine.ir import Model, Node, Parameter, f32
from engine.lowering import Decision, Refusal, RefusalCause
from engine.plugin_api import SupportLevel


def gelu() -> onnx.ModelProto:
    """x * 0.5 * (1 + erf(x / sqrt(2))), spelled out."""
    nodes = [
        helper.make_node("Div", ["x", "root"], ["a"], name="div"),
        helper.make_node("Erf", ["a"], ["b"], name="erf"),
        helper.make_node("Add", ["b", "one"], ["c"], name="add"),
        helper.make_node("Mul", ["x", "c"], ["d"], name="mul"),
        helper.make_node("Mul", ["d", "half"], ["y"], name="scale"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    constants = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    weights = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def test_what_is_joined_only_to_be_faster_may_be_separated() -> None:
    answer = Core().query_model(gelu(), "CPU")
    assert {support.level for support in answer.nodes.values()} == {SupportLevel.NATIVE}
    assert answer.atoms == ()


def test_what_runs_natively_only_together_is_an_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a kernel for Gelu, and none for Erf."""
    original = LOWERINGS.decide

    def without_erf(node: Node) -> Decision[Any]:
        if node.op_type == "Erf":
            return Decision(Refusal(RefusalCause.OP, "no kernel for Erf"), None)
        return original(node)

    monkeypatch.setattr(LOWERINGS, "decide", without_erf)
    answer = Core().query_model(gelu(), "CPU")
    assert {support.level for support in answer.nodes.values()} == {SupportLevel.NATIVE}
    assert answer.atoms == (frozenset({"div", "erf", "add", "mul", "scale"}),)


def test_operations_without_names_are_answered_too() -> None:
    x = Parameter(f32, [2, 2], "x")
    answer = Core().query_model(Model([ops.Det(ops.Relu(x))], [x]), "CPU")
    assert [support.level for support in answer.nodes.values()] == [SupportLevel.NATIVE, SupportLevel.REFERENCE]
