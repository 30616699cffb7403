"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: their spec and evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ir import Node
from engine.ops.precision import widened
from engine.ops.spec import OperatorSpec, check_choice, evaluates_with_spec, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

declare("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", addresses=1)


@specifies("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec(OperatorSpec):
    """A loss of each sample, or their sum or mean; labels of `ignore_index` do not count, None is for no label."""

    ignore_index: int | None
    reduction: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "reduction", given["reduction"], ("none", "sum", "mean"))


@evaluates_with_spec("NegativeLogLikelihoodLoss")
def negative_log_likelihood(spec: LossSpec, scores: Array, labels: Array, weights: Array | None = None) -> Array:
    """Minus the score of each label (ONNX NegativeLogLikelihoodLoss-22)."""
    return _loss(spec, widened(scores), labels, weights).astype(scores.dtype)


@evaluates_with_spec("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    spec: LossSpec, scores: Array, labels: Array, weights: Array | None = None
) -> tuple[Array, Array]:
    """Minus the logarithm of the probability of each label, and all logarithms (ONNX SoftmaxCrossEntropyLoss-13).

    A probability may be too small for the type, but its logarithm is not.
    """
    wide = widened(scores)
    shifted = wide - wide.max(axis=1, keepdims=True, initial=-np.inf)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return _loss(spec, logarithms, labels, weights).astype(scores.dtype), logarithms.astype(scores.dtype)


def _loss(spec: LossSpec, scores: Array, labels: Array, weights: Array | None) -> Array:
    """The loss of `scores`, [N, C, ...], for `labels`, [N, ...].

    An ignored label has no part in the mean. It may be out of range; numpy raises `IndexError` for another label out of
    range.
    """
    is_counted = np.ones(labels.shape, bool) if spec.ignore_index is None else labels != spec.ignore_index
    places = np.where(is_counted, labels, 0)
    if not is_counted.any():  # there may be no class 0
        losses = shares = np.zeros(labels.shape, scores.dtype)
    else:
        each = np.ones(scores.shape[1], scores.dtype) if weights is None else widened(weights)
        shares = np.where(is_counted, each[places], 0).astype(scores.dtype)
        found = np.take_along_axis(scores, np.expand_dims(places, 1), axis=1).squeeze(1)
        losses = np.where(is_counted, -found * shares, 0).astype(scores.dtype)
    if spec.reduction == "none":
        return losses
    total = losses.sum()
    return np.asarray(total / shares.sum() if spec.reduction == "mean" else total)
