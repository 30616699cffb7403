"""How a model is divided, with predicted times."""

from __future__ import annotations

import numpy as np

from engine.startup import dataclass
from engine_hetero.affinity.costs.cost_model import CostModel
from engine_hetero.affinity.placement import Placement
from engine_hetero.division.partitioning import Partition
from engine_hetero.division.schedule import predict
from engine_hetero.query.model_graph import Ints, ModelGraph


@dataclass(frozen=True)
class Division:
    """How a model is divided.

    Attributes:
        members: the numbers of each part's nodes, ascending; parts in execution order.
        devices: the device string of each part.
        part_of_node: (N,) the part of each node.
        part_seconds: the predicted time of each part, from start to end.
        costs: the cost model used for the division.
        stated_mode: the configured mode.
    """

    graph: ModelGraph
    placement: Placement
    partition: Partition
    members: tuple[tuple[int, ...], ...]
    devices: tuple[str, ...]
    part_of_node: Ints
    part_seconds: tuple[float, ...]
    costs: CostModel
    stated_mode: str

    @property
    def measured_part_seconds(self) -> tuple[float | None, ...]:
        """The sum of the measured times of each part's operations; None if one was not measured."""
        affinity = self.placement.affinity
        seconds = self.costs.placed_seconds(affinity)
        is_measured = self.costs.is_measured[affinity, np.arange(len(affinity))]
        return tuple(float(seconds[list(m)].sum()) if is_measured[list(m)].all() else None for m in self.members)

    @property
    def mode(self) -> str:
        """The chosen mode: if two were compared, the one with the lower predicted time."""
        is_connected = self.partition.statistics.get("is_connected")
        return self.stated_mode if is_connected is None else "connected" if is_connected else "min_subgraphs"

    @property
    def predicted_seconds(self) -> dict[str, float]:
        """The predicted time of an inference in each examined mode, with parallel execution on different devices."""
        figures = self.partition.statistics
        compared = {name: f"{name}.seconds" for name in ("min_subgraphs", "connected") if f"{name}.seconds" in figures}
        if compared:
            return {name: figures[key] for name, key in compared.items()}
        found, affinity = self.partition, self.placement.affinity
        return {self.mode: predict(self.graph, self.costs, affinity, found.subgraph, found.order).seconds}

    @property
    def seconds(self) -> float:
        """The predicted time of an inference."""
        return min(self.predicted_seconds.values())
