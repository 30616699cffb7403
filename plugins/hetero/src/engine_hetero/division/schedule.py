"""The predicted time of an inference."""

from __future__ import annotations

import heapq

import numpy as np

from engine.errors import PartitionError
from engine.startup import dataclass
from engine_hetero.affinity.costs.cost_model import CostModel, Floats
from engine_hetero.query.model_graph import Ints, ModelGraph


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
    pairs, transfers = quotient(edges, subgraph, edge_seconds, count)
    return _Timeline(seconds, device, np.argsort(order), pairs, transfers).run()


def predict(graph: ModelGraph, costs: CostModel, affinity: Ints, subgraph: Ints, order: Ints) -> Schedule:
    """The schedule of a partition of a placed model; see `list_schedule`."""
    device = np.zeros(len(order), np.int64)
    device[subgraph] = affinity
    edge_seconds = costs.edge_seconds(graph, affinity, subgraph)
    node_seconds = costs.placed_seconds(affinity)
    return list_schedule(graph.edges, subgraph, device, order, node_seconds, edge_seconds, costs.subgraph_overhead)


def quotient(edges: Ints, subgraph: Ints, edge_seconds: Floats, count: int) -> tuple[Ints, Floats]:
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
