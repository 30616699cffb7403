"""Subgraphs that are not worth their transfers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.errors import PartitionError
from engine.native.graph import check_partition
from engine.startup import dataclass
from engine_hetero.affinity.costs.cost_model import CostModel
from engine_hetero.division.schedule import Schedule, predict, quotient
from engine_hetero.query.claims import REFUSED, Claims
from engine_hetero.query.model_graph import Ints

_MAX_EXAMINED: Final = 64
_MAX_FINDINGS: Final = 5
_MIN_GAIN: Final = 0.01
"""The share of an inference's time below which savings are within the prediction error."""


def findings(claims: Claims, costs: CostModel, affinity: Ints, subgraph: Ints, order: Ints) -> tuple[str, ...]:
    """Messages on subgraphs that would be faster as part of a neighbour, largest saving first.

    Each of the smallest subgraphs is tried as part of its neighbours on each device that claims all of its nodes, if
    that keeps the subgraphs acyclic. Savings below a hundredth of an inference are not reported.
    """
    if len(order) < 2:
        return ()
    review = _Review(claims, costs, affinity, subgraph, predict(claims.graph, costs, affinity, subgraph, order))
    sizes = np.bincount(subgraph, costs.placed_seconds(affinity), len(order))
    found = [move for each in np.argsort(sizes, kind="stable")[:_MAX_EXAMINED] for move in review.moves(int(each))]
    best: dict[tuple[frozenset[int], int], _Move] = {}
    for move in sorted(found, key=lambda move: move.seconds):
        best.setdefault((frozenset((move.subgraph, *move.others)), move.device), move)
    return tuple(review.sentence(move) for move in list(best.values())[:_MAX_FINDINGS])


@dataclass(frozen=True, slots=True)
class _Move:
    """A merge of a subgraph into others on a device, and the resulting time of an inference."""

    subgraph: int
    device: int
    others: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class _Review:
    claims: Claims
    costs: CostModel
    affinity: Ints
    subgraph: Ints
    schedule: Schedule

    def moves(self, each: int) -> list[_Move]:
        """The merges of a subgraph into its neighbours that save time."""
        members = np.flatnonzero(self.subgraph == each)
        pairs = self._pairs()
        near = np.unique(np.concatenate([pairs[pairs[:, 0] == each, 1], pairs[pairs[:, 1] == each, 0]]))
        moves = []
        for device in np.unique(self.schedule.device[near]).tolist():
            if not self._has(device, members):
                continue
            others = [int(other) for other in near if self.schedule.device[other] == device]
            label, joined = self._joined(each, others, pairs)
            if not joined:
                continue
            affinity = self.affinity.copy()
            affinity[members] = device
            order = check_partition(self.claims.graph.edges, label[self.subgraph])
            seconds = predict(self.claims.graph, self.costs, affinity, label[self.subgraph], order).seconds
            if seconds < self.schedule.seconds * (1 - _MIN_GAIN):
                moves.append(_Move(each, device, tuple(joined), seconds))
        return moves

    def sentence(self, move: _Move) -> str:
        """The message for a move and its saving."""
        devices = self.claims.devices
        here, there = devices[self.schedule.device[move.subgraph]], devices[move.device]
        seconds = self.costs.edge_seconds(self.claims.graph, self.affinity, self.subgraph)
        ends = self.subgraph[self.claims.graph.edges]
        moved = float(seconds[(ends == move.subgraph).any(axis=1)].sum())
        computed = float(self.costs.placed_seconds(self.affinity)[self.subgraph == move.subgraph].sum())
        where = f"with {_listed(move.others)}" if here == there else f"on {there} with {_listed(move.others)}"
        return (
            f"subgraph {move.subgraph} on {here} ({self._nodes(move.subgraph)}) costs more than it gains: it computes "
            f"for {_time(computed)} and its transfers take {_time(moved)}; {where}, an inference is expected to take "
            f"{_time(move.seconds)} instead of {_time(self.schedule.seconds)} ({self.costs.origin} costs)"
        )

    def _pairs(self) -> Ints:
        edges = self.claims.graph.edges
        return quotient(edges, self.subgraph, np.zeros(len(edges)), len(self.schedule.device))[0]

    def _has(self, device: int, members: Ints) -> bool:
        """Whether a device claims nodes, and moving them there keeps all atoms whole."""
        if (self.claims.levels[device, members] == REFUSED).any():
            return False
        after = self.affinity.copy()
        after[members] = device
        inside = ((after[atom] == each) for each, atoms in enumerate(self.claims.atoms) for atom in atoms)
        return all(each.all() or not each.any() for each in inside)

    def _joined(self, each: int, others: Sequence[int], pairs: Ints) -> tuple[Ints, list[int]]:
        """The new numbers of the subgraphs, and the numbers of `others` that one can be merged with without a cycle."""
        label = np.arange(len(self.schedule.device))
        joined: list[int] = []
        for other in others:
            trial = np.unique(np.where(label == label[other], label[each], label), return_inverse=True)[1]
            if _is_acyclic(pairs, trial):
                label = trial
                joined.append(other)
        return label, joined

    def _nodes(self, each: int) -> str:
        numbers = np.flatnonzero(self.subgraph == each)
        first, last = self.claims.graph.names[numbers[0]], self.claims.graph.names[numbers[-1]]
        return f"`{first}`" if len(numbers) == 1 else f"{len(numbers)} nodes, `{first}` to `{last}`"


def _is_acyclic(pairs: Ints, label: Ints) -> bool:
    try:
        check_partition(pairs, label)
    except PartitionError:
        return False
    return True


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"subgraph {numbers[0]}"
    return f"subgraphs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
