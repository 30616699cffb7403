"""Decision trees as checked flat arrays, which the evaluation and the kernels of tree ensembles walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from engine.ops.tensors import Array
from engine.startup import dataclass

LEAF: Final = 0xFFFFFFFF
"""The feature of a leaf."""
LEQ, LT, EQ, NE = range(4)
"""Comparisons of nodes: which comparison of a feature with the threshold leads to the next node."""
NAN_IS_NEXT: Final = 4
"""The flag of a node from which a NaN leads to the next node."""

MODES: Final = (
    "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF",
)  # fmt: skip
"""The modes of nodes; the numbers in TreeEnsemble-5 are their indices."""
_MEMBER: Final = 6
_IS_LEAF: Final = 7
_KINDS: Final = {0: (LEQ, False), 1: (LT, False), 2: (LT, True), 3: (LEQ, True), 4: (EQ, False), 5: (NE, False)}
"""The comparison of a mode, and whether it is of the false branch."""
_MAX_LEVELS: Final = 1000
"""Each level takes a tenth of a millisecond, however few nodes it has."""
_FLAGS: Final = np.array([*(flags for flags, _ in _KINDS.values()), NE, 0])
_SWAPPED: Final = np.array([*(is_swapped for _, is_swapped in _KINDS.values()), True, False])
"""Both by mode."""


class TreeError(ValueError):
    """Attributes do not describe trees. `name` is the attribute."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name, self.problem = name, problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedTrees:
    """Trees whose nodes name others by their positions in these arrays.

    An ensemble may have millions of nodes, so that each step over all of them is one of numpy.

    Attributes:
        modes: indices of `MODES`.
        features, values: [nodes], or fewer if the last nodes are leaves, whose values are not read.
        true, false: the positions of the branches; as long as `features`.
        missing: whether a NaN takes the true branch; as long as `features`.
        members: the values with which a node of mode BRANCH_MEMBER compares, by its position.
        roots: the first node of each tree.
        weight_starts: [nodes + 1]; the weights of a leaf are those from its element to the next one.
        weight_targets, weights: the targets, and their weights.
    """

    modes: Array
    features: Array
    values: Array
    true: Array
    false: Array
    missing: Array
    members: dict[int, Sequence[float]]
    roots: Array
    weight_starts: Array
    weight_targets: Array
    weights: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatTrees:
    """Trees in one array, each node before its branches.

    Node i compares its feature with its threshold. If the comparison `kind & 3` holds, or the feature is NaN and
    `kind & NAN_IS_NEXT`, node i + 1 is next, otherwise node i + 1 + skip[i]. A leaf has the feature `LEAF`, and the
    weights from skip[i] to skip[i] + kind[i].

    Attributes:
        dtype: f32 or f64, of thresholds, weights and their sums.
        num_features: the minimum number of features of a row.
    """

    dtype: np.dtype[np.floating]
    threshold: Array
    feature: Array
    skip: Array
    kind: Array
    roots: Array
    weight_targets: Array
    weights: Array
    num_features: int

    @classmethod
    def empty(cls, count: int, dtype: np.dtype[np.floating]) -> FlatTrees:
        """Arrays for a number of nodes, to be filled."""
        feature, skip, kind = (np.zeros(count, np.uint32) for _ in range(3))
        none, nothing = np.zeros(0, np.uint32), np.zeros(0, dtype)
        return cls(
            dtype=dtype, threshold=np.zeros(count, dtype), feature=feature, skip=skip, kind=kind, roots=none,
            weight_targets=none, weights=nothing, num_features=0,
        )  # fmt: skip

    def leaf_weights(self, rows: Array) -> Iterator[tuple[Array, Array]]:
        """For each tree, the first weight and the number of weights of the leaf of each row [N, F]."""
        data = rows.astype(self.dtype, copy=False)
        lines = np.arange(len(rows))
        for root in self.roots:
            at = np.full(len(rows), root, np.int64)
            active = lines
            while len(active := active[self.feature[at[active]] != LEAF]):
                here = at[active]
                x, value, kind = data[active, self.feature[here]], self.threshold[here], self.kind[here]
                choices = [x <= value, x < value, x == value, (x < value) | (x > value)]
                holds = np.choose(kind & 3, choices) | (np.isnan(x) & (kind & NAN_IS_NEXT != 0))
                at[active] = here + 1 + np.where(holds, 0, self.skip[here])
            yield self.skip[at], self.kind[at]


def comparisons(linked: LinkedTrees, node: int) -> tuple[Sequence[float], int, bool]:
    """The thresholds with which a node compares one after another, the `kind`, and whether the false branch is next."""
    mode = int(linked.modes[node])
    if mode == _MEMBER:
        values: Sequence[float] = linked.members[node] or (np.nan,)  # in an empty set, there is nothing
        flags, is_swapped = NE, True
    else:
        flags, is_swapped = _KINDS[mode]
        values = (float(linked.values[node]),)
    if bool(linked.missing[node]) != is_swapped:
        flags |= NAN_IS_NEXT
    return values, flags, is_swapped


def flatten(linked: LinkedTrees, dtype: np.dtype[np.floating]) -> FlatTrees | None:
    """The trees as flat arrays; None if they are very deep. No node but leaves may be the branch of two: see
    `flatten_graphs`, which lays out all others.

    The sizes of branches are summed level by level from the leaves up, and places follow from them from the roots down.
    """
    levels = list(islice(_levels(linked), _MAX_LEVELS))
    if len(levels) == _MAX_LEVELS:
        return None
    below: Array = np.zeros(0, np.int64)
    for level in reversed(levels):
        level.near_sizes = below[: len(level.inner)]
        sizes = np.ones(len(level.nodes), np.int64)
        sizes[level.inner] = level.widths + below[: len(level.inner)] + below[len(level.inner) :]
        below = sizes
    places = _before(below)
    roots = places
    made = FlatTrees.empty(int(below.sum()), dtype)
    for level in levels:
        places = level.fill(made, linked, places)
    return replace(
        made,
        roots=roots.astype(np.uint32),
        weight_targets=linked.weight_targets.astype(np.uint32),
        weights=linked.weights.astype(dtype),
        num_features=number_of_features(made.feature),
    )


def number_of_features(feature: Array) -> int:
    """The minimum number of features of a row for trees that read these features."""
    used = feature[feature != LEAF]
    return 1 + int(used.max(initial=0)) if len(used) else 0


def _before(sizes: Array) -> Array:
    """The sum of the elements before each."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[:-1])]) if len(sizes) else sizes


class _Level:
    """The nodes of one depth, a leaf as often as branches lead to it, and what follows them in their order.

    Attributes:
        nodes: their positions.
        inner: the indices of the nodes that are not leaves. The next level has their near branches, then their far
            ones.
        near: the position of the branch that is next; the other one is `far`.
        widths: how many thresholds each compares with.
        near_sizes: how many places the near branch of each takes.
    """

    __slots__ = ("far", "inner", "near", "near_sizes", "nodes", "swapped", "widths")

    near_sizes: Array

    def __init__(self, linked: LinkedTrees, nodes: Array, widths: Array) -> None:
        self.nodes = nodes
        modes = linked.modes[nodes]
        self.inner = np.flatnonzero(modes != _IS_LEAF)
        inner = nodes[self.inner]
        self.swapped = _SWAPPED[modes[self.inner]]
        true, false = linked.true[inner], linked.false[inner]
        self.near, self.far = np.where(self.swapped, false, true), np.where(self.swapped, true, false)
        self.widths = widths[inner] if len(widths) else np.ones(len(inner), np.int64)

    def fill(self, made: FlatTrees, linked: LinkedTrees, places: Array) -> Array:
        """Write the nodes to their places; returns the places of the next level."""
        leaves = np.flatnonzero(linked.modes[self.nodes] == _IS_LEAF)
        at, nodes = places[leaves], self.nodes[leaves]
        made.feature[at] = LEAF
        made.skip[at] = linked.weight_starts[nodes]
        made.kind[at] = linked.weight_starts[nodes + 1] - linked.weight_starts[nodes]
        at, nodes = places[self.inner], self.nodes[self.inner]
        kind = _FLAGS[linked.modes[nodes]] | np.where(linked.missing[nodes] != self.swapped, NAN_IS_NEXT, 0)
        last = at + self.widths - 1
        made.threshold[last] = linked.values[nodes]
        made.feature[last], made.kind[last], made.skip[last] = linked.features[nodes], kind, self.near_sizes
        for index in np.flatnonzero(linked.modes[nodes] == _MEMBER).tolist():
            values = linked.members[int(nodes[index])] or (np.nan,)  # in an empty set, there is nothing
            part = slice(int(at[index]), int(last[index]) + 1)
            made.threshold[part], made.feature[part], made.kind[part] = values, made.feature[last[index]], kind[index]
            made.skip[part] = self.near_sizes[index] + np.arange(len(values))[::-1]
        return np.concatenate([last + 1, last + 1 + self.near_sizes])


def _levels(linked: LinkedTrees) -> Iterator[_Level]:
    """The nodes that roots lead to, by their distance; no node but leaves has two ways to it."""
    widths: Array = np.zeros(0, np.int64)
    if linked.members:
        widths = np.ones(len(linked.modes), np.int64)
        widths[list(linked.members)] = [max(1, len(values)) for values in linked.members.values()]
    nodes = linked.roots
    while len(nodes):
        level = _Level(linked, nodes, widths)
        yield level
        nodes = np.concatenate([level.near, level.far])
