"""From a model and a list of devices to subgraphs: ask, place, partition, split."""

from __future__ import annotations

from dataclasses import dataclass

from engine.plugin_api import Config, CoreHandle, Model, QueryResult
from engine_hetero.canonical import canonical_model
from engine_hetero.device_list import DeviceList
from engine_hetero.model_graph import ModelGraph
from engine_hetero.partitioning import Partition, partition
from engine_hetero.placing import Claims, Placement, place_by_priority
from engine_hetero.properties import AFFINITY_FILE, PARTITION_MODE, PARTITION_STRATEGY
from engine_hetero.splitting import PartModel, split
from engine_hetero.user_affinity import stated_affinity
from engine_hetero.wiring import Wiring


@dataclass(frozen=True)
class Plan:
    """How a model is divided.

    Attributes:
        members: the numbers of each part's nodes, ascending; parts in an order in which they can run.
    """

    graph: ModelGraph
    placement: Placement
    partition: Partition
    members: tuple[tuple[int, ...], ...]

    def devices(self) -> tuple[str, ...]:
        """Each part's device."""
        names = self.placement.claims.devices
        return tuple(names[int(self.placement.affinity[numbers[0]])] for numbers in self.members)

    def split(self) -> tuple[tuple[PartModel, ...], Wiring]:
        """The parts as models, and their wiring with what each is expected to take."""
        listed = self.placement.claims.devices
        return split(self.graph, self.members, self.devices() or listed[:1])


class Planner:
    """Plans one model for one list of devices; asks each device once.

    Raises `UnsupportedError` naming every node that cannot be placed, and what the devices raise when asked.
    """

    def __init__(self, core: CoreHandle, model: Model, devices: DeviceList, config: Config) -> None:
        self.core = core
        self.devices = devices
        self.config = config
        self.graph = ModelGraph.of(canonical_model(model))
        self.claims = Claims.of(self.graph, devices.names, self._answers())

    def _answers(self) -> list[QueryResult]:
        return [
            self.core.query_model(self.graph.model, device, self.devices.config_of(device))
            for device in self.devices.names
        ]

    def withdraw(self, device: str, names: frozenset[str]) -> None:
        """No longer believe that a device runs some nodes."""
        self.claims = self.claims.without(self.devices.names.index(device), names)

    def plan(self) -> Plan:
        """Place every node and form the subgraphs."""
        stated = stated_affinity(self.graph, self.devices.names, self.config[AFFINITY_FILE])
        placement = place_by_priority(self.claims, stated)
        found = self._partition(placement)
        members: list[list[int]] = [[] for _ in range(found.count)]
        rank = {int(subgraph): position for position, subgraph in enumerate(found.order)}
        for number, subgraph in enumerate(found.subgraph):
            members[rank[int(subgraph)]].append(number)
        return Plan(self.graph, placement, found, tuple(map(tuple, members)))

    def _partition(self, placement: Placement) -> Partition:
        return partition(
            self.graph.edges,
            placement.affinity,
            self.config[PARTITION_STRATEGY],
            self.config[PARTITION_MODE],
            self.graph.byte_sizes,
            atoms=placement.atoms,
        )
