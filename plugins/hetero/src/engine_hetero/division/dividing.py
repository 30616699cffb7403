"""Forms subgraphs from the devices of the operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.native.graph import Costs
from engine.plugin_api import Config
from engine_hetero.affinity.costs.cost_model import CostModel
from engine_hetero.affinity.placement import Placement
from engine_hetero.affinity.placing import Placements
from engine_hetero.division.division import Division
from engine_hetero.division.partitioning import partition
from engine_hetero.properties import PARTITION_MODE, PARTITION_STRATEGY

_MIN_GAIN: Final = 0.1
"""The share of an inference's time that a division with more subgraphs must save."""


def divide(placements: Placements, config: Config) -> Division:
    """Form the subgraphs of each placement, and choose the one that is worth its subgraphs."""
    divisions = [_division(each, placements.costs, config) for each in placements.alternatives]
    return divisions[0] if len(divisions) == 1 else _worth_its_subgraphs(divisions)


def _division(placement: Placement, costs: CostModel, config: Config) -> Division:
    graph, affinity = placement.claims.graph, placement.affinity
    source, target = affinity[graph.edges].T
    seconds = costs.placed_seconds(affinity)
    overhead = costs.subgraph_overhead
    transfers = costs.transfer_seconds(source, target, graph.byte_sizes)
    found = partition(
        graph.edges,
        affinity,
        config[PARTITION_STRATEGY],
        config[PARTITION_MODE],
        graph.byte_sizes,
        atoms=placement.atoms,
        costs=Costs(seconds, transfers, float(overhead.max())),
    )
    part_of_node = np.argsort(found.order)[found.subgraph].astype(np.int64)
    members: list[list[int]] = [[] for _ in range(found.count)]
    for number, part in enumerate(part_of_node.tolist()):
        members[part].append(number)
    devices = [int(affinity[numbers[0]]) for numbers in members]
    return Division(
        graph=graph,
        placement=placement,
        partition=found,
        members=tuple(map(tuple, members)),
        devices=tuple(placement.claims.devices[device] for device in devices),
        part_of_node=part_of_node,
        part_seconds=tuple(float(seconds[n].sum() + overhead[d]) for n, d in zip(members, devices, strict=True)),
        costs=costs,
        stated_mode=config[PARTITION_MODE],
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
