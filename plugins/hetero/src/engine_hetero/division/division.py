"""From a model and a list of devices to subgraphs: query, place, partition, split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from engine.native.graph import Costs
from engine.plugin_api import Config, CoreHandle, Model, Support, SupportLevel
from engine.properties import ALLOW_SHARED_CACHE
from engine_hetero.affinity.costs.calibrated_costs import calibration_path, measured_costs
from engine_hetero.affinity.costs.cost_model import CostModel, default_costs
from engine_hetero.affinity.measured_placing import place_by_cost
from engine_hetero.affinity.placement import UNPLACED, Claims, Placement, UnplaceableError, place_by_priority
from engine_hetero.affinity.user_affinity import stated_affinity
from engine_hetero.device_list import DeviceList
from engine_hetero.division.partitioning import Partition, partition
from engine_hetero.division.schedule import findings, predict
from engine_hetero.parts.splitting import PartModel, split
from engine_hetero.properties import (
    AFFINITY_FILE,
    CALIBRATION_FILE,
    MEASURE_SECONDS,
    PARTITION_MODE,
    PARTITION_STRATEGY,
    PLACEMENT,
)
from engine_hetero.query.canonical import canonical_model
from engine_hetero.query.model_graph import Ints, ModelGraph
from engine_hetero.wiring.wiring import Wiring

_MIN_GAIN: Final = 0.1
"""The share of an inference's time that a division with more subgraphs must save."""


@dataclass(frozen=True)
class Division:
    """How a model is divided.

    Attributes:
        members: the numbers of each part's nodes, ascending; parts in execution order.
        costs: the cost model used for the division.
        stated_mode: the configured mode.
    """

    graph: ModelGraph
    placement: Placement
    partition: Partition
    members: tuple[tuple[int, ...], ...]
    costs: CostModel
    stated_mode: str

    def devices(self) -> tuple[str, ...]:
        """Each part's device."""
        names = self.placement.claims.devices
        return tuple(names[int(self.placement.affinity[numbers[0]])] for numbers in self.members)

    def split(self) -> tuple[tuple[PartModel, ...], Wiring]:
        """The parts as models, and their wiring with predicted times."""
        listed = self.placement.claims.devices
        parts, wiring = split(self.graph, self.members, self.devices() or listed[:1])
        timed = [
            replace(part, predicted_seconds=seconds)
            for part, seconds in zip(wiring.parts, self.part_seconds or (0.0,), strict=False)
        ]
        return parts, replace(wiring, parts=tuple(timed))

    def part_of_node(self) -> Ints:
        """(N,) the part of each node."""
        numbers = np.empty(len(self.graph), np.int64)
        for part, members in enumerate(self.members):
            numbers[list(members)] = part
        return numbers

    @cached_property
    def part_seconds(self) -> tuple[float, ...]:
        """The predicted time of each part, from start to end."""
        affinity = self.placement.affinity
        seconds = self.costs.placed_seconds(affinity)
        overhead = self.costs.subgraph_overhead
        return tuple(float(seconds[list(m)].sum() + overhead[affinity[m[0]]]) for m in self.members)

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

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on subgraphs that cost more than they gain."""
        found, affinity = self.partition, self.placement.affinity
        return findings(self.placement.claims, self.costs, affinity, found.subgraph, found.order)


class Divider:
    """Divides one model over one list of devices; queries each device once.

    Raises `UnsupportedError` naming every node that cannot be placed, and the errors of the devices' queries.
    """

    def __init__(self, core: CoreHandle, model: Model, devices: DeviceList, config: Config) -> None:
        self.core = core
        self.devices = devices
        self.config = config
        self.user_model = model
        self.model = canonical_model(model)
        self.answers = [core.query_model(self.model, device, devices.config_of(device)) for device in devices.names]
        self._withdrawn: list[tuple[int, Mapping[str, Support]]] = []
        self._set_claims()

    def withdraw(self, device: str, refused: Mapping[str, Support]) -> None:
        """Use a device's later refusals of some nodes instead of its first answers about them."""
        self._withdrawn.append((self.devices.names.index(device), refused))
        self._set_claims()

    def _set_claims(self) -> None:
        refused = {name for answer in self.answers for name in answer.at(SupportLevel.REFUSED)}
        self.graph = ModelGraph.of(self.model, refused.union(*(later for _, later in self._withdrawn)))
        self.claims = Claims.of(self.graph, self.devices.names, self.answers)
        for device, later in self._withdrawn:
            self.claims = self.claims.with_answers(device, later)

    def divide(self) -> Division:
        """Place every node and form the subgraphs."""
        file = self.config[AFFINITY_FILE]
        stated = stated_affinity(self.graph, self.devices.names, file, user_model=self.user_model)
        if self.config[PLACEMENT] == "measured":
            path, seconds = calibration_path(self.config), self.config[MEASURE_SECONDS]
            is_private = not (self.config[CALIBRATION_FILE] or self.config[ALLOW_SHARED_CACHE])
            costs = measured_costs(self.core, self.claims, self.devices.config_of, path, seconds, is_private=is_private)
            placements = [*self._simple_placements(stated), place_by_cost(self.claims, stated, costs)]
            return _worth_its_subgraphs([self._division(placement, costs) for placement in placements])
        costs = default_costs(self.graph, self.devices.names, self.claims.levels)
        return self._division(place_by_priority(self.claims, stated), costs)

    def _simple_placements(self, stated: Ints) -> list[Placement]:
        """Placement by priority, and all free nodes on one device, for each device that supports them all."""
        found: list[Placement] = []
        for device in (None, *range(len(self.devices.names))):
            free = stated if device is None else np.where(stated == UNPLACED, device, stated)
            with suppress(UnplaceableError):
                placement = place_by_priority(self.claims, free)
                sources = zip(placement.sources, stated, strict=True)
                named = ("user" if d != UNPLACED else "measured" if s != "atom" else s for s, d in sources)
                found.append(replace(placement, sources=tuple(named)))
        return found

    def _division(self, placement: Placement, costs: CostModel) -> Division:
        found = self._partition(placement, costs)
        members: list[list[int]] = [[] for _ in range(found.count)]
        rank = {int(subgraph): position for position, subgraph in enumerate(found.order)}
        for number, subgraph in enumerate(found.subgraph):
            members[rank[int(subgraph)]].append(number)
        return Division(self.graph, placement, found, tuple(map(tuple, members)), costs, self.config[PARTITION_MODE])

    def _partition(self, placement: Placement, costs: CostModel) -> Partition:
        source, target = placement.affinity[self.graph.edges].T
        weighed = Costs(
            costs.placed_seconds(placement.affinity),
            costs.transfer_seconds(source, target, self.graph.byte_sizes),
            float(costs.subgraph_overhead.max()),
        )
        return partition(
            self.graph.edges,
            placement.affinity,
            self.config[PARTITION_STRATEGY],
            self.config[PARTITION_MODE],
            self.graph.byte_sizes,
            atoms=placement.atoms,
            costs=weighed,
        )


def _worth_its_subgraphs(divisions: Sequence[Division]) -> Division:
    """The fastest division, where more subgraphs must save more than the prediction error.

    Times of single operations are noisy and do not reflect fusion: by themselves, they make every border seem free.
    """
    best, *others = sorted(divisions, key=lambda division: len(division.members))
    for division in others:
        gained = division.seconds < (1 - _MIN_GAIN) * best.seconds
        if gained or (len(division.members) == len(best.members) and division.seconds < best.seconds):
            best = division
    return best
