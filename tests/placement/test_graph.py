"""A placement on the graph of its model: devices, subgraphs, and why."""

from __future__ import annotations

from dataclasses import replace

from engine.drawing.colouring import colourings
from engine.drawing.graph import Graph, GraphEdge, GraphNode
from engine.placement import PlacementReport
from engine.placement.graph import placed_graph
from engine.placement.support import QueryResult, RefusalCause, Support
from engine.visualize import answered_graph


def graph() -> Graph:
    nodes = [GraphNode("w", "Constant", "constant")]
    nodes += [GraphNode(name, name.title(), lines=(name,)) for name in ("conv", "relu", "nonzero", "mul", "add")]
    nodes.append(GraphNode("inner", "Exp", body=("mul / body",)))
    return Graph("small", tuple(nodes), (GraphEdge(0, 1), GraphEdge(1, 2), GraphEdge(0, 3)))


def test_operations_have_device_subgraph_and_reasons(report: PlacementReport) -> None:
    placed = placed_graph(graph(), report)
    found = {node.name: node for node in placed.nodes}
    assert {name: node.part for name, node in found.items()} == {
        "w": "0: GPU", "conv": "0: GPU", "relu": "0: GPU", "nonzero": "1: CPU", "mul": "2: GPU", "add": "2: GPU",
        "inner": "2: GPU",
    }  # fmt: skip
    assert found["nonzero"].details == {
        "placed by": "priority",
        "not native on GPU": "refused, op: GPU has no kernel for NonZero",
    }
    assert found["add"].device == "GPU, evaluated on the host"
    assert found["relu"].details["placed by"] == "user"
    assert found["inner"].device == "GPU", "a body runs where its node does"
    assert found["w"].device == "", "a constant has no device of its own"
    assert "5 operations in 3 subgraphs on GPU, CPU" in placed.notes[0]


def test_an_operation_that_each_subgraph_computes_says_so(report: PlacementReport) -> None:
    """It was white, which no legend explained."""
    nodes = (*graph().nodes, GraphNode("shape", "Shape"))
    placed = placed_graph(replace(graph(), nodes=nodes), replace(report, cloned=("shape",)))
    assert placed.nodes[-1].device == "computed wherever needed"
    assert placed.nodes[-1].part == ""
    assert "computed wherever needed" in colourings(placed)[0].legend


def test_an_answer_of_one_device_is_shown_too() -> None:
    answer = QueryResult(
        {
            "conv": Support.native("f16"),
            "relu": Support.reference(RefusalCause.OP, "no kernel"),
            "add": Support.refused(RefusalCause.ELEMENT_TYPE, "no i64"),
        }
    )
    found = {node.name: node for node in answered_graph(graph(), answer, "GPU").nodes}
    assert found["conv"].device == "GPU"
    assert found["conv"].details == {"precision": "f16"}
    assert found["relu"].device == "GPU, evaluated on the host"
    assert found["add"].device == "refused by GPU"
    assert found["add"].details == {"not native": "element type: no i64"}
