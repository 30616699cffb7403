"""`EinsumDecomposition`: an Einsum as transposes, products of matrices and sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Final

from engine import ops
from engine.ir import Constant, Dimension, ElementType, Node, f32, i32
from engine.ops.einsum import EinsumSpec, Equation
from engine.passes.common.einsum_terms import EinsumNodes, Term
from engine.passes.fusion import FusionPass, dims_of
from engine.passes.pattern import Matcher, wrap_type
from engine.startup import dataclass

_UNKNOWN_LENGTH: Final = 64
"""The length assumed for an unknown dimension when the costs of orders are compared."""


class EinsumDecomposition(FusionPass):
    """Decomposes an Einsum of any equation into Transpose, Reshape, MatMul, Mul and ReduceSum.

    If there are several operands, the two whose product saves most elements are multiplied first. Sums of 8- and 16-bit
    integers are computed in i32, whose low bits are the same. A summed label with unknown lengths is assumed to have
    the same length in all operands; with known lengths, a length of 1 is broadcast, as in numpy. An Einsum whose
    operands are all constant, or contradict its equation, is left unchanged.
    """

    makes = frozenset({"MatMul", "Mul", "ReduceSum", "Reshape", "Transpose"})

    removes = frozenset({"Einsum"})

    def __init__(self) -> None:
        super().__init__()
        self.register_fusion(wrap_type("Einsum"), lambda m: _decomposed(m))


@dataclass(frozen=True, slots=True)
class _Layout:
    """The order of labels in C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n]."""

    a: Term
    b: Term
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]

    def cost(self, result: Sequence[str] | None) -> int:
        """The elements that are moved before and after the product."""
        c = (*self.batch, *self.m, *self.n)
        moved = [term for term, labels in self._operands() if term.labels != labels and not term.is_constant]
        lengths = _lengths([self.a, self.b])
        return sum(_size(term.labels, lengths) for term in moved) + (
            0 if result is None or tuple(label for label in result if label in c) == c else _size(c, lengths)
        )

    def _operands(self) -> tuple[tuple[Term, tuple[str, ...]], tuple[Term, tuple[str, ...]]]:
        return (self.a, (*self.batch, *self.m, *self.k)), (self.b, (*self.batch, *self.k, *self.n))


def _decomposed(m: Matcher) -> list[Node] | None:
    node = m.match_root
    values = [value for value in node.input_values if value is not None]
    shapes = [dims for value in values if (dims := dims_of(value)) is not None]
    if len(shapes) != len(values) or all(isinstance(value.node, Constant) for value in values):
        return None
    equation = EinsumSpec.of(node).labels
    if equation is None or not _fits(equation, shapes):
        return None
    steps, element_type = EinsumNodes(), values[0].element_type
    terms = [Term(value, labels) for value, labels in zip(values, equation.terms, strict=True)]
    if any(label not in equation.result for term in terms for label in term.labels):
        terms = [steps.converted(term, _summed_type(element_type)) for term in terms]
    terms = [steps.diagonal(steps.without(term, _repeated(term, terms))) for term in terms]
    terms = [_without_own_sums(steps, terms, number, equation.result) for number in range(len(terms))]
    while len(terms) > 1:
        i, j = _next_pair(terms, equation.result)
        kept = _kept(terms, (i, j), equation.result)
        terms[i] = _contracted(steps, terms[i], terms[j], kept, equation.result if len(terms) == 2 else None)
        del terms[j]
    last = steps.converted(steps.transposed(terms[0], equation.result), element_type)
    if not steps.made or steps.made[-1] is not last.value.node:
        steps.made.append(ops.Identity(last.value))
    return steps.made


def _fits(equation: Equation, shapes: Sequence[Sequence[Dimension]]) -> bool:
    """Whether a label may have one length in all its positions; between operands, 1 broadcasts."""
    known: dict[str, int] = {}
    for labels, dims in zip(equation.terms, shapes, strict=True):
        own: dict[str, int] = {}
        for label, dim in zip(labels, dims, strict=True):
            if dim.is_static and own.setdefault(label, dim.get_length()) != dim.get_length():
                return False
        for label, length in own.items():
            if length != 1 and known.setdefault(label, length) != length:
                return False
    return True


def _summed_type(element_type: ElementType) -> ElementType:
    """The accumulation type: MatMul and ReduceSum do not support 8- and 16-bit integers."""
    return i32 if element_type.is_integral and element_type.bits < i32.bits else element_type


def _repeated(term: Term, terms: Sequence[Term]) -> set[str]:
    """The labels that have length 1 here and may be longer in other operands."""

    def longer(term: Term) -> set[str]:
        return {label for label, dim in zip(term.labels, term.dims, strict=True) if dim != 1}

    return (set(term.labels) - longer(term)) & set().union(*map(longer, terms))


def _without_own_sums(steps: EinsumNodes, terms: Sequence[Term], number: int, result: Sequence[str]) -> Term:
    """A term summed over the labels that no other term has."""
    others = {label for place, term in enumerate(terms) if place != number for label in term.labels}
    own = [label for label in terms[number].labels if label not in result and label not in others]
    return steps.summed(terms[number], own)


def _next_pair(terms: Sequence[Term], result: Sequence[str]) -> tuple[int, int]:
    """The pair with the smallest product relative to its operands; ties are broken by the least work."""
    lengths = _lengths(terms)

    def growth(pair: tuple[int, int]) -> tuple[int, int]:
        kept, (a, b) = _kept(terms, pair, result), (terms[number].labels for number in pair)
        union = {*a, *b}
        size = _size([label for label in union if label in kept], lengths)
        return size - _size(a, lengths) - _size(b, lengths), _size([*union], lengths)

    return min(combinations(range(len(terms)), 2), key=growth)


def _kept(terms: Sequence[Term], pair: tuple[int, int], result: Sequence[str]) -> set[str]:
    """The labels that the product of a pair must not sum over."""
    return {*result, *(label for number, term in enumerate(terms) if number not in pair for label in term.labels)}


def _contracted(steps: EinsumNodes, a: Term, b: Term, kept: set[str], result: Sequence[str] | None) -> Term:
    """The product of two terms, summed over common labels that are not kept, with labels in the order `result`."""
    summed = [label for label in a.labels if label not in kept]
    if summed and set(a.labels) != set(b.labels):
        return _matrix_product(steps, min(_layouts(a, b, summed, result), key=lambda layout: layout.cost(result)))
    if summed:
        return _inner_product(steps, a, b, summed)
    union = (*a.labels, *(label for label in b.labels if label not in a.labels))
    labels = union if result is None else tuple(label for label in result if label in union)
    return Term(steps.add(ops.Mul(steps.spread(a, labels), steps.spread(b, labels))), labels)


def _inner_product(steps: EinsumNodes, a: Term, b: Term, summed: Sequence[str]) -> Term:
    """An inner product per batch element, as a MatMul, so that products are not rounded before the sum."""
    element_type = a.value.element_type
    labels = b.labels if a.is_constant else a.labels
    if element_type.is_real and element_type.bits < f32.bits:
        a, b = steps.converted(a, f32), steps.converted(b, f32)
    products = Term(steps.add(ops.Mul(steps.spread(a, labels), steps.spread(b, labels))), labels)
    return steps.converted(steps.summed(products, summed), element_type)


def _layouts(a: Term, b: Term, summed: Sequence[str], result: Sequence[str] | None) -> Iterator[_Layout]:
    """The orders in which each group of labels appears in an operand, or in the result."""
    wanted = () if result is None else tuple(result)
    for left, right in ((a, b), (b, a)):
        batch = [x for x in left.labels if x in right.labels and x not in summed]
        rows, columns = ([x for x in t.labels if x not in u.labels] for t, u in ((left, right), (right, left)))
        for orders in product(
            _orders(batch, wanted, left.labels, right.labels), _orders(rows, wanted, left.labels),
            _orders(columns, wanted, right.labels), _orders(summed, left.labels, right.labels),
        ):  # fmt: skip
            yield _Layout(left, right, *orders)


def _orders(labels: Sequence[str], *sources: Sequence[str]) -> list[tuple[str, ...]]:
    found = (tuple(label for label in source if label in labels) for source in sources)
    return list(dict.fromkeys(order for order in found if len(order) == len(labels)))


def _matrix_product(steps: EinsumNodes, layout: _Layout) -> Term:
    """The product as a MatMul. Several axes of a group are joined into one, except rows if there is no batch."""
    (a, a_labels), (b, b_labels) = layout._operands()
    a, b = steps.transposed(a, a_labels), steps.transposed(b, b_labels)
    batch, m, n, k = (len(group) for group in (layout.batch, layout.m, layout.n, layout.k))
    alone = [[axis] for axis in range(batch)]
    rows = [list(range(batch, batch + m))] if batch else [[axis] for axis in range(m)]
    columns = [list(range(batch + k, batch + k + n))] if batch or n else []
    x = steps.grouped(a.value, [*alone, *rows, list(range(batch + m, batch + m + k))])
    y = steps.grouped(b.value, [*alone, list(range(batch, batch + k)), *columns])
    c = steps.add(ops.MatMul(x, y))
    labels = (*layout.batch, *layout.m, *layout.n)
    if max(len(group) for group in (*rows, *columns, [0])) > 1:
        lengths = [(c, axis) for axis in range(batch)]
        lengths += [(a.value, axis) for axis in range(batch, batch + m)]
        lengths += [(b.value, axis) for axis in range(batch + k, batch + k + n)]
        return Term(steps.reshaped(c, [[length] for length in lengths]), labels)
    return Term(steps.squeezed(c, [batch + i for i, group in enumerate((*rows, *columns)) if not group]), labels)


def _lengths(terms: Sequence[Term]) -> dict[str, int]:
    """The length of each label."""
    found: dict[str, int] = {}
    for term in terms:
        for label, dim in zip(term.labels, term.dims, strict=True):
            if dim.is_static:
                found[label] = dim.get_length()
            else:
                found.setdefault(label, _UNKNOWN_LENGTH)
    return found


def _size(labels: Sequence[str], lengths: dict[str, int]) -> int:
    return math.prod(lengths[label] for label in labels)
