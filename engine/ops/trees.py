"""Ensembles of decision trees (`ai.onnx.ml`): specs that refuse nodes and leaves that do not exist, and cycles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import Node
from engine.ops.spec import OperatorSpec, check_choice, refuse, specifies

_ML: Final = "ai.onnx.ml"
_MEMBER: Final = 6
_MODES: Final = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF")
_TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES: Final = ("AVERAGE", "SUM", "MIN", "MAX")


@specifies("TreeEnsemble", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEnsembleSpec(OperatorSpec):
    """Trees whose inner nodes and leaves are numbered from 0, apart (ONNX-ML TreeEnsemble-5).

    Attributes:
        nodes_truenodeids: for each inner node the inner node, or where `nodes_trueleafs` is 1 the leaf, for which its
            comparison is true; `nodes_falsenodeids` and `nodes_falseleafs` likewise.
        tree_roots: the root of each tree.
    """

    aggregate_function: int
    leaf_targetids: tuple[int, ...]
    leaf_weights: Any = field(hash=False)
    membership_values: Any = field(hash=False)
    n_targets: int
    nodes_falseleafs: tuple[int, ...]
    nodes_falsenodeids: tuple[int, ...]
    nodes_featureids: tuple[int, ...]
    nodes_missing_value_tracks_true: tuple[int, ...] | None
    nodes_modes: Any = field(hash=False)
    nodes_splits: Any = field(hash=False)
    nodes_trueleafs: tuple[int, ...]
    nodes_truenodeids: tuple[int, ...]
    post_transform: int
    tree_roots: tuple[int, ...]

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        _check_ids(node, "post_transform", [given["post_transform"]], len(_TRANSFORMS))
        _check_ids(node, "aggregate_function", [given["aggregate_function"]], len(_AGGREGATES))
        if (given["n_targets"] or 0) < 1:
            refuse(node, "n_targets", given["n_targets"], "1 or more")
        count, leaves = len(given["nodes_featureids"]), len(given["leaf_targetids"])
        per_node = ("nodes_modes", "nodes_splits", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
                    "nodes_falseleafs", "nodes_missing_value_tracks_true")  # fmt: skip
        _check_lengths(node, given, per_node, count, "nodes_featureids")
        _check_lengths(node, given, ("leaf_weights",), leaves, "leaf_targetids")
        _check_ids(node, "leaf_targetids", given["leaf_targetids"], given["n_targets"])
        _check_ids(node, "tree_roots", given["tree_roots"], count)
        modes = np.ravel(given["nodes_modes"]).tolist()
        _check_ids(node, "nodes_modes", modes, _MEMBER + 1)
        members = given["membership_values"]
        sets = 0 if members is None else int(np.isnan(np.asarray(members, np.float64)).sum())
        if sets != modes.count(_MEMBER):
            refuse(node, "membership_values", f"{sets} sets", f"one for each of {modes.count(_MEMBER)} nodes of MEMBER")
        after: list[list[int]] = [[] for _ in range(count)]
        for side in ("true", "false"):
            for place, (to, is_leaf) in enumerate(
                zip(given[f"nodes_{side}nodeids"], given[f"nodes_{side}leafs"], strict=True)
            ):
                _check_ids(node, f"nodes_{side}nodeids", [to], leaves if is_leaf else count)
                if not is_leaf:
                    after[place].append(to)
        _check_acyclic(node, after)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabelledTreesSpec(OperatorSpec):
    """Trees whose nodes have numbers of their own within each tree; leaves are nodes of mode LEAF."""

    nodes_falsenodeids: tuple[int, ...] | None
    nodes_featureids: tuple[int, ...] | None
    nodes_missing_value_tracks_true: tuple[int, ...] | None
    nodes_modes: tuple[str, ...] | None
    nodes_nodeids: tuple[int, ...] | None
    nodes_treeids: tuple[int, ...] | None
    nodes_truenodeids: tuple[int, ...] | None
    nodes_values: tuple[float, ...] | None
    nodes_values_as_tensor: Any = field(hash=False)
    post_transform: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        check_choice(node, "post_transform", given["post_transform"], _TRANSFORMS)
        trees = given["nodes_treeids"] or ()
        required = ("nodes_nodeids", "nodes_modes", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")
        for name in required:
            given[name] = given[name] or ()
        values = "nodes_values_as_tensor" if given["nodes_values_as_tensor"] is not None else "nodes_values"
        _check_lengths(node, given, (*required, values, "nodes_missing_value_tracks_true"), len(trees), "nodes_treeids")
        if not trees:
            refuse(node, "nodes_treeids", [], "a tree or more")
        places = {key: place for place, key in enumerate(zip(trees, given["nodes_nodeids"], strict=True))}
        if len(places) < len(trees):
            refuse(node, "nodes_nodeids", given["nodes_nodeids"], "each number once within a tree")
        after: list[list[int]] = [[] for _ in trees]
        for place, (tree, mode) in enumerate(zip(trees, given["nodes_modes"], strict=True)):
            check_choice(node, "nodes_modes", mode, _MODES)
            for name in ("nodes_truenodeids", "nodes_falsenodeids") if mode != "LEAF" else ():
                after[place].append(_place(node, name, places, tree, given[name][place]))
        _check_acyclic(node, after)
        cls._check_weights(node, given, places)

    @classmethod
    def _check_weights(cls, node: Node, given: dict[str, Any], places: dict[tuple[int, int], int]) -> None:
        """Check the attributes that give each leaf its weights."""
        raise NotImplementedError


def _check_leaf_weights(
    node: Node, given: dict[str, Any], places: dict[tuple[int, int], int], kind: str, count: int
) -> None:
    weights = f"{kind}_weights_as_tensor"
    weights = weights if given[weights] is not None else f"{kind}_weights"
    ids, trees, nodes = (given[f"{kind}_{name}"] or () for name in ("ids", "treeids", "nodeids"))
    _check_lengths(node, given, (weights, f"{kind}_treeids", f"{kind}_nodeids"), len(ids), f"{kind}_ids")
    _check_ids(node, f"{kind}_ids", ids, count)
    for tree, number in zip(trees, nodes, strict=True):
        _place(node, f"{kind}_nodeids", places, tree, number)


@specifies("TreeEnsembleRegressor", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEnsembleRegressorSpec(_LabelledTreesSpec):
    """Trees with targets at their leaves (ONNX-ML TreeEnsembleRegressor-3)."""

    aggregate_function: str
    base_values: tuple[float, ...] | None
    n_targets: int
    target_ids: tuple[int, ...] | None
    target_nodeids: tuple[int, ...] | None
    target_treeids: tuple[int, ...] | None
    target_weights: tuple[float, ...] | None
    target_weights_as_tensor: Any = field(hash=False)

    @classmethod
    def _check_weights(cls, node: Node, given: dict[str, Any], places: dict[tuple[int, int], int]) -> None:
        check_choice(node, "aggregate_function", given["aggregate_function"], _AGGREGATES)
        count = given["n_targets"]
        if (count or 0) < 1:
            refuse(node, "n_targets", count, "1 or more")
        _check_leaf_weights(node, given, places, "target", count)
        if len(given["base_values"] or ()) not in (0, 1, count):
            refuse(node, "base_values", given["base_values"], f"a value for each of {count} targets")


@specifies("TreeEnsembleClassifier", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEnsembleClassifierSpec(_LabelledTreesSpec):
    """Trees with classes at their leaves (ONNX-ML TreeEnsembleClassifier-3)."""

    base_values: tuple[float, ...] | None
    class_ids: tuple[int, ...] | None
    class_nodeids: tuple[int, ...] | None
    class_treeids: tuple[int, ...] | None
    class_weights: tuple[float, ...] | None
    class_weights_as_tensor: Any = field(hash=False)
    classlabels_int64s: tuple[int, ...] | None
    classlabels_strings: tuple[str, ...] | None

    @classmethod
    def _check_weights(cls, node: Node, given: dict[str, Any], places: dict[tuple[int, int], int]) -> None:
        count = len(given["classlabels_int64s"] or given["classlabels_strings"] or ())
        if not count or (given["classlabels_int64s"] and given["classlabels_strings"]):
            refuse(node, "classlabels_int64s", None, "a label for each class, either there or in classlabels_strings")
        _check_leaf_weights(node, given, places, "class", count)


def _check_lengths(node: Node, given: dict[str, Any], names: Iterable[str], count: int, like: str) -> None:
    """Refuse attributes that do not have `count` values; an optional one may be missing."""
    for name in names:
        value = given[name]
        is_optional = name == "nodes_missing_value_tracks_true"
        if is_optional and not value:
            continue
        found = 0 if value is None else int(np.size(value))
        if found != count:
            raise OperatorSpecError(f"{node}: attribute {name} has {found} values; allowed: {count}, as {like} has")


def _check_ids(node: Node, name: str, ids: Sequence[int], count: int) -> None:
    """Refuse numbers that are not in 0..count - 1."""
    for each in ids:
        if not 0 <= each < count:
            _refuse_id(node, name, each, f"0..{count - 1}" if count else "none")


def _place(node: Node, name: str, places: dict[tuple[int, int], int], tree: int, number: int) -> int:
    found = places.get((tree, number))
    if found is None:
        _refuse_id(node, name, number, f"the number of a node of tree {tree}")
    return found


def _refuse_id(node: Node, name: str, found: int, allowed: str) -> NoReturn:
    raise OperatorSpecError(f"{node}: attribute {name} has {found}; allowed: {allowed}")


def _check_acyclic(node: Node, after: Sequence[Sequence[int]]) -> None:
    """Refuse trees in which a node comes after itself: an evaluation would not end."""
    waiting = [0] * len(after)
    for targets in after:
        for to in targets:
            waiting[to] += 1
    ready = [place for place, count in enumerate(waiting) if not count]
    done = 0
    while ready:
        done += 1
        for to in after[ready.pop()]:
            waiting[to] -= 1
            if not waiting[to]:
                ready.append(to)
    if done < len(after):
        raise OperatorSpecError(f"{node}: node {next(p for p, c in enumerate(waiting) if c)} of a tree leads to itself")
