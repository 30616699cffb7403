"""A report that cannot be is found before it is shown: a picture of it would mislead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.placement import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport, inconsistencies

OPERATIONS = ("conv", "relu", "nonzero", "mul", "add", "shape")


def test_sound_reports_have_nothing_wrong(report: PlacementReport, chain: PlacementReport) -> None:
    assert inconsistencies(report) == ()
    assert inconsistencies(report, OPERATIONS) == ()
    assert inconsistencies(chain) == ()
    nothing = PlacementReport(("A",), "potential", "auto", "priority", (), (), 0)
    assert inconsistencies(nothing, ()) == ()


def with_subgraph(report: PlacementReport, position: int, **changes: Any) -> PlacementReport:
    subgraphs = list(report.subgraphs)
    subgraphs[position] = replace(subgraphs[position], **changes)
    return replace(report, subgraphs=tuple(subgraphs))


@pytest.mark.parametrize(
    ("position", "changes", "words"),
    [
        (1, {"nodes": ("nonzero", "conv")}, "in more than one subgraph: `conv`"),
        (1, {"nodes": ("nonzero", "shape")}, "in a subgraph and cloned: `shape`"),
        (1, {"nodes": ()}, "it has no nodes"),
        (1, {"nodes": ("nonzero", "new")}, "placed, and without a source: `new`"),
        (1, {"index": 0}, "another subgraph has this number"),
        (1, {"device": "NPU"}, "its device NPU is not one of GPU, CPU"),
        (1, {"depends_on": (0, 2)}, "it depends on 2, which does not come before it"),
        (1, {"depends_on": (1,)}, "it depends on 1, which does not come before it"),
        (0, {"depends_on": (7,)}, "it depends on 7, which does not come before it"),
        (2, {"depends_on": (1,)}, "2 does not depend on 0"),
        (2, {"op_types": ("Mul",)}, "1 operators for 2 nodes"),
        (2, {"predicted_seconds": float("nan")}, "the prediction for subgraph 2 is nan s"),
        (2, {"measured_seconds": -1.0}, "the measurement of subgraph 2 is -1.0 s"),
    ],
)
def test_wrong_subgraphs_are_found(report: PlacementReport, position: int, changes: dict[str, Any], words: str) -> None:
    assert words in "\n".join(inconsistencies(with_subgraph(report, position, **changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lower_bound": 4}, "the lower bound is 4; expected 0 to 3"),
        ({"lower_bound": -1}, "the lower bound is -1"),
        ({"crossings": (Crossing("relu", 0, 9, 1),)}, "the subgraph does not exist"),
        ({"crossings": (Crossing("relu", 2, 0, 1),)}, "0 does not depend on 2"),
        ({"crossings": (Crossing("relu", 0, 1, -1),)}, "it has -1 bytes"),
        ({"crossings": (Crossing("relu", 0, 1, 1, float("inf")),)}, "the prediction for `relu` to 1 is inf s"),
        ({"sources": {}}, "5 nodes are placed, and without a source"),
        ({"sources": dict.fromkeys(OPERATIONS, "user")}, "given a source, and in no subgraph: `shape`"),
        ({"refusals": (NodeRefusal("mul", "Mul", "NPU", "refused", "op", "x"),)}, "the device is not one of GPU, CPU"),
        ({"refusals": (NodeRefusal("mul", "Mul", "GPU", "native", "op", "x"),)}, "the level is 'native'"),
        ({"refusals": (NodeRefusal("mul", "Mul", "GPU", "refused", "op", ""),)}, "without a cause or a reason"),
        ({"predicted_seconds": {"auto": -0.5}}, "the prediction for auto is -0.5 s"),
        ({"measured_seconds": float("nan")}, "the measurement is nan s"),
    ],
)
def test_wrong_reports_are_found(report: PlacementReport, changes: dict[str, Any], words: str) -> None:
    assert words in "\n".join(inconsistencies(replace(report, **changes)))


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ((*OPERATIONS, "lost"), "1 nodes are in no subgraph: `lost`"),
        (OPERATIONS[1:], "in a subgraph, and not in the model: `conv`"),
        ([*OPERATIONS, *(f"lost{i}" for i in range(11))], "11 nodes are in no subgraph: `lost0`, `lost1`"),
    ],
)
def test_operations_that_are_missing_or_made_up_are_found(
    report: PlacementReport, operations: tuple[str, ...], words: str
) -> None:
    assert words in "\n".join(inconsistencies(report, operations))


def test_the_report_as_json_is_complete(report: PlacementReport) -> None:
    import json

    found = json.loads(json.dumps(report.to_json()))
    assert found["subgraphs"][1] == {
        "index": 1, "device": "CPU", "nodes": ["nonzero"], "op_types": ["NonZero"], "depends_on": [0],
        "predicted_seconds": 0.0005, "measured_seconds": None,
    }  # fmt: skip
    assert found["crossing_bytes"] == 8_000_000
    assert found["refusals"][0] == {
        "node": "nonzero", "op": "NonZero", "device": "GPU", "level": "refused", "cause": "op",
        "reason": "GPU has no kernel for NonZero",
    }  # fmt: skip
    rest = set(PlacementReport.__dataclass_fields__) - {"subgraphs", "crossings", "refusals"}
    for field in rest:
        assert found[field] == json.loads(json.dumps(getattr(report, field))), field
    assert set(PlacedSubgraph.__dataclass_fields__) == set(found["subgraphs"][0])
