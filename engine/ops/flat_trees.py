"""Decision trees as flat arrays, checked: what the evaluation and the kernels of tree ensembles walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.ops.tensors import Array

LEAF: Final = 0xFFFFFFFF
"""The feature of a leaf."""
LEQ, LT, EQ, NE = range(4)
"""Comparisons of nodes: those of a feature with the threshold that lead to the next node."""
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


class TreeError(ValueError):
    """Attributes do not describe trees. `name` is the attribute."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name, self.problem = name, problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedTrees:
    """Trees whose nodes name others by their positions in these lists.

    Attributes:
        modes: indices of `MODES`.
        true, false: the positions of the branches; those of leaves are not read.
        missing: whether a NaN takes the true branch.
        members: the values with which a node of mode BRANCH_MEMBER compares, by its position.
        roots: the first node of each tree.
        weights: for leaves, by position, the targets and their weights.
    """

    modes: Sequence[int]
    features: Sequence[int]
    values: Sequence[float]
    true: Sequence[int]
    false: Sequence[int]
    missing: Sequence[int]
    members: dict[int, Sequence[float]]
    roots: Sequence[int]
    weights: dict[int, list[tuple[int, float]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatTrees:
    """Trees in one array, each node before its branches.

    Node i compares its feature with its threshold. If the comparison `kind & 3` holds, or the feature is NaN and
    `kind & NAN_IS_NEXT`, node i + 1 is next, otherwise node i + 1 + skip[i]. A leaf has the feature `LEAF`, and the
    weights from skip[i] to skip[i] + kind[i].

    Attributes:
        dtype: f32 or f64, of thresholds, weights and their sums.
        num_features: the least number of features of a row.
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
    mode = linked.modes[node]
    if mode == _MEMBER:
        values, flags, is_swapped = linked.members[node], NE, True
        values = values or (np.nan,)  # in an empty set, there is nothing
    else:
        flags, is_swapped = _KINDS[mode]
        values = (linked.values[node],)
    if bool(linked.missing[node]) != is_swapped:
        flags |= NAN_IS_NEXT
    return values, flags, is_swapped


def flatten(linked: LinkedTrees, dtype: np.dtype[np.floating]) -> FlatTrees:
    """The trees as flat arrays. No node but leaves may be the branch of two: see `flatten_graphs`."""
    threshold: list[float] = []
    feature: list[int] = []
    skip: list[int] = []
    kind: list[int] = []
    roots: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    for root in linked.roots:
        roots.append(len(kind))
        stack: list[tuple[int, tuple[int, ...]]] = [(root, ())]
        while stack:
            node, sources = stack.pop()
            at, mode = len(kind), linked.modes[node]
            for source in sources:
                skip[source] = at - source - 1
            if mode == _IS_LEAF:
                here = linked.weights.get(node, ())
                threshold.append(0.0)
                feature.append(LEAF)
                skip.append(len(weights))
                kind.append(len(here))
                targets += [target for target, _ in here]
                weights += [weight for _, weight in here]
                continue
            values, flags, is_swapped = comparisons(linked, node)
            for value in values:
                threshold.append(value)
                feature.append(linked.features[node])
                skip.append(0)
                kind.append(flags)
            near, far = linked.true[node], linked.false[node]
            if is_swapped:
                near, far = far, near
            stack.append((far, tuple(range(at, len(kind)))))
            stack.append((near, ()))
    used = [each for each in feature if each != LEAF]
    return FlatTrees(
        dtype=dtype,
        threshold=np.array(threshold, dtype),
        feature=np.array(feature, np.uint32),
        skip=np.array(skip, np.uint32),
        kind=np.array(kind, np.uint32),
        roots=np.array(roots, np.uint32),
        weight_targets=np.array(targets, np.uint32),
        weights=np.array(weights, dtype),
        num_features=1 + max(used, default=-1),
    )
