"""Evaluation of tree ensembles of `ai.onnx.ml`."""

from __future__ import annotations

import numpy as np

from engine.errors import ModelError
from engine.ir import Node
from engine.ops.cost import attribute_length, lengths_of, more_time
from engine.ops.spec import evaluates_with_spec
from engine.ops.tensors import Array
from engine.ops.trees import ML, TreeSpec


@evaluates_with_spec("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble", domain=ML)
def tree_scores(spec: TreeSpec, x: Array) -> Array | tuple[Array, Array]:
    """The scores of rows x [N, F], or [F]; for a classifier, the labels and the scores."""
    trees, rows = spec.trees, np.atleast_2d(x)
    if rows.ndim != 2 or rows.shape[1] < trees.num_features:
        raise ModelError(
            f"the input is {list(x.shape)}; expected [rows, features], {trees.num_features} or more features"
        )
    start = {"MIN": np.inf, "MAX": -np.inf}.get(spec.aggregate, 0.0)
    scores = np.full((len(rows), spec.targets), start, trees.dtype)
    is_set = np.zeros(scores.shape, bool)
    combine = {"MIN": np.minimum, "MAX": np.maximum}.get(spec.aggregate, np.add)
    for first, count in trees.leaf_weights(rows):
        for index in range(int(count.max(initial=0))):
            lines = np.flatnonzero(count > index)
            at = first[lines] + index
            cells = lines, trees.weight_targets[at]
            scores[cells] = combine(scores[cells], trees.weights[at])
            is_set[cells] = True
    scores[~is_set] = 0
    if spec.aggregate == "AVERAGE":
        scores /= max(len(trees.roots), 1)
    if spec.base:
        scores += np.array(spec.base, trees.dtype)
    if spec.complement:
        scores = np.concatenate([1 - scores if spec.complement == "one" else -scores, scores], axis=1)
    shown = transformed(scores, spec.transform)
    if not spec.labels:
        return shown.astype(x.dtype if spec.op_type == "TreeEnsemble" else np.float32)
    best = (scores[:, 1] > 0.5).astype(np.int64) if spec.is_share else np.argmax(shown, axis=1)
    labels = np.array(spec.labels, object if isinstance(spec.labels[0], str) else np.int64)
    return labels[best], shown.astype(np.float32)


def transformed(scores: Array, transform: str) -> Array:
    """The scores [N, C] after one of `TRANSFORMS`, in their precision."""
    if transform == "LOGISTIC":
        positive = 1 / (1 + np.exp(-np.abs(scores)))
        logistic: Array = np.where(scores < 0, 1 - positive, positive)
        return logistic
    if transform == "PROBIT":
        return _probit(scores)
    if transform == "NONE" or not scores.size:
        return scores
    most = scores.max(axis=1, keepdims=True)
    powers: Array = np.exp(scores - most)
    if transform == "SOFTMAX_ZERO":  # a score of zero stays near zero
        powers = np.where(np.abs(scores) > 1e-7, powers, scores * np.exp(-most))
    total = powers.sum(axis=1, keepdims=True)
    shares: Array = np.where(total == 0, 0.5, powers / np.where(total == 0, 1, total))
    return shares.astype(scores.dtype)


def _probit(scores: Array) -> Array:
    """The quantile of the normal distribution, by Winitzki's approximation of the inverse error function.

    In f64: the roots cancel near a share of 1/2.
    """
    x = 2 * scores.astype(np.float64) - 1
    log = np.log((1 - x) * (1 + x))
    middle = 2 / (np.pi * 0.147) + 0.5 * log
    root: Array = np.sqrt(-middle + np.sqrt(middle * middle - log / 0.147))
    quantile: Array = 1.41421356 * np.copysign(root, x)
    return quantile.astype(scores.dtype)


@more_time("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", domain=ML)
def _time(node: Node) -> float:
    """At most all nodes for each row."""
    rows = lengths_of(node.input_value(0))
    return (rows[0] if len(rows) > 1 else 1) * 4.0 * attribute_length(node, "nodes_featureids")
