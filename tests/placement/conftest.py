"""Reports to show: a small one with everything in it, and a long chain."""

from __future__ import annotations

import pytest

from engine.placement import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport


@pytest.fixture
def report() -> PlacementReport:
    """Five operations in three subgraphs on two devices; a length is unknown, nothing was measured."""
    return PlacementReport(
        devices=("GPU", "CPU"),
        strategy="potential",
        mode="connected",
        placement="priority",
        subgraphs=(
            PlacedSubgraph(0, "GPU", ("conv", "relu"), (), 0.002, op_types=("Conv", "Relu")),
            PlacedSubgraph(1, "CPU", ("nonzero",), (0,), 0.0005, op_types=("NonZero",)),
            PlacedSubgraph(2, "GPU", ("mul", "add"), (0, 1), 0.001, op_types=("Mul", "Add")),
        ),
        crossings=(
            Crossing("relu", 0, 1, 4_000_000, 0.0004),
            Crossing("relu", 0, 2, 4_000_000, 0.0),
            Crossing("nonzero", 1, 2, None),
        ),
        lower_bound=2,
        refusals=(
            NodeRefusal("nonzero", "NonZero", "GPU", "refused", "op", "GPU has no kernel for NonZero"),
            NodeRefusal("add", "Add", "GPU", "reference", "element type", "Add of i64 is evaluated on the host"),
        ),
        sources={"conv": "priority", "relu": "user", "nonzero": "priority", "mul": "atom", "add": "priority"},
        predicted_seconds={"min_subgraphs": 0.0045, "connected": 0.0039},
        findings=("moving `relu` to CPU takes 0.40 ms and gains 0.10 ms",),
        cloned=("shape",),
    )


@pytest.fixture
def chain() -> PlacementReport:
    """A thousand subgraphs of two operations, one after the other; some values are also read further on."""
    count = 1000
    subgraphs = [
        PlacedSubgraph(i, "AB"[i % 2], (f"a{i}", f"b{i}"), tuple(range(max(0, i - 1 - i % 3), i))) for i in range(count)
    ]
    return PlacementReport(
        devices=("A", "B"),
        strategy="rollback",
        mode="min_subgraphs",
        placement="measured",
        subgraphs=tuple(subgraphs),
        crossings=tuple(Crossing(f"b{o}", o, s.index, 1 << o % 30) for s in subgraphs for o in s.depends_on),
        lower_bound=count,
        refusals=tuple(NodeRefusal(f"a{i}", "Gelu", "A", "refused", "op", f"no {i}") for i in range(1, count, 2)),
        sources={name: "measured" for s in subgraphs for name in s.nodes},
        measured_seconds=1.5,
        costs="measured",
    )
