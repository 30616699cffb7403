"""The minimum cut behind a placement: exchanging nodes between two devices as a flow network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final

import numpy as np

from engine.native.graph import min_cut
from engine.startup import dataclass
from engine_hetero.affinity.costs.cost_model import Bools, CostModel, Floats, value_numbers
from engine_hetero.query.model_graph import Ints, ModelGraph

_FORBIDDEN: Final = np.inf
_LARGEST: Final = 1 << 62


@dataclass(frozen=True)
class Values:
    """The values between nodes, each value once.

    Attributes:
        producer: (V,) the node that makes the value.
        byte_sizes: (V,) its size.
        value: (E,) the value of each edge.
        reader: (E,) the node that reads it.
    """

    producer: Ints
    byte_sizes: Ints
    value: Ints
    reader: Ints

    @classmethod
    def of(cls, graph: ModelGraph) -> Values:
        """Collect the values of `graph`: each producer's output once, however many nodes read it."""
        value = value_numbers(graph)
        first = np.unique(value, return_index=True)[1]
        return cls(graph.edges[first, 0], graph.byte_sizes[first], value, graph.edges[:, 1])

    def read_on(self, affinity: Ints, devices: int) -> Bools:
        """(V, D) whether a node on the device reads the value; nodes on device -1 do not count."""
        read = np.zeros((len(self.producer), devices), bool)
        placed = affinity[self.reader] >= 0
        read[self.value[placed], affinity[self.reader[placed]]] = True
        return read

    def seconds(self, costs: CostModel, affinity: Ints) -> float:
        """The seconds for moving all values to the devices that read them."""
        source = affinity[self.producer]
        value, target = np.nonzero(self.read_on(affinity, len(costs.devices)))
        moved = source[value] != target
        value, target = value[moved], target[moved]
        return float(costs.transfer_seconds(source[value], target, self.byte_sizes[value]).sum())


class Groups:
    """Nodes that may change sides; nodes that must stay together form one group.

    Attributes:
        number: (N,) the group of each node; -1 for a node that stays.
        members: the nodes of each group.
        closed: (2, G) whether a group must not be on a side.
    """

    __slots__ = ("_refused", "closed", "members", "number")

    def __init__(self, number: Ints, members: list[Ints], refused: Bools) -> None:
        self.number = number
        self.members = members
        self._refused = refused
        self.closed = np.zeros((2, 0), bool)

    @classmethod
    def single(cls, movable: Bools, refused: Bools) -> Groups:
        """One group per movable node; refused: (2, N)."""
        nodes = np.flatnonzero(movable)
        number = np.full(len(movable), -1, np.int64)
        number[nodes] = np.arange(len(nodes))
        return cls(number, list(nodes[:, None]), refused)

    def join(self, nodes: Ints) -> None:
        """Join nodes into one group, unless neither side could have them all."""
        numbers = np.unique(self.number[nodes])
        if len(numbers) < 2:
            return
        union = np.concatenate([self.members[number] for number in numbers])
        if self._refused[:, union].any(axis=1).all():
            return
        self.members[numbers[0]] = union
        self.number[union] = numbers[0]
        for number in numbers[1:]:
            self.members[number] = union[:0]

    def close(self, also: Bools) -> None:
        """Update the closed sides of groups; also with `also`, (2, N), unless that would close both."""
        nodes = np.flatnonzero(self.number >= 0)
        self.closed = np.zeros((2, len(self.members)), bool)
        for closing in (self._refused, also):
            more = np.zeros_like(self.closed)
            for side in range(2):
                more[side, self.number[nodes[closing[side, nodes]]]] = True
            both = (self.closed | more).all(axis=0)
            self.closed |= more & ~both


def cut(values: Values, costs: CostModel, affinity: Ints, groups: Groups, pair: tuple[int, int]) -> Ints:
    """(G,) the side of each group, 0 or 1, with minimum total cost; nodes without a group stay on their device."""
    count = len(groups.members)
    nodes = np.flatnonzero(groups.number >= 0)
    network = _Network(count)
    for side, device in enumerate(pair):
        network.add_side(side, groups.number[nodes], costs.node_seconds[device, nodes])
        network.add_side(side, np.flatnonzero(groups.closed[side]), _FORBIDDEN)
    _add_staying_readers(network, values, costs, affinity, groups, pair)
    _add_moving_readers(network, values, costs, affinity, groups, pair)
    return network.cut()[:count]


def _add_staying_readers(
    network: _Network, values: Values, costs: CostModel, affinity: Ints, groups: Groups, pair: Sequence[int]
) -> None:
    """Add the transfers of moving producers to each third device that reads their values."""
    producer = groups.number[values.producer]
    read = values.read_on(np.where(groups.number < 0, affinity, -1), len(costs.devices))
    read[producer < 0] = False
    value, target = np.nonzero(read)
    for side, device in enumerate(pair):
        network.add_side(side, producer[value], costs.transfer_seconds(device, target, values.byte_sizes[value]))


def _add_moving_readers(
    network: _Network, values: Values, costs: CostModel, affinity: Ints, groups: Groups, pair: Sequence[int]
) -> None:
    """Add the transfers of values that moving nodes read: once per side with a reader, unless produced there.

    A value with several readers gets a node for each side, which is on that side if one of the readers is.
    """
    producer = groups.number[values.producer]
    reader = groups.number[values.reader]
    delivered = np.flatnonzero((reader >= 0) & (reader != producer[values.value]))
    # One number for each pair of value and reader: sorting rows takes ten times as long.
    pairs = np.unique(values.value[delivered] * len(groups.members) + reader[delivered])
    value, reader = np.divmod(pairs, max(1, len(groups.members)))
    readers = np.bincount(value, minlength=len(producer))
    # Values with several readers get new nodes, which represent the readers.
    shared = np.flatnonzero(readers > 1)
    node_of = np.full(len(producer), -1, np.int64)
    node_of[shared] = np.arange(len(shared))
    is_shared = readers[value] > 1
    single, only = value[~is_shared], reader[~is_shared]
    for side in range(2):
        nodes = network.add_nodes(len(shared))
        network.add_pull(side, nodes[node_of[value[is_shared]]], reader[is_shared])
        reached = np.concatenate([single, shared])
        target = np.concatenate([only, nodes])
        moves = producer[reached] >= 0
        source = np.where(moves, pair[1 - side], affinity[values.producer[reached]])
        seconds = costs.transfer_seconds(source, pair[side], values.byte_sizes[reached])
        network.add_apart(side, producer[reached[moves]], target[moves], seconds[moves])
        network.add_side(side, target[~moves], seconds[~moves])


@dataclass
class _Network:
    """Costs of sides and of edges, collected in parts; infinite costs are forbidden."""

    count: int
    sides: tuple[list[tuple[Ints, Floats]], ...] = field(default_factory=lambda: ([], []))
    edges: list[Ints] = field(default_factory=list)
    forward: list[Floats] = field(default_factory=list)
    backward: list[Floats] = field(default_factory=list)

    def add_nodes(self, count: int) -> Ints:
        """The numbers of new nodes."""
        self.count += count
        return np.arange(self.count - count, self.count)

    def add_side(self, side: int, nodes: Ints, seconds: Floats | float) -> None:
        """Add the costs of nodes on a side."""
        self.sides[side].append((nodes, np.broadcast_to(np.asarray(seconds, np.float64), nodes.shape)))

    def add_pull(self, side: int, pulled: Ints, by: Ints) -> None:
        """Add nodes that are on a side if any of the others is."""
        forbidden = np.full(len(by), _FORBIDDEN)
        self._add_edges(pulled, by, forbidden if side == 1 else 0.0, forbidden if side == 0 else 0.0)

    def add_apart(self, side: int, source: Ints, target: Ints, seconds: Floats) -> None:
        """Add the costs of a target on a side whose source is not."""
        self._add_edges(source, target, seconds if side == 1 else 0.0, seconds if side == 0 else 0.0)

    def _add_edges(self, source: Ints, target: Ints, forward: Floats | float, backward: Floats | float) -> None:
        self.edges.append(np.stack([source, target], axis=1))
        self.forward.append(np.broadcast_to(np.asarray(forward, np.float64), source.shape))
        self.backward.append(np.broadcast_to(np.asarray(backward, np.float64), source.shape))

    def cut(self) -> Ints:
        """The side of each node. Seconds are scaled to integers with the resolution that 64 bits allow."""
        sides = [np.zeros(self.count) for _ in range(2)]
        for total, parts in zip(sides, self.sides, strict=True):
            for nodes, seconds in parts:
                np.add.at(total, nodes, seconds)
        empty = [np.zeros(0)]
        lists = [*sides, np.concatenate(self.forward or empty), np.concatenate(self.backward or empty)]
        forbidden = sum(int(np.isinf(each).sum()) for each in lists)
        finite = sum(float(each[np.isfinite(each)].sum()) for each in lists)
        scale = _LARGEST / (forbidden + 2) / finite if finite > 0 else 1.0
        whole = [np.rint(np.where(np.isinf(each), 0, each) * scale).astype(np.int64) for each in lists]
        more_than_all = sum(int(each.sum()) for each in whole) + 1
        first, second, forward, backward = (
            np.where(np.isinf(each), more_than_all, number) for each, number in zip(lists, whole, strict=True)
        )
        edges = np.concatenate(self.edges) if self.edges else np.zeros((0, 2), np.int64)
        return min_cut(edges, first, second, forward, backward).side
