"""Nodes of trees by the ids of a tree and of a node, for millions of nodes at once."""

from __future__ import annotations

import numpy as np

from engine.ops.flat_trees import TreeError
from engine.ops.tensors import Array


class NodeIds:
    """The places of nodes in the lists of a tree ensemble.

    Attributes:
        roots: the place of the first node of each tree, in the order of the trees' first nodes.
    """

    def __init__(self, trees: Array, nodes: Array) -> None:
        """Ids of the tree and of the node at each place. Raises `TreeError` if two places have the same ids."""
        count = len(trees)
        starts = np.flatnonzero(np.diff(trees, prepend=trees[:1] - 1)) if count else np.zeros(0, np.int64)
        self._trees, first = np.unique(trees[starts], return_index=True)
        """The ids of trees, sorted."""
        self.roots = np.sort(starts[first])
        self._starts = starts[first]
        lengths = np.diff(starts, append=count)
        # Exporters write each tree in one piece, with its nodes numbered from 0.
        self._is_plain = len(first) == len(starts) and bool(
            (nodes == np.arange(count) - np.repeat(starts, lengths)).all()
        )
        self._lengths = lengths[first]
        if not self._is_plain:
            self._sort(trees, nodes)

    def places(self, trees: Array, nodes: Array) -> Array:
        """The place of each node, by the ids of its tree and its own; -1 if there is none."""
        tree, is_known = _found(self._trees, trees)
        if not len(self._trees):
            return np.full(len(trees), -1)
        if self._is_plain:
            is_known &= (nodes >= 0) & (nodes < self._lengths[tree])
            return np.where(is_known, self._starts[tree] + nodes, -1)
        node, is_node = _found(self._nodes, nodes)
        at, is_key = _found(self._keys, tree * len(self._nodes) + node)
        return np.where(is_known & is_node & is_key, self._order[at], -1)

    def _sort(self, trees: Array, nodes: Array) -> None:
        self._nodes = np.unique(nodes)
        keys = _found(self._trees, trees)[0] * len(self._nodes) + _found(self._nodes, nodes)[0]
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if (np.diff(self._keys) == 0).any():
            raise TreeError("nodes_nodeids", "each id once for a tree")


def _found(known: Array, wanted: Array) -> tuple[Array, Array]:
    """The index in `known`, which is sorted, of each element, or any index, and whether it is there."""
    if not len(known):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return at, known[at] == wanted
