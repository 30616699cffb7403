"""TfIdfVectorizer, which counts n-grams: its spec, cost and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from engine.errors import ModelError, OperatorSpecError
from engine.ir import Node
from engine.ops.cost import attribute_length, lengths_of, more_time, size_of
from engine.ops.interruption import current_check
from engine.ops.result_size import Measure, item_size, measures
from engine.ops.spec import OperatorSpec, check_choice, evaluates_with_spec, refuse, specifies
from engine.ops.tensors import Array
from engine.startup import dataclass


@specifies("TfIdfVectorizer")
@dataclass(frozen=True, slots=True, kw_only=True)
class TfIdfSpec(OperatorSpec):
    """How often n-grams occur in rows; the i-th n-gram of the pool counts for column `ngram_indexes[i]`."""

    max_gram_length: int
    max_skip_count: int
    min_gram_length: int
    mode: str
    ngram_counts: tuple[int, ...]
    ngram_indexes: tuple[int, ...]
    pool_int64s: tuple[int, ...] | None
    pool_strings: tuple[str, ...] | None
    weights: tuple[float, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "mode", given["mode"], ("TF", "IDF", "TFIDF"))
        if min(given["ngram_indexes"], default=0) < 0:
            refuse(node, "ngram_indexes", min(given["ngram_indexes"]), "0 or more each")
        if given["weights"] and given["mode"] != "TF" and len(given["weights"]) != len(given["ngram_indexes"]):
            count = len(given["ngram_indexes"])
            refuse(node, "weights", f"{len(given['weights'])} values", f"one for each of {count} ngram_indexes")
        try:
            _pool(given)
        except ModelError as e:
            raise OperatorSpecError(f"{node}: {e}") from e


@evaluates_with_spec("TfIdfVectorizer")
def tf_idf_vectorizer(spec: TfIdfSpec, x: Array) -> Array:
    """How often each n-gram of the pool occurs in a row of x, [C] or [N, C] (ONNX TfIdfVectorizer-9).

    The result is f32; the count of the i-th n-gram, scaled by the i-th weight, is in column `ngram_indexes[i]`.
    Elements of an n-gram may have 0 to `max_skip_count` others between them; distances longer than a row, which find
    nothing, take no time.
    """
    grams = _pool({field.name: getattr(spec, field.name) for field in fields(spec)})
    columns = np.asarray(spec.ngram_indexes, np.int64)
    scale = np.ones(columns.size, np.float32)
    if spec.weights and spec.mode != "TF":
        scale = np.asarray(spec.weights, np.float32)
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    result = np.zeros((len(rows), columns.max(initial=-1) + 1), np.float32)
    for row, out in zip(rows.tolist(), result, strict=True):
        counts = _counted(row, grams, columns.size, spec.max_skip_count)
        np.add.at(out, columns, (counts > 0 if spec.mode == "IDF" else counts) * scale)
    return result if x.ndim > 1 else result.reshape(-1)


def _pool(given: Mapping[str, Any]) -> dict[int, dict[tuple[Any, ...], int]]:
    """For each length of n-grams that counts, the number of each n-gram. Raises `ModelError`."""
    pool, starts = list(given["pool_strings"] or given["pool_int64s"] or ()), given["ngram_counts"]
    count, least, most = len(given["ngram_indexes"]), given["min_gram_length"], given["max_gram_length"]
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


@more_time("TfIdfVectorizer")
def _time(node: Node) -> float:
    """The lengths of n-grams and the distances between their elements at each place."""
    row = sum(lengths_of(node.input_value(0))[-1:])
    distances: int = min(node.attributes.get("max_skip_count", 0) + 1, row)
    lengths = range(node.attributes["min_gram_length"], node.attributes["max_gram_length"] + 1)
    shown = range(lengths.start, min(lengths.stop, attribute_length(node, "ngram_counts") + 1))
    return distances * size_of(node.input_value(0)) * sum(200.0 + 20 * length for length in shown)


@measures("TfIdfVectorizer")
def _size(node: Node) -> Measure:
    columns, item = max(node.attributes["ngram_indexes"], default=0) + 1, item_size(node)
    return lambda inputs: item * columns * (inputs[0].shape[0] if inputs[0].ndim > 1 else 1)
