"""Facts of an operator that hold for all of its nodes, declared once, in the file of the operator's family.

    declare("Relu", pointwise=True, keeps_zero=True, monotonic=True, range=(0.0, math.inf))

Passes, preprocessing, lowering and plugins ask `traits_of(node)` instead of keeping lists of operators. An operator
without a declaration has no traits, which is always a safe answer: each trait is a promise, and code that relies on a
promise does without it. `engine.testing.facts` compares every promise with the evaluation of nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from engine.errors import ModelError
from engine.ir import Node
from engine.ops.families import Declarations, import_families

EVERY: Final = sys.maxsize
"""As `Traits.data`: all inputs."""


class Moves(IntEnum):
    """The elements that a node which only moves them keeps, each kind including the ones before it."""

    VIEW = 1
    """All, in their order."""
    PERMUTATION = 2
    """All, in any order."""
    SELECTION = 3
    """Some, each at most once."""
    REPETITION = 4
    """Some, any number of times."""


class Growth(IntEnum):
    """How the magnitude of the results relates to the data's: a hint for narrow types."""

    SHRINKS = -1
    """As a root or a logarithm does: the results are moderate even if the data is not."""
    KEEPS = 0
    GROWS = 1
    """As an exponential, a power or a sum does: the results may exceed a range that the data does not."""


class Traits(NamedTuple):
    """The promises of an operator. The default of each promises nothing.

    `sums`, `accumulates`, `quantizes`, `inflates` and `vectorized` are hints for tolerances, precision and effort,
    which no evaluation can refute.

    Attributes:
        data: the number of the first inputs that are data; the others are parameters, such as bounds or axes.
        pointwise: an element of the results depends on the parameters, and on the elements of the data at its place
            (data broadcasts) alone.
        broadcasts: the data broadcasts to a common shape, the results' shape.
        moves: elements of the results are elements of the data, if any promise is made.
        fills: but some results are other numbers: zeros, or a parameter.
        reduces: the results are computed from all elements along some axes of the data, in any order.
        sums: an element of the results is a sum (a mean, a norm) of several elements of the data.
        accumulates: the results are computed from sums along axes of the data that they keep.
        product: the two inputs of which elements are multiplied and added: the results are affine in each (in a
            quantized product, but for the rounding to codes).
        commutative: the first two inputs may be swapped.
        random: equal inputs do not give equal results.
        shape_only: the results depend on the shape of the data, and not on its elements.
        monotonic: the results do not decrease where the data, or for a single data input the data negated, increases.
        keeps_zero: data of zeros gives zeros; if pointwise, at each place.
        range: the least and the greatest result, if there are such bounds.
        growth: see `Growth`.
        activation: fused operators apply it to their results, with these attributes as the parameters.
        quantizes: converts real numbers to the codes of a quantization, or back, or computes on codes.
        addresses: the input with indices, lengths or conditions, which may be out of range when a node runs.
        inflates: the results may be larger than the inputs by any factor, which attributes or values of inputs tell.
        vectorized: the reference evaluation takes a few passes of numpy over the elements; without this promise, it may
            loop in Python.
    """

    data: int = 1
    pointwise: bool = False
    broadcasts: bool = False
    moves: Moves | None = None
    fills: bool = False
    reduces: bool = False
    sums: bool = False
    accumulates: bool = False
    product: tuple[int, int] | None = None
    commutative: bool = False
    random: bool = False
    shape_only: bool = False
    monotonic: bool = False
    keeps_zero: bool = False
    range: tuple[float, float] | None = None
    growth: Growth = Growth.KEEPS
    activation: tuple[str, ...] | None = None
    quantizes: bool = False
    addresses: int | None = None
    inflates: bool = False
    vectorized: bool = False


NO_TRAITS: Final = Traits()
"""The traits of an operator without a declaration: nothing is known."""


def declare(*op_types: str, domain: str = "", **facts: Any) -> None:
    """Declare the traits of operators, by the fields of `Traits`. Reads no schema, so that it costs nothing at import.

    Raises `ModelError` if an operator has another declaration already.
    """
    declare_traits(op_types, Traits(**facts), domain)


def declare_traits(op_types: tuple[str, ...], traits: Traits, domain: str = "") -> None:
    """Declare these traits of operators; as `declare`."""
    for op_type in op_types:
        if _TRAITS.setdefault((domain, op_type), traits) != traits:
            raise ModelError(
                f"operator {domain}.{op_type}: its traits are declared twice; declare all of them in one call"
            )


def traits_of(node: Node) -> Traits:
    """The traits of a node's operator; `NO_TRAITS` if it declares none."""
    return _TRAITS[node.domain, node.op_type] or NO_TRAITS


def traits_of_operator(op_type: str, domain: str = "") -> Traits:
    """The traits of an operator; `NO_TRAITS` if it declares none."""
    return _TRAITS[domain, op_type] or NO_TRAITS


def operators_with(promise: Callable[[Traits], object], domain: str = "") -> list[str]:
    """The operators of a domain whose traits fulfil `promise`, in alphabetical order: the roots of a pattern.

    Imports all families of operators.
    """
    import_families()
    return imported_operators_with(promise, domain)


def imported_operators_with(promise: Callable[[Traits], object], domain: str = "") -> list[str]:
    """As `operators_with`, of the families that are imported.

    For promises that no other family in `engine.ops.families` makes: `tests/ops/test_families.py`.
    """
    return sorted(name for (where, name), traits in _TRAITS.items() if where == domain and promise(traits))


_TRAITS: Final[Declarations[Traits]] = Declarations()
