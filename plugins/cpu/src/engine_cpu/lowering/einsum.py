"""Einsum of two operands that is a strided, batched matrix product without data movement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from engine.errors import UnsupportedError
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.ops.einsum import EinsumSpec
from engine.startup import dataclass
from engine_cpu.lowering.checks import check_f32
from engine_cpu.lowering.product import MAX_BATCH_DIMS, BatchDim, Product, merged
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.lowering.strided import Strided
from engine_cpu.segment import SegmentBuilder


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of labels of an equation in C[m, n] = sum over k of A[m, k] * B[k, n]; an absent one is "".

    Labels that always follow each other are joined into a string of several letters. `batch` has all others.
    `is_swapped`: A is the second operand.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    c: tuple[str, ...]
    m: str
    n: str
    k: str
    batch: tuple[str, ...]
    is_swapped: bool


@lowers("Einsum", spec=EinsumSpec)
class EinsumLowering(OpLowering[EinsumSpec]):
    """Equations of two operands that sum over the last labels of one of them."""

    def check(self, spec: EinsumSpec) -> Refusal | None:
        return first_refusal(check_f32(spec.node), _check_equation(spec))

    def lower(self, spec: EinsumSpec, b: SegmentBuilder) -> None:
        node = spec.node
        roles = find_roles(spec)
        assert roles is not None
        left, right = (node.input_value(index) for index in ((1, 0) if roles.is_swapped else (0, 1)))
        a, lengths = _strides(roles.a, b.shape(left))
        strides, others = _strides(roles.b, b.shape(right))
        for label in roles.a:
            if others.get(label, lengths[label]) != lengths[label]:
                raise UnsupportedError(
                    f"{node}: label {label} has lengths {lengths[label]} and {others[label]}; expected equal lengths"
                )
        lengths |= others
        c, _ = _strides(roles.c, b.shape(node.output(0)))
        batch = [BatchDim(lengths[x], a.get(x, 0), strides.get(x, 0), c[x]) for x in roles.batch]
        transposed = roles.b[-1] == roles.k != ""
        product = Product(
            m=lengths.get(roles.m, 1),
            n=lengths.get(roles.n, 1),
            k=lengths.get(roles.k, 1),
            batch=merged(batch),
            a_row=a.get(roles.m, lengths.get(roles.k, 1)),
            b_row=strides.get(roles.n if transposed else roles.k, 1),
            c_row=c.get(roles.m, lengths.get(roles.n, 1)),
            transposed=transposed,
        )
        operands = b.input(left), b.output(node.output(0))
        product.add_step(node, b, right, operands, (), {}, is_dense=False)


def _check_equation(spec: EinsumSpec) -> Refusal | None:
    if spec.node.num_inputs != 2:
        return Refusal(RefusalCause.ATTRIBUTE, f"the equation has {spec.node.num_inputs} operands; expected 2")
    roles = find_roles(spec)
    if roles is None:
        return Refusal(
            RefusalCause.ATTRIBUTE,
            f"the equation {spec.equation!r} is not a matrix product without transposition in memory",
        )
    if len(roles.batch) > MAX_BATCH_DIMS:
        return Refusal(
            RefusalCause.ATTRIBUTE,
            f"the equation has {len(roles.batch)} batch dimensions; expected at most {MAX_BATCH_DIMS}",
        )
    assert spec.labels is not None
    known: dict[str, int] = {}
    for labels, value in zip(spec.labels.terms, spec.node.input_values, strict=True):
        assert value is not None
        for label, dim in zip(labels, value.shape.dims, strict=True):
            if dim.is_static and known.setdefault(label, dim.get_length()) != dim.get_length():
                return Refusal(
                    RefusalCause.SHAPE, f"label {label} has lengths {known[label]} and {dim}; expected equal lengths"
                )
    return None


def find_roles(spec: EinsumSpec) -> Roles | None:
    """The roles of the labels if the equation is a matrix product; otherwise None."""
    labels = spec.labels
    if labels is None or not spec.is_explicit or spec.has_ellipsis or len(labels.terms) != 2:
        return None
    terms = [*labels.terms, labels.result]
    if any(len(set(term)) != len(term) for term in terms) or any(not term for term in labels.terms):
        return None
    first_term, second, target = _joined(terms)
    for is_swapped in (False, True):
        a, b = (second, first_term) if is_swapped else (first_term, second)
        roles = _roles_of(a, b, target, is_swapped)
        if roles is not None:
            return roles
    return None


def _roles_of(a: Sequence[str], b: Sequence[str], c: Sequence[str], is_swapped: bool) -> Roles | None:
    summed = [x for x in a if x in b and x not in c]
    if len(summed) > 1 or any(x not in c and x not in summed for x in (*a, *b)):
        return None
    k = summed[0] if summed else ""
    if k and a[-1] != k:
        return None
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    n = c[-1] if c and c[-1] in columns else ""
    if columns and not n:  # the elements of a row of C must be adjacent
        return None
    if (k or n) and b[-1] not in (k, n):
        return None
    m = next((x for x in reversed(rows) if x != n), "")
    batch = tuple(x for x in c if x not in (m, n))
    return Roles(tuple(a), tuple(b), tuple(c), m, n, k, batch, is_swapped)


def _joined(terms: Sequence[Sequence[str]]) -> list[list[str]]:
    """The terms as lists of labels; labels that always follow each other are joined."""
    parts = [list(term) for term in terms]
    is_found = True
    while is_found:
        is_found = False
        for pair in {(x, y) for part in parts for x, y in pairwise(part)}:
            if all(_follow(part, *pair) for part in parts):
                parts = [_with_pair(part, *pair) for part in parts]
                is_found = True
                break
    return parts


def _follow(part: Sequence[str], x: str, y: str) -> bool:
    if x not in part and y not in part:
        return True
    return x in part and y in part and part.index(y) == part.index(x) + 1


def _with_pair(part: list[str], x: str, y: str) -> list[str]:
    if x not in part:
        return part
    at = part.index(x)
    return [*part[:at], x + y, *part[at + 2 :]]


def _strides(labels: Sequence[str], shape: Sequence[int]) -> tuple[dict[str, int], dict[str, int]]:
    """The stride in elements along each label, and the lengths."""
    lengths, at = {}, 0
    for label in labels:
        lengths[label] = math.prod(shape[at : at + len(label)])
        at += len(label)
    strides = Strided.row_major([lengths[label] for label in labels]).strides
    return dict(zip(labels, strides, strict=True)), lengths
