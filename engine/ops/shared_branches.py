"""Decision graphs: trees whose branches may lead to one node, as flat arrays of the same form as for trees.

Exporters write a split by categories as a chain of nodes BRANCH_EQ whose true branches share a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from engine.ops.flat_trees import (
    EQ,
    LEAF,
    LEQ,
    LT,
    MODES,
    NAN_IS_NEXT,
    NE,
    FlatTrees,
    LinkedTrees,
    TreeError,
    comparisons,
    flatten,
    number_of_features,
)

_IS_LEAF: Final = MODES.index("LEAF")
_MEMBER: Final = MODES.index("BRANCH_MEMBER")
_OPPOSITE: Final = {EQ: NE, NE: EQ}


def flatten_graphs(linked: LinkedTrees, dtype: np.dtype[np.floating]) -> FlatTrees:
    """The trees as flat arrays, where branches, and roots, may share nodes: each is stored once, however many nodes
    lead to it.

    The arrays have at most one node more for each branch. Raises `TreeError` for a cycle.
    """
    linked = _without_nan(linked)
    trees = None if _may_share(linked) else flatten(linked, dtype)
    return _Layout(linked).lay_out(dtype) if trees is None else trees


def _without_nan(linked: LinkedTrees) -> LinkedTrees:
    """`linked` without thresholds NaN for other modes than <=, where nothing is: only `!=` holds, for all but NaN."""
    modes = linked.modes[: len(linked.values)]
    changed = np.flatnonzero(np.isnan(linked.values) & (modes != _MEMBER) & (modes != _IS_LEAF))
    if not len(changed):
        return linked
    modes, values = linked.modes.copy(), linked.values.copy()
    values[changed] = np.where(modes[changed] == MODES.index("BRANCH_NEQ"), np.inf, np.nan)
    modes[changed] = MODES.index("BRANCH_LEQ")
    return replace(linked, modes=modes, values=values)


def _may_share(linked: LinkedTrees) -> bool:
    """Whether a node, which is not a leaf, is the branch of two, or a root and a branch."""
    inner = linked.modes[: len(linked.true)] != _IS_LEAF
    ways = np.concatenate([linked.true[inner], linked.false[inner], linked.roots])
    entries = np.bincount(ways, minlength=len(linked.modes))
    return bool((entries[linked.modes != _IS_LEAF] > 1).any())


class _Layout:
    """Lays nodes out so that each is behind all that lead to it, because a step only goes forward."""

    def __init__(self, linked: LinkedTrees) -> None:
        self.linked = linked
        self.modes: list[int] = linked.modes.tolist()
        self.true: list[int] = linked.true.tolist()
        self.false: list[int] = linked.false.tolist()
        self.features: list[int] = linked.features.tolist()
        self.threshold: list[float] = []
        self.feature: list[int] = []
        self.skip: list[int] = []
        self.kind: list[int] = []
        self.places: dict[int, int] = {}  # of nodes that are not leaves
        self.sources: dict[int, list[int]] = {}  # places from which a node without a place is reached by a skip
        self.waiting = self._entries()  # branches to a node from those without a place

    def lay_out(self, dtype: np.dtype[np.floating]) -> FlatTrees:
        """See `flatten_graphs`."""
        for root in dict.fromkeys(self.linked.roots.tolist()):
            is_first = not self._is_leaf(root) and not self.waiting[root] and root not in self.places
            stack: list[tuple[int, Sequence[int]]] = [(root, ())] if is_first else []
            while stack:
                node, sources = stack.pop()
                if self._is_leaf(node):
                    self._place_leaf(node, sources)
                else:
                    self._place(node, stack)
        if len(self.places) < len(self.waiting):
            node = self._in_cycle()
            raise TreeError("nodes_truenodeids", f"node {node} leads back to itself; expected trees, without cycles")
        roots = [self._place_leaf(r, ()) if self._is_leaf(r) else self.places[r] for r in self.linked.roots.tolist()]
        feature = np.array(self.feature, np.uint32)
        return FlatTrees(
            dtype=dtype,
            threshold=np.array(self.threshold, dtype),
            feature=feature,
            skip=np.array(self.skip, np.uint32),
            kind=np.array(self.kind, np.uint32),
            roots=np.array(roots, np.uint32),
            weight_targets=self.linked.weight_targets.astype(np.uint32),
            weights=self.linked.weights.astype(dtype),
            num_features=number_of_features(feature),
        )

    def _is_leaf(self, node: int) -> bool:
        return self.modes[node] == _IS_LEAF

    def _branches(self, node: int) -> list[int]:
        """The children of a node that are not leaves."""
        return [each for each in (self.true[node], self.false[node]) if not self._is_leaf(each)]

    def _entries(self) -> dict[int, int]:
        """The number of branches that lead to each node, of those that a root leads to."""
        stack = [root for root in self.linked.roots.tolist() if not self._is_leaf(root)]
        entries = dict.fromkeys(stack, 0)
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for branch in self._branches(node):
                entries[branch] = entries.get(branch, 0) + 1
                stack.append(branch)
        return entries

    def _place(self, node: int, stack: list[tuple[int, Sequence[int]]]) -> None:
        """Give the next place to a node to which no other leads any longer, and push the nodes that can follow it."""
        linked, at = self.linked, len(self.kind)
        self.places[node] = at
        for source in self.sources.pop(node, ()):
            self.skip[source] = at - source - 1
        for branch in self._branches(node):
            self.waiting[branch] -= 1
        values, flags, is_swapped = comparisons(linked, node)
        near, far = self.true[node], self.false[node]
        if is_swapped:
            near, far = far, near
        if not self._can_follow(near) and self._can_follow(far) and len(values) == 1 and flags & 3 in _OPPOSITE:
            near, far = far, near
            flags = _OPPOSITE[flags & 3] | ((flags & NAN_IS_NEXT) ^ NAN_IS_NEXT)
        for value in values:
            self._add(value, self.features[node], 0, flags)
        skips = range(at, len(self.kind))
        if self._is_leaf(far):
            stack.append((far, skips))
        else:
            self.sources.setdefault(far, []).extend(skips)
            if self._can_follow(far) and far != near:
                stack.append((far, ()))
        if self._can_follow(near):
            stack.append((near, ()))
        else:  # a step that is always a skip, as nothing is <= NaN
            self.sources.setdefault(near, []).append(len(self.kind))
            self._add(np.nan, self.features[node], 0, LT if flags & 3 == LT else LEQ)

    def _can_follow(self, node: int) -> bool:
        """Whether the place of a node may be the next one; a leaf's place may be repeated."""
        return self._is_leaf(node) or not self.waiting[node]

    def _place_leaf(self, node: int, sources: Sequence[int]) -> int:
        at = len(self.kind)
        for source in sources:
            self.skip[source] = at - source - 1
        first, stop = self.linked.weight_starts[node : node + 2].tolist()
        self._add(0.0, LEAF, first, stop - first)
        return at

    def _add(self, threshold: float, feature: int, skip: int, kind: int) -> None:
        self.threshold.append(threshold)
        self.feature.append(feature)
        self.skip.append(skip)
        self.kind.append(kind)

    def _in_cycle(self) -> int:
        """A node of a cycle, found backwards: each node without a place is the branch of one."""
        before = {branch: node for node in self.waiting if node not in self.places for branch in self._branches(node)}
        node, seen = next(each for each in self.waiting if each not in self.places), set[int]()
        while node not in seen:
            seen.add(node)
            node = before[node]
        return node
