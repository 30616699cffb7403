"""Graphs of models: what a node says, bodies, and the graphs that networks keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import ops
from engine.drawing.graph import Graph, GraphNode
from engine.drawing.graph_page import groups_of
from engine.errors import UnsupportedError
from engine.ir import Constant, Model, Parameter, boolean, f32
from engine.onnx.importer import read_model
from engine.visualize import GraphOptions, model_graph, network_graph, write_graph, write_unused


def model() -> Model:
    x = Parameter(f32, [2, 4], "x")
    weight = Constant(np.ones((4, 3), np.float32))
    product = ops.MatMul(x, weight, friendly_name="layer/product")
    top = ops.Softmax(product, axis=-1, friendly_name="layer/softmax")
    top.rt_info["affinity"] = "GPU"
    return Model([top], [x], name="small")


def by_name(graph: Graph) -> dict[str, GraphNode]:
    return {node.name: node for node in graph.nodes if node.role == "operation"}


@pytest.mark.parametrize(
    ("scopes", "groups"),
    [
        ("['', 'encoder', 'encoder.layers.0', 'linear']", ("encoder", "layers", "0")),
        ("['', 'relu']", ("net",)),
        ("""['', "it's", 'x']""", ("it's",)),
        ("[]", ("net",)),
        ("['a', __import__('os')]", ("net",)),
        ("[" * 10**5, ("net",)),
        (None, ("net",)),
    ],
)
def test_groups_of_torch_s_flat_names_are_its_modules(scopes: str | None, groups: tuple[str, ...]) -> None:
    """Without them, the page of a network of 1000 nodes has no groups."""
    node = helper.make_node("Relu", ["x"], ["y"], name="net/node")
    if scopes is not None:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node], "scoped", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    assert groups_of(by_name(model_graph(read_model(proto)))["net/node"]) == groups


def test_a_node_says_what_it_is() -> None:
    options = GraphOptions(times={"layer/product": 1.5}, notes={"layer/product": {"kernel": "gemm"}})
    graph = model_graph(model(), options)
    found = by_name(graph)
    product, softmax = found["layer/product"], found["layer/softmax"]
    assert (product.kind, product.types, product.precision, product.milliseconds) == (
        "MatMul",
        ("f32[2,3]",),
        "f32",
        1.5,
    )
    assert product.details == {"kernel": "gemm"}
    assert softmax.details == {"axis": "-1", "rt_info affinity": "GPU"}
    assert (softmax.device, product.device) == ("GPU", "")
    assert sorted(node.role for node in graph.nodes) == ["constant", "input", "operation", "operation", "output"]
    kinds = [(graph.nodes[edge.source].kind, graph.nodes[edge.target].kind) for edge in graph.edges]
    assert sorted(kinds) == [
        ("Constant", "MatMul"), ("MatMul", "Softmax"), ("Parameter", "MatMul"), ("Softmax", "Result"),
    ]  # fmt: skip
    assert graph.operation_count == 2


def test_bodies_of_bodies_say_where_they_are() -> None:
    condition, x = Parameter(boolean, [], "condition"), Parameter(f32, [4], "x")

    def branch(op: str, inner: bool) -> Model:
        captures = [Parameter(f32, [4]), Parameter(boolean, [])] if inner else [Parameter(f32, [4])]
        result = ops.create(op, [captures[0]], friendly_name=op.lower())
        if inner:
            bodies = [branch("Exp", False), branch("Log", False)]
            result = ops.If(
                captures[1], result, result, then_branch=bodies[0], else_branch=bodies[1], friendly_name="inner"
            )
        return Model([result], captures=captures)

    node = ops.If(
        condition, x, condition, x, then_branch=branch("Neg", True), else_branch=branch("Abs", False),
        friendly_name="outer",
    )  # fmt: skip
    node.rt_info["metadata"] = {"pkg.torch.onnx.name_scopes": "['', 'block.1', 'cond']"}
    options = GraphOptions(times={"outer/inner/exp": 2.5, "exp": 9.0})
    graph = model_graph(Model([node], [condition, x], name="nested"), options)
    found = by_name(graph)
    assert found["neg"].body == ("outer / then_branch",)
    assert found["exp"].body == ("outer / then_branch", "inner / then_branch")
    assert found["outer"].body == ()
    assert groups_of(found["outer"]) == ("block", "1")
    assert groups_of(found["exp"]) == ("block", "1", "outer / then_branch", "inner / then_branch")
    assert found["exp"].milliseconds == 2.5, "as profiles name it"
    links = {(graph.nodes[e.source].name, graph.nodes[e.target].body) for e in graph.edges if e.is_link}
    assert ("outer", ("outer / else_branch",)) in links
    assert ("inner", ("outer / then_branch", "inner / else_branch")) in links


def test_the_graph_of_a_network() -> None:
    graph = network_graph(model(), "net", ("CPU",))
    assert graph.name == "net"
    assert {node.device for node in graph.nodes if node.role == "operation"} == {"CPU"}


def test_parts_of_a_network_are_connected_by_the_names_of_values() -> None:
    x, y = Parameter(f32, [4], "x"), Parameter(f32, [4], "between")
    first = Model([ops.Exp(x, friendly_name="exp")], [x])
    first.results[0].friendly_name = "between"
    second = Model([ops.Neg(y, friendly_name="neg")], [y])
    graph = network_graph((first, second), "both", ("GPU", "CPU"))
    parts = {node.name: node.part for node in graph.nodes if node.role == "operation"}
    assert parts == {"exp": "0: GPU", "neg": "1: CPU"}
    between = [e for e in graph.edges if graph.nodes[e.source].part != graph.nodes[e.target].part]
    assert [(graph.nodes[e.source].name, graph.nodes[e.target].name) for e in between] == [("between", "between")]


@pytest.mark.parametrize("kept", [None, object(), (model(), None)])
def test_a_network_without_a_graph_says_so(kept: object) -> None:
    with pytest.raises(UnsupportedError, match="network `net` on ACME has no graph that could be drawn"):
        network_graph(kept, "net", ("ACME",))


def test_files_are_not_replaced_unless_asked_for(tmp_path: Path) -> None:
    graph = model_graph(model())
    written = [write_unused(graph, tmp_path, "net", ".dot").name for _ in range(3)]
    assert written == ["net.dot", "net-2.dot", "net-3.dot"]
    assert len({(tmp_path / name).read_bytes() for name in written}) == 1
    with pytest.raises(FileNotFoundError):
        write_unused(graph, tmp_path / "nowhere", "net", ".dot")
    with pytest.raises(ValueError, match=r"must end with \.html, \.svg or \.dot"):
        write_unused(graph, tmp_path, "net", ".png")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(written), "nothing else is left"


def test_an_unknown_colour_lists_the_others(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no time to colour by; it has device, operator, precision"):
        write_graph(model_graph(model()), tmp_path / "x.svg", colour="time")
    assert not list(tmp_path.iterdir())
