"""Evaluation of TfIdfVectorizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.ops.interruption import current_check
from engine.ops.registry import evaluates
from engine.ops.tensors import Array


@evaluates("TfIdfVectorizer")
def tf_idf_vectorizer(
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None,
    pool_strings: Sequence[str] | None,
    weights: Sequence[float] | None,
) -> Array:
    """How often each n-gram of the pool occurs in a row of x, [C] or [N, C] (ONNX TfIdfVectorizer-9).

    The result is f32; the count of the i-th n-gram, scaled by the i-th weight, is in column `ngram_indexes[i]`.
    Elements of an n-gram may have 0 to `max_skip_count` others between them; distances longer than a row, which find
    nothing, take no time.
    """
    pool = list(pool_strings or pool_int64s or ())
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ModelError(f"mode {mode!r} must be TF, IDF or TFIDF")
    grams = _pool(pool, ngram_counts, len(ngram_indexes), min_gram_length, max_gram_length)
    columns = np.asarray(ngram_indexes, np.int64)
    if columns.size and columns.min() < 0:
        raise ModelError(f"ngram_indexes has {columns.min()}; none may be negative")
    scale = np.ones(columns.size, np.float32)
    if weights and mode != "TF":
        if len(weights) != columns.size:
            raise ModelError(f"there are {len(weights)} weights for the {columns.size} n-grams of ngram_indexes")
        scale = np.asarray(weights, np.float32)
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    result = np.zeros((len(rows), columns.max(initial=-1) + 1), np.float32)
    for row, out in zip(rows.tolist(), result, strict=True):
        counts = _counted(row, grams, columns.size, max_skip_count)
        np.add.at(out, columns, (counts > 0 if mode == "IDF" else counts) * scale)
    return result if x.ndim > 1 else result.reshape(-1)


def _pool(
    pool: Sequence[Any], starts: Sequence[int], count: int, least: int, most: int
) -> dict[int, dict[tuple[Any, ...], int]]:
    """For each length of n-grams that counts, the number of each n-gram."""
    grams: dict[int, dict[tuple[Any, ...], int]] = {}
    number = 0
    for length, (start, stop) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        if not 0 <= start <= stop <= len(pool):
            raise ModelError(f"ngram_counts {list(starts)} must ascend from 0 to at most {len(pool)}, the pool's size")
        for place in range(start, start + (stop - start) // length * length, length):
            if number >= count:
                raise ModelError(f"ngram_indexes has {count} columns; the pool has more n-grams")
            if least <= length <= most:
                grams.setdefault(length, {})[tuple(pool[place : place + length])] = number
            number += 1
    return grams


def _counted(
    row: Sequence[Any], grams: dict[int, dict[tuple[Any, ...], int]], count: int, max_skip_count: int
) -> Array:
    """How often each n-gram occurs in a row. Raises the errors of the check for interruptions."""
    counts = np.zeros(count, np.float32)
    check = current_check()
    longest = max((length for length in grams if length > 1), default=0)
    distances = min(max_skip_count + 1, len(row) - 1) if longest else 1
    firsts = {gram[0] for known in grams.values() for gram in known}
    starts = [place for place, value in enumerate(row) if value in firsts]
    for distance in range(1, max(distances, 1) + 1):
        if check is not None:
            check()
        for length, known in grams.items():
            span = (length - 1) * distance
            if length == 1 and distance > 1:
                continue  # its elements are not apart
            for start in starts:
                if start + span >= len(row):
                    break
                number = known.get(tuple(row[start : start + span + 1 : distance]))
                if number is not None:
                    counts[number] += 1
    return counts
