"""Places nodes at minimum cost, transfers included, by minimum cuts between two devices at a time."""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np

from engine.errors import UnsupportedError
from engine.startup import dataclass
from engine_hetero.affinity.cost_cut import Groups, Values, cut
from engine_hetero.affinity.costs.cost_model import CostModel
from engine_hetero.affinity.placement import UNPLACED, Placement, place_by_priority, settle
from engine_hetero.query.claims import REFUSED, Claims
from engine_hetero.query.model_graph import Ints

_MAX_ROUNDS: Final = 20
"""The maximum number of rounds. Each lowers the costs; more than a few are rare."""
_MIN_GAIN: Final = 1e-5
"""The search stops after a round that lowers the costs by less than this share."""


def place_by_cost(claims: Claims, stated: Ints, costs: CostModel) -> Placement:
    """Place every node to minimize the costs of nodes and transfers; users' choices are kept.

    For two devices the sum is minimal. For more, pairs of devices exchange nodes optimally, as long as that lowers the
    sum. It is never above the cost of placement by priority, or of any single device that can run all nodes.

    Args:
        stated: (N,) the device chosen by the user, or `UNPLACED`.
        costs: of the devices of `claims`, in their order.

    Raises `UnsupportedError` naming every node that no device runs, with each device's reason.
    """
    search = _Search(claims, costs, Values.of(claims.graph), _by_priority(claims, stated))
    placement = settle(claims, stated, search.choose, "measured")
    starts = search.starts(_levels_left(claims, stated))
    fallback = min(starts, key=search.seconds, default=placement.affinity)
    if search.seconds(placement.affinity) <= search.seconds(fallback):
        return placement
    # Moving torn atoms costs more than the exchange gained.
    return settle(claims, stated, lambda levels: fallback, "measured")


def _by_priority(claims: Claims, stated: Ints) -> Ints | None:
    try:
        return place_by_priority(claims, stated).affinity
    except UnsupportedError:  # if atoms overlap, another choice may still be possible
        return None


def _levels_left(claims: Claims, stated: Ints) -> Ints:
    """(D, N) how the devices run the nodes without a user's choice."""
    elsewhere = (stated != UNPLACED) & (stated != np.arange(len(claims.devices))[:, None])
    return np.where(elsewhere, REFUSED, claims.levels).astype(np.int64)


@dataclass(frozen=True)
class _Search:
    """Searches the cheapest placement, given the nodes that each device may run."""

    claims: Claims
    costs: CostModel
    values: Values
    by_priority: Ints | None

    def seconds(self, affinity: Ints) -> float:
        return float(self.costs.placed_seconds(affinity).sum()) + self.values.seconds(self.costs, affinity)

    def choose(self, levels: Ints) -> Ints:
        """The cheapest placement found, with whole atoms if possible."""
        by_level: Ints = levels.argmax(axis=0)
        levels = self._without_lost_atoms(levels)
        if (levels == REFUSED).all(axis=0).any():  # `settle` finds the atoms that this tears
            return by_level
        seconds = np.where(levels == REFUSED, np.inf, self.costs.node_seconds)
        cheapest = seconds.argmin(axis=0).astype(np.int64)
        starts = self.starts(levels)
        begin = starts or [cheapest]
        # For two devices, one cut finds the optimum from any start.
        found = [self._exchanged(levels, start) for start in (begin[:1] if len(levels) == 2 else begin)]
        whole = [affinity for affinity in found if self._is_whole(affinity)]
        return min((*whole, *starts) or found, key=self.seconds)

    def starts(self, levels: Ints) -> list[Ints]:
        """Initial placements with whole atoms: by priority, and on each device that can run all nodes."""
        count = levels.shape[1]
        starts = [np.full(count, device) for device in range(len(levels)) if (levels[device] != REFUSED).all()]
        if self.by_priority is not None and (levels[self.by_priority, np.arange(count)] != REFUSED).all():
            starts.append(self.by_priority)
        return starts

    def _without_lost_atoms(self, levels: Ints) -> Ints:
        """The levels, with an atom refused entirely if the device cannot run a part of it."""
        levels = levels.copy()
        for device, atoms in enumerate(self.claims.atoms):
            for atom in atoms:
                if (levels[device, atom] == REFUSED).any():
                    levels[device, atom] = REFUSED
        return levels

    def _is_whole(self, affinity: Ints) -> bool:
        inside = ((affinity[atom] == d) for d, atoms in enumerate(self.claims.atoms) for atom in atoms)
        return all(each.all() or not each.any() for each in inside)

    def _exchanged(self, levels: Ints, affinity: Ints) -> Ints:
        """Exchange nodes between pairs of devices until no pair lowers the costs."""
        # For equal costs, a cut puts the fewest nodes on the first of the pair: the one of lower priority.
        pairs = [(low, high) for high, low in combinations(range(len(levels)), 2)]
        if len(pairs) == 1:
            return self._cut(levels, affinity, pairs[0])
        seconds = self.seconds(affinity)
        for _ in range(_MAX_ROUNDS):
            before = seconds
            for pair in pairs:
                candidate = self._cut(levels, affinity, pair)
                if (lower := self.seconds(candidate)) < seconds:
                    affinity, seconds = candidate, lower
            if seconds >= before * (1 - _MIN_GAIN):
                break
        return affinity

    def _cut(self, levels: Ints, affinity: Ints, pair: tuple[int, int]) -> Ints:
        """The cheapest placement reachable by moving nodes between two devices."""
        groups = self._groups(levels, affinity, pair)
        side = cut(self.values, self.costs, affinity, groups, pair)
        result = affinity.copy()
        nodes = np.flatnonzero(groups.number >= 0)
        result[nodes] = np.array(pair)[side[groups.number[nodes]]]
        return result

    def _groups(self, levels: Ints, affinity: Ints, pair: tuple[int, int]) -> Groups:
        """The nodes on two devices, grouped by atom, and the groups that each device cannot run.

        An atom that one of the devices could run is either entirely on it or entirely on the other.
        """
        movable = np.isin(affinity, pair)
        groups = Groups.single(movable, levels[list(pair)] == REFUSED)
        split = np.zeros((2, len(affinity)), bool)
        for side, device in enumerate(pair):
            for atom in self.claims.atoms[device]:
                if levels[device, atom[0]] == REFUSED:
                    continue
                if movable[atom].all():
                    groups.join(atom)
                else:
                    split[side, atom] = True  # a part is on a third device
        groups.close(split)
        return groups
