"""Memory as a second resource of a placement: the operations that a device with a MEMORY_BUDGET gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from engine.errors import MemoryBudgetError
from engine.ir import Constant, Node
from engine.ir.walk import all_nodes
from engine.limits.memory_budget import largest_clause
from engine.plugin_api import RefusalCause, Support, UnsupportedError
from engine.properties import MEMORY_BUDGET, NO_LIMIT
from engine.startup import dataclass
from engine_hetero.affinity.costs.cost_model import Bools, CostModel
from engine_hetero.affinity.measured_placing import place_by_cost
from engine_hetero.affinity.placement import UNPLACED, place_by_priority
from engine_hetero.query.claims import REFUSED, Claims
from engine_hetero.query.model_graph import Ints, ModelGraph

_MAX_DOUBLINGS: Final = 80
_BISECTIONS: Final = 24


@dataclass(frozen=True)
class NodeMemory:
    """The memory of the operations of a graph, in bytes.

    Attributes:
        weights: (N,) the constants that each operation reads. Operations that share one each count it, since they may
            be on different devices.
        values: (N,) the other values that it reads and writes; unknown lengths count as 1.
    """

    weights: Ints
    values: Ints

    @classmethod
    def of(cls, graph: ModelGraph) -> NodeMemory:
        """The memory of each operation. Linear."""
        weights = np.array([sum(_constant_bytes(node)) for node in graph.nodes], np.int64)
        values = np.zeros(len(graph), np.int64)
        for end in range(2):
            np.add.at(values, graph.edges[:, end], graph.byte_sizes)
        return cls(weights, values)

    def taken(self, chosen: Bools) -> int:
        """What a device needs for operations: all their weights, and the values of one at a time."""
        return int(self.weights[chosen].sum() + self.values[chosen].max(initial=0))


def _constant_bytes(node: Node) -> Iterator[int]:
    read = {value.node for value in node.input_values if value is not None}
    for body in node.bodies.values():
        read.update(all_nodes(body))
    return (each.byte_size for each in read if isinstance(each, Constant))


def within_budgets(
    claims: Claims, stated: Ints, costs: CostModel, allowed: Mapping[str, int], *, is_measured: bool
) -> Claims:
    """Claims in which each device refuses what does not fit into its memory, so that any placement by them fits.

    Args:
        stated: (N,) the device chosen by the user, or `UNPLACED`.
        costs: of the devices of `claims`.
        allowed: the bytes of devices with a budget.
        is_measured: whether operations are placed by cost. Otherwise a device gets a run of operations in the order of
            the graph, so that few values are transferred: the run that would take it longest.

    Raises `MemoryBudgetError` if a device cannot have what no other one may run.
    """
    memory = NodeMemory.of(claims.graph)
    for device, name in enumerate(claims.devices):
        limit = allowed.get(name, NO_LIMIT)
        free = (claims.levels[device] != REFUSED) & np.isin(stated, (UNPLACED, device))
        if memory.taken(free) <= limit:
            continue
        fitting = _Fitting(claims, stated, costs, memory, device, limit)
        claims = fitting.measured(free) if is_measured else fitting.by_priority(free)
    return claims


@dataclass(frozen=True)
class _Fitting:
    """The choice of the operations that one device gets."""

    claims: Claims
    stated: Ints
    costs: CostModel
    memory: NodeMemory
    device: int
    limit: int

    def by_priority(self, free: Bools) -> Claims:
        """The claims for placing by priority."""
        must = self._must(free)
        wanted = free & (place_by_priority(self.claims, self.stated).affinity == self.device)
        if self.memory.taken(wanted) <= self.limit:
            return self.claims
        return self._keeping(must | self._longest_run(wanted & ~must, must), free)

    def measured(self, free: Bools) -> Claims:
        """The claims for placing by cost: of two choices, the one whose placement costs less.

        One has the cheapest placement in which a byte on the device has a price, the lowest one for which it fits; the
        other one has a run of operations.
        """
        must = self._must(free)
        run = self._keeping(must | self._longest_run(free & ~must, must), free)
        priced = self._keeping(must | self._priced(), free)
        return min((priced, run), key=self._seconds)

    def _seconds(self, claims: Claims) -> float:
        try:
            placed = place_by_cost(claims, self.stated, self.costs)
        except UnsupportedError:
            return float("inf")
        return self.costs.total_seconds(claims.graph, placed.affinity)

    def _must(self, free: Bools) -> Bools:
        """The operations that only this device may run. Raises `MemoryBudgetError` if they do not fit."""
        others = np.delete(self.claims.levels, self.device, axis=0)
        is_elsewhere = (others != REFUSED).any(axis=0) & (self.stated != self.device)
        must: Bools = free & ~is_elsewhere
        taken = self.memory.taken(must)
        if taken > self.limit:
            name, names = self.claims.devices[self.device], self.claims.graph.names
            held = {names[number]: int(self.memory.weights[number]) for number in np.flatnonzero(must).tolist()}
            raise MemoryBudgetError(
                f"the operations that only {name} may run take {taken} bytes or more, and {MEMORY_BUDGET.name} of "
                f"{name} leaves {self.limit}{largest_clause(held)}; raise it, or list another device that runs them",
                needed=taken,
            )
        return must

    def _longest_run(self, free: Bools, must: Bools) -> Bools:
        """The successive operations of `free` that fit beside `must`. Linear.

        Of all such runs, the one that takes longest, less the overhead of a subgraph and a transfer for each border.
        """
        numbers = np.flatnonzero(free).tolist()
        seconds = self.costs.node_seconds[self.device]
        weights, values = self.memory.weights.tolist(), self.memory.values.tolist()
        base, least = int(self.memory.weights[must].sum()), int(self.memory.values[must].max(initial=0))
        border = float(self.costs.subgraph_overhead.max() + self.costs.transfer_overhead.max())
        best, longest = (0, 0), -float("inf")
        start, held, running = 0, 0, 0.0
        largest: deque[int] = deque()  # places of the run with falling values
        for end, number in enumerate(numbers):
            held += weights[number]
            running += float(seconds[number])
            while largest and values[numbers[largest[-1]]] <= values[number]:
                largest.pop()
            largest.append(end)
            while start <= end and base + held + max(least, values[numbers[largest[0]]]) > self.limit:
                held -= weights[numbers[start]]
                running -= float(seconds[numbers[start]])
                if largest[0] == start:
                    largest.popleft()
                start += 1
                if start > end:
                    break
            gained = running - border * ((start > 0) + (end + 1 < len(numbers)))
            if start <= end and gained > longest:
                best, longest = (start, end + 1), gained
        chosen = np.zeros(len(free), bool)
        chosen[numbers[best[0] : best[1]]] = True
        return chosen

    def _priced(self) -> Bools:
        """The operations of the cheapest placement that fits, among those with a price for a byte on the device."""
        claims = self._without_too_large()
        low, high = 0.0, float(self.costs.node_seconds.max()) / max(1, int(self.memory.weights.max()))
        for _ in range(_MAX_DOUBLINGS):
            if self._fits(chosen := self._chosen(claims, high)):
                break
            low, high = high, 2 * high
        else:
            return np.zeros(len(self.stated), bool)
        for _ in range(_BISECTIONS):
            price = (low + high) / 2
            if self._fits(found := self._chosen(claims, price)):
                chosen, high = found, price
            else:
                low = price
        return chosen

    def _chosen(self, claims: Claims, price: float) -> Bools:
        seconds = self.costs.node_seconds.copy()
        seconds[self.device] += price * self.memory.weights
        found: Bools = (
            place_by_cost(claims, self.stated, replace(self.costs, node_seconds=seconds)).affinity == self.device
        )
        return found

    def _fits(self, chosen: Bools) -> bool:
        return self.memory.taken(chosen) <= self.limit

    def _without_too_large(self) -> Claims:
        """The claims without operations that do not fit alone, unless no other device has them."""
        alone = self.memory.weights + self.memory.values > self.limit
        others = np.delete(self.claims.levels, self.device, axis=0)
        return self._refusing(alone & (others != REFUSED).any(axis=0) & (self.stated != self.device))

    def _keeping(self, kept: Bools, free: Bools) -> Claims:
        return self._refusing(free & ~kept)

    def _refusing(self, refused: Bools) -> Claims:
        name = self.claims.devices[self.device]
        why = Support.refused(
            RefusalCause.MEMORY,
            f"does not fit into {MEMORY_BUDGET.name} of {name} beside the operations that are there: {self.limit} "
            "bytes are for weights and results",
        )
        names = self.claims.graph.names
        supports = {names[number]: why for number in np.flatnonzero(refused).tolist()}
        return self.claims.with_answers(self.device, supports)
