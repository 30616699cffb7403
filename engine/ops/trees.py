"""Tree ensembles of `ai.onnx.ml`: their spec, which reads and checks the trees, and type rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.ir import ElementType, Node, PartialShape, TensorType, ValueType, as_dimension, f32, f64, i64, string
from engine.ir.long_list import PART, LongList
from engine.ops.flat_trees import MODES, FlatTrees, LinkedTrees, TreeError
from engine.ops.registry import get_op, infers
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.shared_branches import flatten_graphs
from engine.ops.spec import OperatorSpec, check_choice, refuse, specifies
from engine.ops.tensors import Array
from engine.ops.tree_ids import NodeIds
from engine.startup import dataclass

ML: Final = "ai.onnx.ml"
AGGREGATES: Final = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""Names of aggregate_function and post_transform; the numbers in TreeEnsemble-5 are their indices."""
_MAX_NODES: Final = 1 << 28
_IS_LEAF: Final = MODES.index("LEAF")


@specifies("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble", domain=ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSpec(OperatorSpec):
    """TreeEnsembleRegressor-5, TreeEnsembleClassifier-5 and TreeEnsemble-5 of `ai.onnx.ml`.

    The sum of weights (or their mean, minimum, maximum) of the leaves that a row [F] reaches, one for each target, plus
    base values; a target without weights has 0. `trees.dtype` is f64 if the input or a tensor of the attributes is.

    Attributes:
        aggregate: one of `AGGREGATES`; a classifier sums.
        transform: one of `TRANSFORMS`, of the scores of a row; also of a single target, unlike in onnxruntime.
        targets: the number of sums.
        base: added to them; empty for zeros.
        columns: the number of scores of a row.
        complement: how a classifier with two classes gets the scores of both from the only sum s: "one" is [1 - s, s],
            "negative" [-s, s]; "" if each score is a sum.
        is_share: whether the sum of class 1 is a probability, which decides for the class if above 0.5; otherwise the
            greatest score decides, the first of equal ones.
        labels: of the classes; empty for a regressor.
    """

    aggregate: str
    transform: str
    targets: int
    base: tuple[float, ...]
    columns: int
    complement: str
    is_share: bool
    labels: tuple[int, ...] | tuple[str, ...]
    trees: FlatTrees

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        given |= {"aggregate": "SUM", "complement": "", "is_share": False, "labels": ()}
        try:
            if node.op_type == "TreeEnsemble":
                _resolve_linked(node, given)
            elif node.op_type == "TreeEnsembleRegressor":
                _resolve_regressor(node, given)
            else:
                _resolve_classifier(node, given)
        except TreeError as e:
            refuse(node, e.name, _shortened(node.attributes.get(e.name)), e.problem, e)
        if len(given["base"]) not in (0, given["targets"]):
            refuse(node, "base_values", given["base"], f"nothing, or {given['targets']} values, one for each target")


def _shortened(value: Any) -> Any:
    """An attribute as a message shows it."""
    length = np.size(value) if isinstance(value, (tuple, np.ndarray)) else 0
    return f"{length} values" if length > 8 else value


def _dtype(node: Node, *tensors: Any) -> np.dtype[Any]:
    value_type = node.input_value(0).type
    is_double = isinstance(value_type, TensorType) and value_type.element_type is f64
    is_double |= any(isinstance(each, np.ndarray) and each.dtype == np.float64 for each in tensors)
    return np.dtype(np.float64 if is_double else np.float32)


def _numbers(node: Node, name: str) -> Array:
    """A list of numbers, or the tensor that may be given instead; empty if there is neither."""
    tensor = node.attributes.get(f"{name}_as_tensor")
    return (
        _listed(node, name, "fiub", "a list of numbers") if not isinstance(tensor, np.ndarray) else tensor.reshape(-1)
    )


def _integers(node: Node, name: str, count: int | None = None, *, optional: bool = False) -> Array:
    found = _listed(node, name, "iub", "a list of integers")
    if optional and not len(found) and count is not None:
        return np.zeros(count, np.int64)
    if count is not None and len(found) != count:
        raise TreeError(name, f"{count} values, one for each of the others")
    return found.astype(np.int64, copy=False)


def _listed(node: Node, name: str, kinds: str, wanted: str) -> Array:
    """A list as an array of one of these kinds of types."""
    found = node.attributes.get(name, ())
    if isinstance(found, LongList) and found.array is not None:
        return found.array
    try:
        values = np.array(found if len(found) else (0,))[: len(found)] if isinstance(found, tuple) else None
    except (ValueError, OverflowError):
        values = None
    if values is None or values.ndim != 1 or values.dtype.kind not in kinds:
        refuse(node, name, _shortened(found), wanted)
    return values


def _tree_of_ids(node: Node, leaves: str, targets: int) -> tuple[LinkedTrees, set[int], bool, np.dtype[Any]]:
    """Trees given by ids, with the targets of their leaves' weights, and whether all weights are 0 or more."""
    tree_ids = _integers(node, "nodes_treeids")
    count = len(tree_ids)
    ids = NodeIds(tree_ids, _integers(node, "nodes_nodeids", count))
    modes = _modes_by_name(node, count)
    features = _integers(node, "nodes_featureids", count)
    values = _numbers(node, "nodes_values")
    if len(values) != count:
        raise TreeError("nodes_values", f"{count} values, one for each of the others")
    branches = {}
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        found = ids.places(tree_ids, _integers(node, name, count))
        wrong = np.flatnonzero((modes != _IS_LEAF) & (found < 0))
        if len(wrong):
            raise TreeError(name, f"ids of nodes of the same tree; node {wrong[0]} names a node that does not exist")
        branches[name] = found
    _check_features(modes, features)
    weight_trees = _integers(node, f"{leaves}_treeids")
    number = len(weight_trees)
    weights = _numbers(node, f"{leaves}_weights")
    if len(weights) != number:
        raise TreeError(f"{leaves}_weights", f"{number} values, one for each of {leaves}_treeids")
    weight_targets = _integers(node, f"{leaves}_ids", number)
    _check_range(f"{leaves}_ids", weight_targets, targets)
    weight_ids = _integers(node, f"{leaves}_nodeids", number)
    places = ids.places(weight_trees, weight_ids)
    wrong = np.flatnonzero(places < 0)
    if len(wrong):
        tree, leaf = weight_trees[wrong[0]], weight_ids[wrong[0]]
        raise TreeError(f"{leaves}_nodeids", f"nodes that exist; tree {tree} has no node {leaf}")
    order = np.argsort(places, kind="stable")
    linked = LinkedTrees(
        modes=modes,
        features=features,
        values=values.astype(np.float64),
        true=branches["nodes_truenodeids"],
        false=branches["nodes_falsenodeids"],
        missing=_integers(node, "nodes_missing_value_tracks_true", count, optional=True) != 0,
        members={},
        roots=ids.roots,
        weight_starts=np.searchsorted(places[order], np.arange(count + 1)),
        weight_targets=weight_targets[order],
        weights=weights[order].astype(np.float64),
    )
    tensors = [
        node.attributes.get(f"{name}_as_tensor") for name in ("nodes_values", f"{leaves}_weights", "base_values")
    ]
    return linked, set(np.unique(weight_targets).tolist()), bool((weights >= 0).all()), _dtype(node, *tensors)


def _modes_by_name(node: Node, count: int) -> Array:
    names = node.attributes.get("nodes_modes", ())
    codes = {name: number for number, name in enumerate(MODES) if name != "BRANCH_MEMBER"}
    wrong = TreeError("nodes_modes", f"{count} values of {', '.join(codes)}")
    if not isinstance(names, tuple) or len(names) != count:
        raise wrong
    modes = np.empty(count, np.int64)
    for start in range(0, count, PART):
        part = names[start : start + PART]
        try:
            modes[start : start + PART] = np.fromiter(map(codes.__getitem__, part), np.int64, len(part))
        except (KeyError, TypeError):
            raise wrong from None
    return modes


def _check_features(modes: Array, features: Array) -> None:
    if len(features) and not ((modes == _IS_LEAF) | (features >= 0) & (features < 1 << 31)).all():
        raise TreeError("nodes_featureids", "0 or more, less than 2^31")


def _check_range(name: str, values: Array, count: int, what: str = "") -> None:
    if len(values) and not 0 <= values.min() <= values.max() < count:
        raise TreeError(name, f"0..{count - 1}{what}")


def _resolve_regressor(node: Node, given: dict[str, Any]) -> None:
    aggregate, targets = node.attributes.get("aggregate_function", "SUM"), node.attributes.get("n_targets")
    check_choice(node, "aggregate_function", aggregate, AGGREGATES)
    if not isinstance(targets, int) or not 0 < targets < _MAX_NODES:
        refuse(node, "n_targets", targets, "the number of targets, 1 or more")
    linked, _, _, dtype = _tree_of_ids(node, "target", targets)
    given |= {"aggregate": aggregate, "targets": targets, "columns": targets, "base": _base(node)}
    given |= {"transform": _transform(node), "trees": flatten_graphs(linked, dtype)}


def _base(node: Node) -> tuple[float, ...]:
    return tuple(_numbers(node, "base_values").tolist())


def _transform(node: Node) -> Any:
    transform = node.attributes.get("post_transform", "NONE")
    check_choice(node, "post_transform", transform, TRANSFORMS)
    return transform


def _resolve_classifier(node: Node, given: dict[str, Any]) -> None:
    labels = node.attributes.get("classlabels_int64s") or node.attributes.get("classlabels_strings") or ()
    if not isinstance(labels, tuple) or not labels:
        refuse(node, "classlabels_int64s", labels, "the label of each class, here or in classlabels_strings")
    if node.attributes.get("classlabels_int64s") and node.attributes.get("classlabels_strings"):
        refuse(node, "classlabels_strings", _shortened(labels), "nothing beside classlabels_int64s")
    classes = len(labels)
    transform, base = _transform(node), _base(node)
    linked, used, is_positive, dtype = _tree_of_ids(node, "class", classes)
    given |= {"labels": labels, "targets": classes, "columns": classes, "transform": transform, "base": base}
    has_sum = classes <= 2 and used <= {0}
    if classes == 1 and labels != (1,):
        refuse(node, "classlabels_int64s", labels, "two labels or more, or only label 1")
    if has_sum:
        is_plain = transform in ("NONE", "PROBIT")
        complement = "one" if is_plain and (is_positive or transform == "PROBIT") else "negative"
        given |= {"targets": 1, "columns": 2, "base": base[:1], "complement": complement}
        if classes == 1:
            given["labels"] = (0, 1)
    given["is_share"] = classes == 2 and used == {1} and is_positive and transform == "NONE"
    given["trees"] = flatten_graphs(linked, dtype)


def _resolve_linked(node: Node, given: dict[str, Any]) -> None:
    """TreeEnsemble-5: nodes and leaves by position. Leaves follow the nodes in `LinkedTrees`."""
    splits, codes, weights = (_tensor(node, name) for name in ("nodes_splits", "nodes_modes", "leaf_weights"))
    count, leaves = len(splits), len(weights)
    modes = codes.astype(np.int64)
    if len(modes) != count or not ((modes >= 0) & (modes < len(MODES) - 1)).all():
        raise TreeError("nodes_modes", f"{count} values of 0..{len(MODES) - 2}")
    features = _integers(node, "nodes_featureids", count)
    _check_features(modes, features)
    targets = node.attributes.get("n_targets", 0)
    ids = _integers(node, "leaf_targetids", leaves)
    if not isinstance(targets, int) or not 0 < targets < _MAX_NODES:
        refuse(node, "n_targets", targets, "the number of targets, 1 or more")
    _check_range("leaf_targetids", ids, targets)
    true, false = (_branches(node, side, count, leaves) for side in ("true", "false"))
    roots = _integers(node, "tree_roots")
    _check_range("tree_roots", roots, count, ", the nodes")
    # A node whose branches are the same leaf stands for a tree of only this leaf.
    starts = np.where((true[roots] == false[roots]) & (true[roots] >= count), true[roots], roots)
    weight_starts = np.concatenate([np.zeros(count, np.int64), np.arange(leaves + 1)])
    linked = LinkedTrees(
        modes=np.concatenate([modes, np.full(leaves, _IS_LEAF)]),
        features=features,
        values=splits.astype(np.float64),
        true=true,
        false=false,
        missing=_integers(node, "nodes_missing_value_tracks_true", count, optional=True) != 0,
        members=_members(node, modes),
        roots=starts,
        weight_starts=weight_starts,
        weight_targets=ids,
        weights=weights.astype(np.float64),
    )
    given["aggregate"] = _coded(node, "aggregate_function", AGGREGATES, default=1)
    given["transform"] = _coded(node, "post_transform", TRANSFORMS, default=0)
    trees = flatten_graphs(linked, _dtype(node, splits, weights))
    given |= {"targets": targets, "columns": targets, "base": (), "trees": trees}


def _branches(node: Node, side: str, count: int, leaves: int) -> Array:
    """The positions of the branches of one side in `LinkedTrees`."""
    places = _integers(node, f"nodes_{side}nodeids", count)
    are_leaves = _integers(node, f"nodes_{side}leafs", count) != 0
    _check_range(f"nodes_{side}nodeids", places[are_leaves], leaves, ", the leaves")
    _check_range(f"nodes_{side}nodeids", places[~are_leaves], count, ", the nodes")
    return np.where(are_leaves, places + count, places)


def _coded(node: Node, name: str, names: Sequence[str], default: int) -> str:
    code: Any = node.attributes.get(name, default)
    if code not in range(len(names)):
        refuse(node, name, code, ", ".join(f"{number} ({each})" for number, each in enumerate(names)))
    return names[int(code)]


def _tensor(node: Node, name: str) -> Array:
    found = node.attributes.get(name)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        refuse(node, name, found, "a tensor of numbers")
    return found.reshape(-1)


def _members(node: Node, modes: Array) -> dict[int, Sequence[float]]:
    """The values of each node that tests for membership: in the order of the nodes, each set ending with a NaN."""
    places = np.flatnonzero(modes == MODES.index("BRANCH_MEMBER")).tolist()
    given = _tensor(node, "membership_values").tolist() if "membership_values" in node.attributes else []
    sets: list[list[float]] = [[]]
    for value in given:
        if value == value:
            sets[-1].append(value)
        else:
            sets.append([])
    if len(sets) - 1 != len(places) or sets[-1]:
        raise TreeError("membership_values", f"{len(places)} sets, one for each BRANCH_MEMBER, each followed by a NaN")
    return dict(zip(places, sets, strict=False))


@infers("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble", domain=ML)
def _infer_trees(node: Node) -> Sequence[ValueType]:
    """[N, F] or [F]: [N, columns], and for a classifier the labels [N]."""
    check_inputs(node, get_op(node.op_type, ML))
    spec, data = TreeSpec.of(node), tensor_type(node, 0)
    rows = as_dimension(None)
    if data.shape.rank.is_static:
        if len(data.shape) not in (1, 2):
            fail(node, f"the input has {len(data.shape)} dimensions; expected [rows, features], or [features]")
        rows, width = data.shape[0] if len(data.shape) == 2 else as_dimension(1), data.shape[-1]
        if width.is_static and width.min < spec.trees.num_features:
            fail(node, f"rows have {width.min} features; the trees read {spec.trees.num_features}")
    element: ElementType = data.element_type if node.op_type == "TreeEnsemble" else f32
    scores = TensorType(element, PartialShape([rows, spec.columns]))
    if not spec.labels:
        return (scores,)
    label = string if isinstance(spec.labels[0], str) else i64
    return TensorType(label, PartialShape([rows])), scores
