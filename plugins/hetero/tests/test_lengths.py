"""Arithmetic on the lengths of tensors, which is cloned into every part that needs it: which operations may be cloned,
and which may not.

If this fails, models whose shapes are computed do not compile, or parts that have to see one value see several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from engine_template import TemplatePlugin
from onnx import TensorProto, helper

from engine import Core
from engine.plugin_api import Config, ExecutableNetwork, Model, QueryResult, RefusalCause, Support, UnsupportedError

Leaving = Callable[[str, Callable[[str], bool]], type[TemplatePlugin]]


def node(op: str, inputs: str, outputs: str, device: str = "", **attributes: Any) -> onnx.NodeProto:
    made = helper.make_node(op, inputs.split(), outputs.split(), name=f"{op}_{outputs.split()[0]}", **attributes)
    if device:
        made.metadata_props.add(key="affinity", value=device)
    return made


def model(nodes: list[onnx.NodeProto], *outputs: str, **constants: np.ndarray) -> onnx.ModelProto:
    """x: f32[n, 1] to outputs of any type."""
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])
    ports = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", [x], ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


X = np.ones((2, 1), np.float32)


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Dropout"])
def test_numbers_that_are_drawn_are_drawn_once(op: str) -> None:
    draw = node(op, "f half training" if op == "Dropout" else "f", "r")
    nodes = [
        *(node("Shape", "x", "s"), node("Tile", "s many", "t"), node("Cast", "t", "c", to=TensorProto.FLOAT)),
        *(node("Mul", "c scale", "f"), draw),
        *(node("Add", "total r", "a", "CPU"), node("Add", "total r", "b", "TEMPLATE")),
        *(node("ReduceSum", "x", "total", "CPU", keepdims=0),),
    ]
    constants = {"many": np.array([16]), "scale": np.float32(0.3), "half": np.float32(0.5), "training": np.array(True)}
    result = Core().compile_model(model(nodes, "a", "b", **constants), "HETERO:CPU,TEMPLATE")({"x": X})
    np.testing.assert_array_equal(result["a"], result["b"])


def expanding() -> onnx.ModelProto:
    nodes = [
        *(node("Relu", "x", "a", "PICKY"), node("Shape", "a", "s"), node("Mul", "s factors", "to")),
        *(node("Expand", "one to", "b", "PICKY"), node("Neg", "b", "y", "CPU")),
    ]
    return model(nodes, "y", factors=np.array([2, 3]), one=np.ones((1, 1), np.float32))


def test_arithmetic_that_a_device_refuses_runs_elsewhere(leaving: Leaving) -> None:
    core = Core()
    core.register_plugin("PICKY", leaving("PICKY", lambda name: name == "Mul_to"))
    network = core.compile_model(expanding(), "HETERO:PICKY,CPU")
    np.testing.assert_array_equal(network({"x": X})["y"], np.full((4, 3), -1, np.float32))


def test_arithmetic_that_a_device_refuses_later_runs_elsewhere() -> None:
    """PICKY claims `Mul_to` in the whole model, but refuses it in a part, even when queried again."""

    class Picky(TemplatePlugin):
        name = "PICKY"

        def query_model(self, model: Model, config: Config) -> QueryResult:
            answer = super().query_model(model, config)
            if "Mul_to" not in answer.nodes or "Neg_y" in answer.nodes:
                return answer
            return QueryResult({**answer.nodes, "Mul_to": Support.refused(RefusalCause.OP, "not after all")})

        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            if any(node.friendly_name == "Mul_to" for node in model.ordered_nodes()):
                raise UnsupportedError("`Mul_to` is too much")
            return super().compile_model(model, config)

    core = Core()
    core.register_plugin("PICKY", Picky)
    placement = core.query_model(expanding(), "HETERO:PICKY,CPU").placement
    assert placement is not None
    assert ("Mul_to", "PICKY", "not after all") in [(r.node, r.device, r.reason) for r in placement.refusals]
    network = core.compile_model(expanding(), "HETERO:PICKY,CPU")
    assert network.get_metric("SUBGRAPH_DEVICES") == tuple(part.device for part in placement.subgraphs)
    np.testing.assert_array_equal(network({"x": X})["y"], np.full((4, 3), -1, np.float32))


def test_the_query_tells_what_a_device_does_not_run_natively_in_a_part_of_its_own() -> None:
    """PICKY runs `Expand_b` natively only beside the arithmetic that computes its lengths."""

    class Picky(TemplatePlugin):
        name = "PICKY"

        def query_model(self, model: Model, config: Config) -> QueryResult:
            answer = super().query_model(model, config)
            if "Expand_b" not in answer.nodes or "Neg_y" in answer.nodes:
                return answer
            support = Support.reference(RefusalCause.SHAPE, "computed lengths")
            return QueryResult({**answer.nodes, "Expand_b": support})

    core = Core()
    core.register_plugin("PICKY", Picky)
    answer = core.query_model(expanding(), "HETERO:PICKY,CPU")
    assert (answer["Expand_b"].level.value, answer["Expand_b"].reason) == ("reference", "computed lengths")
    assert answer["Neg_y"].level.value == "native"


def test_lengths_of_which_a_result_is_computed_and_other_lengths() -> None:
    """The shape of `a` is used by an output and by shape arithmetic on the other device."""
    nodes = [
        *(node("Relu", "x", "a", "CPU"), node("Shape", "a", "s"), node("Mul", "s factors", "to")),
        *(node("Expand", "one to", "b", "TEMPLATE"), node("Neg", "b", "y", "CPU"), node("Neg", "s", "t", "CPU")),
    ]
    for outputs in (("y", "t"), ("y", "t", "s")):
        m = model(nodes, *outputs, factors=np.array([2, 3]), one=np.ones((1, 1), np.float32))
        result = Core().compile_model(m, "HETERO:CPU,TEMPLATE")({"x": X})
        np.testing.assert_array_equal(result["y"], np.full((4, 3), -1, np.float32))
        np.testing.assert_array_equal(result["t"], [-2, -1])
