"""The predicted time of an inference, and subgraphs that are not worth their transfers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.errors import PartitionError
from engine.native.graph import check_partition
from engine_hetero.affinity.costs.cost_model import CostModel, Floats
from engine_hetero.affinity.placement import REFUSED, Claims
from engine_hetero.query.model_graph import Ints, ModelGraph

_MAX_EXAMINED: Final = 64
_MAX_FINDINGS: Final = 5
_MIN_GAIN: Final = 0.01
"""The share of an inference's time below which savings are within the prediction error."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of subgraphs.

    Attributes:
        seconds: the time until the last one has ended.
        start, end: (S,) seconds from the start of the inference.
        device: (S,) the device of each.
    """

    seconds: float
    start: Floats
    end: Floats
    device: Ints


def list_schedule(
    edges: Ints,
    subgraph: Ints,
    device: Ints,
    order: Ints,
    node_seconds: Floats,
    edge_seconds: Floats,
    overhead: Floats | float,
) -> Schedule:
    """Run subgraphs as soon as their inputs are available and their device is free, one at a time per device.

    If several could start on a device, the first in `order` starts. Transfers between the same two subgraphs are
    sequential. Near-linear.

    Args:
        edges: (E, 2) between nodes.
        subgraph: (N,) the subgraph of each node, 0..S-1.
        device: (S,) the device of each subgraph.
        order: (S,) the subgraphs in execution order.
        node_seconds: (N,) of each node on its device.
        edge_seconds: (E,) for moving the value of an edge to another subgraph; ignored within a subgraph.
        overhead: (D,) or one number: seconds for starting a subgraph.

    Raises `PartitionError` if subgraphs depend on each other in a cycle.
    """
    count = len(device)
    starts = overhead[device] if isinstance(overhead, np.ndarray) else overhead
    seconds = np.asarray(np.bincount(subgraph, node_seconds, count) + starts, np.float64)
    pairs, transfers = _quotient(edges, subgraph, edge_seconds, count)
    return _Timeline(seconds, device, np.argsort(order), pairs, transfers).run()


def predict(graph: ModelGraph, costs: CostModel, affinity: Ints, subgraph: Ints, order: Ints) -> Schedule:
    """The schedule of a partition of a placed model; see `list_schedule`."""
    device = np.zeros(len(order), np.int64)
    device[subgraph] = affinity
    edge_seconds = costs.edge_seconds(graph, affinity, subgraph)
    node_seconds = costs.placed_seconds(affinity)
    return list_schedule(graph.edges, subgraph, device, order, node_seconds, edge_seconds, costs.subgraph_overhead)


def _quotient(edges: Ints, subgraph: Ints, edge_seconds: Floats, count: int) -> tuple[Ints, Floats]:
    """(Q, 2) the connected pairs of subgraphs, and their transfer times."""
    source, target = subgraph[edges[:, 0]], subgraph[edges[:, 1]]
    crossing = np.flatnonzero(source != target)
    keys, inverse = np.unique(source[crossing] * count + target[crossing], return_inverse=True)
    pairs = np.stack(np.divmod(keys, max(1, count)), axis=1)
    return pairs, np.bincount(inverse, edge_seconds[crossing], len(keys)).astype(np.float64)


class _Timeline:
    """The simulation: a subgraph is ready when all of its inputs have arrived at its device."""

    def __init__(self, seconds: Floats, device: Ints, rank: Ints, pairs: Ints, transfers: Floats) -> None:
        count = len(seconds)
        self.seconds = seconds.tolist()
        self.device = device.tolist()
        self.rank = rank.tolist()
        self.readers: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for (source, target), transfer in zip(pairs.tolist(), transfers.tolist(), strict=True):
            self.readers[source].append((target, transfer))
        self.missing = np.bincount(pairs[:, 1], minlength=count).tolist()
        self.arrival = [0.0] * count
        self.start = np.zeros(count)
        self.end = np.zeros(count)
        # For each device: subgraphs waiting for inputs, by arrival time, and ready ones, by rank.
        self.coming: list[list[tuple[float, int]]] = [[] for _ in range(max(self.device, default=0) + 1)]
        self.ready: list[list[tuple[int, int]]] = [[] for _ in self.coming]
        self.free = [0.0] * len(self.coming)
        self.wakes: list[tuple[float, int]] = []

    def run(self) -> Schedule:
        done = 0
        for each, missing in enumerate(self.missing):
            if not missing:
                self._expect(each)
        while self.wakes:
            now, device = heapq.heappop(self.wakes)
            if self.free[device] > now:
                continue  # it is visited again when it is free
            coming, ready = self.coming[device], self.ready[device]
            while coming and coming[0][0] <= now:
                each = heapq.heappop(coming)[1]
                heapq.heappush(ready, (self.rank[each], each))
            if ready:
                self._start(heapq.heappop(ready)[1], now)
                done += 1
        if done < len(self.seconds):
            raise PartitionError(
                f"{len(self.seconds) - done} of {len(self.seconds)} subgraphs depend on each other in a cycle"
            )
        return Schedule(float(self.end.max(initial=0.0)), self.start, self.end, np.array(self.device, np.int64))

    def _expect(self, each: int) -> None:
        device = self.device[each]
        heapq.heappush(self.coming[device], (self.arrival[each], each))
        heapq.heappush(self.wakes, (self.arrival[each], device))

    def _start(self, each: int, now: float) -> None:
        device = self.device[each]
        end = now + self.seconds[each]
        self.start[each], self.end[each], self.free[device] = now, end, end
        for reader, transfer in self.readers[each]:
            self.arrival[reader] = max(self.arrival[reader], end + transfer)
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._expect(reader)
        heapq.heappush(self.wakes, (end, device))


# -- unprofitable subgraphs -----------------------------------------------------------------------------------


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
        return _quotient(edges, self.subgraph, np.zeros(len(edges)), len(self.schedule.device))[0]

    def _has(self, device: int, members: Ints) -> bool:
        """Whether a device claims nodes, and moving them there keeps all atoms whole."""
        if (self.claims.levels[device, members] == REFUSED).any():
            return False
        after = self.affinity.copy()
        after[members] = device
        inside = ((after[atom] == each) for each, atoms in enumerate(self.claims.atoms) for atom in atoms)
        return all(each.all() or not each.any() for each in inside)

    def _joined(self, each: int, others: Sequence[int], pairs: Ints) -> tuple[Ints, list[int]]:
        """The new numbers of the subgraphs, and those of `others` that one can be merged with without a cycle."""
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
