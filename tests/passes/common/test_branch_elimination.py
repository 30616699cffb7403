"""An If that is decided disappears, and wrong types that an exporter gives its branches do not refuse a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import pytest

from engine import Core
from engine.ir import Model
from engine.onnx import read_model
from engine.passes import Manager
from engine.passes.common.branch_elimination import BranchElimination

# As PyTorch's older exporter writes `squeeze`: with the types of the branch that does not run.
_SCRIPTED = """
<ir_version: 8, opset_import: ["": 16]>
main (float[8, 2] x, int64[edges] edges) => (float[a, b] y) {{
   decided = Constant <value: tensor = bool {{{condition}}}> ()
   z = If (decided) <
      then_branch: graph = then_graph () => (float[16] t) {{
         s = Neg(x)
         flat = Constant <value = int64[1] {{-1}}> ()
         t = Reshape(s, flat)
      }},
      else_branch: graph = else_graph () => (float[16] e) {{ e = Identity(x) }}>
   w = Gather(z, edges)
   v = Gather(x, edges)
   y = Sub(v, w)
}}
"""


def scripted(condition: int) -> Model:
    return read_model(onnx.parser.parse_model(_SCRIPTED.format(condition=condition)))


def test_the_chosen_branch_takes_the_place_of_the_if(apply: Callable[..., Counter[str]]) -> None:
    feed = {"x": np.arange(16, dtype=np.float32).reshape(8, 2), "edges": np.array([0, 3, 7])}
    assert apply(scripted(0), BranchElimination, inputs=feed) == {"Identity": 2, "Gather": 2, "Sub": 1}


def test_what_is_noted_of_the_if_is_noted_of_its_branch() -> None:
    model = scripted(1)
    (decided,) = (node for node in model.ordered_nodes() if node.op_type == "If")
    decided.rt_info["origin"] = "decided"
    manager = Manager()
    manager.register_pass(BranchElimination)
    assert manager.run_passes(model)
    noted = {node.op_type for node in model.ordered_nodes() if node.rt_info.get("origin") == "decided"}
    assert noted == {"Neg", "Reshape", "Identity"}


def test_an_if_in_the_chosen_branch_is_decided_too(apply: Callable[..., Counter[str]]) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 16]>
    main (float[4] x) => (float[4] y) {
       yes = Constant <value: tensor = bool {1}> ()
       y = If (yes) <then_branch: graph = a () => (float[4] t) {
               no = Constant <value: tensor = bool {0}> ()
               t = If (no) <then_branch: graph = b () => (float[4] u) { u = Neg(x) },
                            else_branch: graph = c () => (float[4] v) { v = Abs(x) }> },
           else_branch: graph = d () => (float[4] e) { e = Exp(x) }>
    }
    """
    model = read_model(onnx.parser.parse_model(text))
    assert apply(model, BranchElimination) == {"Abs": 1, "Identity": 2}
    assert [result.friendly_name for result in model.results] == ["y"]


def test_an_if_that_is_not_decided_stays() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 16]>
    main (bool c, float[4] x) => (float[4] y) {
       y = If (c) <then_branch: graph = a () => (float[4] t) { t = Neg(x) },
                   else_branch: graph = b () => (float[4] e) { e = Abs(x) }>
    }
    """
    model = read_model(onnx.parser.parse_model(text))
    manager = Manager()
    manager.register_pass(BranchElimination)
    assert not manager.run_passes(model)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_types_of_the_branch_that_does_not_run_do_not_refuse_the_model(device: str) -> None:
    feed: dict[str, Any] = {"x": np.arange(16, dtype=np.float32).reshape(8, 2), "edges": np.array([0, 3, 7])}
    result = Core().compile_model(scripted(0), device).create_infer_request().infer(feed)["y"]
    assert np.array_equal(result, np.zeros((3, 2), np.float32))


def test_symbols_that_an_exporter_makes_up_do_not_bind_lengths() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 16]>
    main (float[n, m] x) => (float[Conv7_dim_0, Conv7_dim_0] y) { y = Neg(x) }
    """
    model = onnx.parser.parse_model(text)
    assert [dim.symbol for dim in read_model(model).results[0].type.shape.dims] == ["n", "m"]
    model.graph.node[0].op_type, model.graph.node[0].domain = "Reshape", ""
    model.graph.node[0].input.append("shape")
    model.graph.input.append(onnx.helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [2]))
    feed = {"x": np.ones((2, 3), np.float32), "shape": np.array([1, 6])}
    network = Core().compile_model(read_model(model), "CPU")
    assert network.create_infer_request().infer(feed)["y"].shape == (1, 6)
