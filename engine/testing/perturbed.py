"""Changes inputs of a node and compares results, for `engine.testing.facts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from engine.ir import ElementType, Node
from engine.ops.reference import compile_node
from engine.ops.tensors import Array

Inputs: TypeAlias = "list[Array | None]"
Run: TypeAlias = Callable[[Sequence[Any]], tuple[Any, ...]]


def evaluation(node: Node) -> Run:
    """The evaluation of a node, which keeps its inputs and raises no warnings of numpy."""
    evaluate = compile_node(node)

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            return tuple(np.array(each) for each in evaluate([None if x is None else x.copy() for x in inputs]))

    return run


def refuted(node: Node, promise: str, detail: str) -> AssertionError:
    """The `AssertionError` for a promise that `detail` refutes."""
    return AssertionError(f"{node} declares {promise}, but {detail}")


def replaced(value: Array, where: Array, random: np.random.Generator) -> Array:
    """The array with other elements at some places: elements of other places, so that they are valid ones."""
    others = random.permutation(value.reshape(-1)).reshape(value.shape)
    return np.where(where, others, value).astype(value.dtype)


def same(a: Array, b: Array) -> Array:
    """Where elements are equal bit by bit, except for the sign and the payload of NaN."""
    if a.dtype.kind not in "fV":
        return np.asarray(a == b)
    x, y = wide(a, b)
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def wide(*values: Array) -> list[Array]:
    """The arrays converted to f64, in which the oracle computes."""
    return [each.astype(np.float64) for each in values]


def is_moderate(value: Array) -> bool:
    """Whether sums and products of the elements neither overflow nor are NaN."""
    return value.dtype.kind in "fiu" and bool((np.abs(value.astype(np.float64)) < 1000).all())


def largest(dtype: np.dtype[Any]) -> int:
    """The number up to which a type holds all integers."""
    if dtype.kind == "f":
        return int(2 ** (np.finfo(dtype).nmant + 1))
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 0


def rounding(value: Array) -> float:
    """A relative tolerance for a few operations; 0 for integers."""
    if value.dtype.kind not in "fV" or not ElementType.from_numpy(value.dtype).is_real:
        return 0.0
    return 16 * float(ml_dtypes.finfo(value.dtype).eps)  # type: ignore[no-untyped-call]
