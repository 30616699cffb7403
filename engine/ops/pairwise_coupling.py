"""Probabilities of SVMClassifier for three or more classes, which `onnx.reference` computes wrong."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine.ops.tensors import Array

_CLOSEST: Final = 1.0e-7  # of a pairwise probability to 0 and 1


def couple(pairs: Array) -> Array:
    """The probability of each class from pairs' probabilities: `pairs[i, j]` is for class i against j, [K, K] -> [K].

    The second method of Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling"
    (JMLR 2004), with the limits of libsvm, which scikit-learn and onnxruntime share.
    """
    count = len(pairs)
    quadratic = -pairs.T * pairs
    np.fill_diagonal(quadratic, (pairs**2).sum(0) - np.diag(pairs) ** 2)
    found = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        product = quadratic @ found
        total = found @ product
        if np.abs(product - total).max() < 0.005 / count:
            break
        for k in range(count):
            step = (total - product[k]) / quadratic[k, k]
            found[k] += step
            total = (total + step * (step * quadratic[k, k] + 2 * product[k])) / (1 + step) ** 2
            product = (product + step * quadratic[k]) / (1 + step)
            found /= 1 + step
    return found


class CoupledProbabilities:
    """Replaces a method of `onnx.reference`'s SVMClassifier."""

    _svm: Any

    def _probabilities(self, scores: Array, class_count: int) -> Array:
        first, second = np.triu_indices(class_count, 1)
        a, b = np.asarray(self._svm.atts.prob_a), np.asarray(self._svm.atts.prob_b)
        pairs = np.zeros((class_count, class_count))
        wins = 1 / (1 + np.exp(scores[: len(first)].astype(np.float64) * a + b))
        pairs[first, second] = np.clip(wins, _CLOSEST, 1 - _CLOSEST)
        pairs[second, first] = 1 - pairs[first, second]
        return couple(pairs).astype(scores.dtype)
