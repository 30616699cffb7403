"""Real models as graphs, as HETERO divides them, with the bytes of their tensors."""

from __future__ import annotations

from typing import Any

from engine_hetero.query.model_graph import ModelGraph

from engine import Core
from engine.testing.models import light_model
from engine.testing.networks import seeded_network
from partitions.graphs import AFFINITIES
from partitions.split import measure_edges

LIGHT = ("resnet50", "densenet121", "inception_v2")
SEEDED = ("bert_base", "efficientnet_b0", "yolo")


def measure_models(rounds: int) -> list[dict[str, Any]]:
    """Measure each model with each pattern of two and of three devices."""
    core, rows = Core(), []
    models = {name: light_model(name) for name in LIGHT} | {name: seeded_network(name).model for name in SEEDED}
    for name, model in models.items():
        graph = ModelGraph.of(core.read_model(model))
        for devices in (2, 3):
            for pattern in AFFINITIES:
                rows.append(measure_edges(name, graph.edges, len(graph), graph.byte_sizes, devices, pattern, rounds))
    return rows
