"""Support vector machines of `onnx.reference`, with all kernels of a row at once: it calls one function for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.ops.aionnxml.op_svm_helper import SVMCommon  # noqa: TID253 - models with these machines need it

from engine.ops.pairwise_coupling import CoupledProbabilities
from engine.ops.tensors import Array

__all__ = ["CoupledProbabilities", "Sums", "Votes", "kernels_of"]


def kernels_of(machine: Any, x: Array, vectors: Array, kernel_type: str) -> Array:
    """The kernels of a row [features] and each support vector [vectors, features]."""
    if kernel_type == "RBF":
        difference = vectors - x
        near: Array = np.exp(-machine.gamma_ * (difference * difference).sum(axis=1))
        return near
    products: Array = vectors @ x
    if kernel_type == "LINEAR":
        return products
    scaled: Array = products * machine.gamma_ + machine.coef0_
    return scaled**machine.degree_ if kernel_type == "POLY" else np.tanh(scaled)


class Votes:
    """Replaces a method of `onnx.reference`'s SVMClassifier."""

    _svm: Any

    def _run_svm(
        self,
        x: Array,
        vectors: Array,
        count: int,
        kernel_type: str,
        classes: int,
        starts: Sequence[int],
        coefficients: Array,
    ) -> tuple[Array, Array]:
        weighted = coefficients * kernels_of(self._svm, x, vectors, kernel_type)
        votes = np.zeros(classes, x.dtype)
        scores: list[Any] = []
        spans = [
            slice(start, start + size) for start, size in zip(starts, self._svm.atts.vectors_per_class, strict=True)
        ]
        for first in range(classes):
            for second in range(first + 1, classes):
                margin = weighted[second - 1, spans[first]].sum() + weighted[first, spans[second]].sum()
                score = self._svm.atts.rho[len(scores)] + margin
                votes[first if score > 0 else second] += 1
                scores.append(score)
        return votes, np.array(scores, x.dtype)


class Sums:
    """Replaces the evaluation of `onnx.reference`'s SVMRegressor if it has support vectors."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Array]:
        if attributes["n_supports"] < 1 or attributes["post_transform"] not in (None, "NONE"):
            found: tuple[Array] = super()._run(x, **attributes)  # type: ignore[misc]
            return found
        machine: Any = SVMCommon(**attributes)  # type: ignore[no-untyped-call]
        vectors = machine.atts.support_vectors.reshape(machine.atts.n_supports, -1)
        coefficients, offset = machine.atts.coefficients, machine.atts.rho[0]
        sums = [(coefficients * kernels_of(machine, row, vectors, machine.atts.kernel_type)).sum() for row in x]
        result = np.array(sums, x.dtype).reshape(-1, 1) + offset
        return ((np.where(result > 0, 1, -1) if machine.atts.one_class else result).astype(x.dtype),)
