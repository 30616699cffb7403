"""Random tree ensembles of `ai.onnx.ml`, as attributes of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ops.flat_trees import MODES

ANY_MODE = MODES[:6]


def random_ensemble(
    rng: np.random.Generator,
    kind: str,
    *,
    trees: int = 5,
    depth: int = 4,
    features: int = 6,
    targets: int = 3,
    modes: Sequence[str] = ("BRANCH_LEQ",),
    votes: int = 1,
    weights: tuple[float, float] = (-1.0, 1.0),
    is_missing: bool = True,
) -> dict[str, Any]:
    """The attributes of a TreeEnsembleRegressor (`kind` "target") or TreeEnsembleClassifier ("class").

    Thresholds are multiples of 1/4, so that features that are multiples meet them. Each leaf has `votes` weights.
    """
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
             "missing_value_tracks_true", "hitrates")  # fmt: skip
    nodes: dict[str, list[Any]] = {name: [] for name in names}
    leaves: list[tuple[int, int, int, float]] = []

    def add(tree: int, level: int) -> int:
        node = nodes["treeids"].count(tree)
        is_leaf = level == depth or (level > 0 and rng.random() < 0.2)
        place = len(nodes["treeids"])
        feature = 0 if is_leaf else int(rng.integers(features))
        threshold = 0.0 if is_leaf else _quarter(rng)
        mode = "LEAF" if is_leaf else str(rng.choice(modes))
        row = (tree, node, feature, threshold, mode, 0, 0, int(is_missing and rng.random() < 0.5), 1.0)
        for name, value in zip(names, row, strict=True):
            nodes[name].append(value)
        if is_leaf:
            for target in rng.choice(targets, size=min(votes, targets), replace=False):
                leaves.append((tree, node, int(target), float(np.float32(rng.uniform(*weights)))))
        else:
            nodes["truenodeids"][place] = add(tree, level + 1)
            nodes["falsenodeids"][place] = add(tree, level + 1)
        return node

    for tree in range(trees):
        add(tree, 0)
    attributes: dict[str, Any] = {f"nodes_{name}": tuple(values) for name, values in nodes.items()}
    for name, values in zip(("treeids", "nodeids", "ids", "weights"), zip(*leaves, strict=True), strict=True):
        attributes[f"{kind}_{name}"] = tuple(values)
    if kind == "target":
        attributes["n_targets"] = targets
    return attributes


def random_shared(
    rng: np.random.Generator, *, trees: int = 4, nodes: int = 12, features: int = 4, modes: Sequence[str] = ANY_MODE
) -> dict[str, Any]:
    """The attributes of a TreeEnsembleRegressor of one target, whose branches lead to any later nodes."""
    rows: list[tuple[int, int, int, float, str, int, int, int]] = []
    weights = []
    for tree in range(trees):
        leaves = int(rng.integers(1, nodes))
        for node in range(nodes):
            is_leaf = node >= nodes - leaves
            true, false = (0 if is_leaf else min(node + 1 + int(rng.integers(4)), nodes - 1) for _ in range(2))
            mode = "LEAF" if is_leaf else str(rng.choice(modes))
            feature, tracks = int(rng.integers(features)), int(rng.integers(2))
            rows.append((tree, node, feature, _quarter(rng), mode, true, false, tracks))
            if is_leaf:
                weights.append((tree, node, 0, float(rng.integers(-64, 64)) / 64))
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
             "missing_value_tracks_true")  # fmt: skip
    attributes: dict[str, Any] = {f"nodes_{n}": v for n, v in zip(names, zip(*rows, strict=True), strict=True)}
    leaf_names = ("treeids", "nodeids", "ids", "weights")
    return attributes | {f"target_{n}": v for n, v in zip(leaf_names, zip(*weights, strict=True), strict=True)} | {
        "n_targets": 1
    }  # fmt: skip


def random_linked(
    rng: np.random.Generator, dtype: Any, *, trees: int = 5, depth: int = 3, features: int = 6, targets: int = 3
) -> dict[str, Any]:
    """The attributes of a TreeEnsemble-5 with nodes of every mode, thresholds and weights of `dtype`.

    Members of sets are 1 to 3: onnxruntime supports only small positive integers.
    """
    nodes: list[list[Any]] = []
    leaves: list[tuple[int, float]] = []
    roots = []

    def add(level: int) -> tuple[int, int]:
        if level == depth or (level > 0 and rng.random() < 0.2):
            leaves.append((int(rng.integers(targets)), rng.uniform(-1, 1)))
            return len(leaves) - 1, 1
        place = len(nodes)
        node: list[Any] = [int(rng.integers(features)), _quarter(rng), int(rng.integers(7)), int(rng.random() < 0.5)]
        nodes.append(node)
        node += [*add(level + 1), *add(level + 1)]
        return place, 0

    for _ in range(trees):
        roots.append(add(0)[0])
    columns = list(zip(*nodes, strict=True))
    members: list[float] = []
    for mode in columns[2]:
        if MODES[mode] == "BRANCH_MEMBER":
            members += [float(each) for each in rng.integers(1, 4, int(rng.integers(1, 4)))] + [np.nan]
    attributes: dict[str, Any] = {
        "n_targets": targets,
        "tree_roots": tuple(roots),
        "nodes_featureids": columns[0],
        "nodes_splits": np.array(columns[1], dtype),
        "nodes_modes": np.array(columns[2], np.uint8),
        "nodes_missing_value_tracks_true": columns[3],
        "nodes_truenodeids": columns[4],
        "nodes_trueleafs": columns[5],
        "nodes_falsenodeids": columns[6],
        "nodes_falseleafs": columns[7],
        "leaf_targetids": tuple(target for target, _ in leaves),
        "leaf_weights": np.array([weight for _, weight in leaves], dtype),
    }
    if members:
        attributes["membership_values"] = np.array(members, dtype)
    return attributes


def random_rows(rng: np.random.Generator, count: int, features: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Rows [count, features] of multiples of 1/4, one in ten of real types a NaN."""
    rows = rng.integers(-6, 7, (count, features)) / 4
    if np.dtype(dtype).kind == "f":
        rows[rng.random(rows.shape) < 0.1] = np.nan
    return rows.astype(dtype)


def _quarter(rng: np.random.Generator) -> float:
    return float(rng.integers(-6, 7)) / 4
