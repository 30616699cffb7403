"""`TokenLogProbabilities`: how likely a model considered a token that was chosen, and others in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.startup import dataclass

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TokenLogProbabilities:
    """Natural logarithms of the probabilities softmax(logits), before a `Sampling` or a `Constraint` changes them.

    Attributes:
        chosen: that of the chosen token.
        top: the likeliest tokens and theirs, the likeliest first; of equal ones, the smaller number first.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]


def log_probabilities(logits: Array, token: int, count: int) -> TokenLogProbabilities:
    """Those of `token`, and of the `count` likeliest tokens. NaN counts as minus infinity."""
    scores = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    largest = scores.max()
    if largest == np.inf:  # these tokens share the probability
        scores = np.where(scores == np.inf, 0.0, -np.inf)
        largest = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # far below the likeliest one: exp(-inf), a share of 0
        scores -= largest + np.log(np.exp(scores - largest).sum())
    count = min(count, scores.size)
    found = np.flatnonzero(scores >= np.partition(scores, -count)[-count]) if count else np.arange(0)
    order = found[np.argsort(-scores[found], kind="stable")][:count]
    return TokenLogProbabilities(float(scores[token]), tuple((int(each), float(scores[each])) for each in order))
