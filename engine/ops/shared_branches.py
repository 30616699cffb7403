"""Decision graphs: trees whose branches may lead to one node, as flat arrays of the same form as those of trees.

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
)

_IS_LEAF: Final = MODES.index("LEAF")
_MEMBER: Final = MODES.index("BRANCH_MEMBER")
_OPPOSITE: Final = {EQ: NE, NE: EQ}


def flatten_graphs(linked: LinkedTrees, dtype: np.dtype[np.floating]) -> FlatTrees:
    """The trees as flat arrays, where branches, and roots, may share nodes: each has one place, whoever leads there.

    The arrays have at most one node more for each branch. Raises `TreeError` for a cycle.
    """
    linked = _without_nan(linked)
    if not _may_share(linked):
        return flatten(linked, dtype)
    return _Layout(linked).lay_out(dtype)


def _without_nan(linked: LinkedTrees) -> LinkedTrees:
    """`linked` without thresholds NaN for other modes than <=, where nothing is: only `!=` holds, for all but NaN."""
    is_nan = np.isnan(np.asarray(linked.values, np.float64))
    if not is_nan.any():
        return linked
    modes, values = list(linked.modes), list(linked.values)
    for node in np.flatnonzero(is_nan).tolist():
        if modes[node] not in (_MEMBER, _IS_LEAF):
            values[node] = np.inf if MODES[modes[node]] == "BRANCH_NEQ" else np.nan
            modes[node] = MODES.index("BRANCH_LEQ")
    return replace(linked, modes=modes, values=values)


def _may_share(linked: LinkedTrees) -> bool:
    """Whether a node, which is not a leaf, is the branch of two, or a root and a branch."""
    modes = np.asarray(linked.modes)
    inner = np.flatnonzero(modes[: len(linked.true)] != _IS_LEAF)
    branches = np.concatenate([np.asarray(side, np.int64)[inner] for side in (linked.true, linked.false)])
    roots = np.asarray(linked.roots, np.int64)
    entries = np.bincount(np.concatenate([branches, roots]), minlength=len(modes))
    return bool((entries[modes != _IS_LEAF] > 1).any())


class _Layout:
    """Lays nodes out so that each is behind all that lead to it, because a step only goes forward."""

    def __init__(self, linked: LinkedTrees) -> None:
        self.linked = linked
        self.threshold: list[float] = []
        self.feature: list[int] = []
        self.skip: list[int] = []
        self.kind: list[int] = []
        self.targets: list[int] = []
        self.weights: list[float] = []
        self.places: dict[int, int] = {}  # of nodes that are no leaves
        self.starts: dict[int, int] = {}  # of the weights of leaves
        self.sources: dict[int, list[int]] = {}  # places from which a node without a place is reached by a skip
        self.waiting = self._entries()  # branches to a node from those without a place

    def lay_out(self, dtype: np.dtype[np.floating]) -> FlatTrees:
        """See `flatten_graphs`."""
        for root in dict.fromkeys(self.linked.roots):
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
        roots = [self._place_leaf(r, ()) if self._is_leaf(r) else self.places[r] for r in self.linked.roots]
        return FlatTrees(
            dtype=dtype,
            threshold=np.array(self.threshold, dtype),
            feature=np.array(self.feature, np.uint32),
            skip=np.array(self.skip, np.uint32),
            kind=np.array(self.kind, np.uint32),
            roots=np.array(roots, np.uint32),
            weight_targets=np.array(self.targets, np.uint32),
            weights=np.array(self.weights, dtype),
            num_features=1 + max((each for each in self.feature if each != LEAF), default=-1),
        )

    def _is_leaf(self, node: int) -> bool:
        return self.linked.modes[node] == _IS_LEAF

    def _branches(self, node: int) -> list[int]:
        """Those of a node that are no leaves."""
        return [each for each in (self.linked.true[node], self.linked.false[node]) if not self._is_leaf(each)]

    def _entries(self) -> dict[int, int]:
        """The number of branches that lead to each node, of those that a root leads to."""
        stack = [root for root in self.linked.roots if not self._is_leaf(root)]
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
        """Give a node, to which no other leads any more, the next place, and push what can follow it."""
        linked, at = self.linked, len(self.kind)
        self.places[node] = at
        for source in self.sources.pop(node, ()):
            self.skip[source] = at - source - 1
        for branch in self._branches(node):
            self.waiting[branch] -= 1
        values, flags, is_swapped = comparisons(linked, node)
        near, far = linked.true[node], linked.false[node]
        if is_swapped:
            near, far = far, near
        if not self._can_follow(near) and self._can_follow(far) and len(values) == 1 and flags & 3 in _OPPOSITE:
            near, far = far, near
            flags = _OPPOSITE[flags & 3] | ((flags & NAN_IS_NEXT) ^ NAN_IS_NEXT)
        for value in values:
            self._add(value, linked.features[node], 0, flags)
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
            self._add(np.nan, linked.features[node], 0, LT if flags & 3 == LT else LEQ)

    def _can_follow(self, node: int) -> bool:
        """Whether the place of a node may be the next one; that of a leaf may be repeated."""
        return self._is_leaf(node) or not self.waiting[node]

    def _place_leaf(self, node: int, sources: Sequence[int]) -> int:
        at = len(self.kind)
        for source in sources:
            self.skip[source] = at - source - 1
        found = self.linked.weights.get(node, ())
        if node not in self.starts:
            self.starts[node] = len(self.weights)
            self.targets += [target for target, _ in found]
            self.weights += [weight for _, weight in found]
        self._add(0.0, LEAF, self.starts[node], len(found))
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
