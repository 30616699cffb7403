"""Einsum: its spec, its type rule, and the parser of equations."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine.errors import TypeInferenceError
from engine.ir import Dimension, Node, PartialShape, TensorType, ValueType
from engine.ops.axes import Axes, AxisMapping, maps_axes
from engine.ops.cost import lengths_of, operations, size_of
from engine.ops.precision import widened
from engine.ops.registry import infers
from engine.ops.rules import broadcast_shapes, fail, tensor_type
from engine.ops.spec import OperatorSpec, evaluates_with_spec, rank_of, refuse, specifies
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

EQUATION_FORM: Final = "comma-separated terms of letters and '...', optionally with '->' and an output term"

_TERM: Final = r"[A-Za-z\s]*(?:\.\.\.)?[A-Za-z\s]*"
_EQUATION: Final = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Equation:
    """A label for each axis of each operand and of the result.

    Labels are the equation's letters; for the axes of '...', they are numbers, "0" for the last axis.
    """

    terms: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]


declare("Einsum", product=(0, 1), inflates=True, vectorized=True)


@specifies("Einsum")
@dataclass(frozen=True, slots=True, kw_only=True)
class EinsumSpec(OperatorSpec):
    """An equation and its labels for the node's operands.

    Attributes:
        equation: the text in the model.
        labels: the labels of each operand's axes and of the result's; None while a rank is unknown, and if the
            operands do not fit the equation.
    """

    equation: str
    labels: Equation | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        text = given["equation"]
        if not isinstance(text, str) or not is_equation(text):
            refuse(node, "equation", text, EQUATION_FORM)
        ranks = [rank_of(node, index) for index in range(node.num_inputs)]
        known = [rank for rank in ranks if rank is not None]
        given["labels"] = parse_equation(text, known) if len(known) == len(ranks) else None

    @property
    def is_explicit(self) -> bool:
        """Whether the equation contains the output term."""
        return "->" in self.equation

    @property
    def has_ellipsis(self) -> bool:
        """Whether the equation has '...', which stands for any number of axes."""
        return "..." in self.equation


def is_equation(text: str) -> bool:
    """Whether `text` has the form of an equation (ONNX Einsum-28). ONNX's own inference hangs on some others."""
    return _EQUATION.fullmatch(text) is not None


def parse_equation(text: str, ranks: Sequence[int]) -> Equation | None:
    """The labels of an equation for operands of these ranks; None if these do not fit.

    '...' matches the same number of axes in all terms.
    """
    written, arrow, result = "".join(text.split()).partition("->")
    terms = written.split(",")
    if not is_equation(text) or len(terms) != len(ranks):
        return None
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if any(count < 0 or (count and "..." not in term) for term, count in zip(terms, hidden, strict=True)):
        return None
    if len({count for term, count in zip(terms, hidden, strict=True) if "..." in term}) > 1:
        return None
    labels = [_labels(term, count) for term, count in zip(terms, hidden, strict=True)]
    if not arrow:
        counts = Counter(written)
        result = "..." + "".join(sorted(letter for letter in counts if letter.isalpha() and counts[letter] == 1))
    target = _labels(result, max(hidden))
    known = {label for term in labels for label in term}
    is_lost = any(label.isdigit() and label not in target for label in known)
    if is_lost or len(set(target)) != len(target) or not known.issuperset(target):
        return None
    return Equation(tuple(labels), target)


def _labels(term: str, hidden: int) -> tuple[str, ...]:
    before, dots, after = term.partition("...")
    return (*before, *(str(place) for place in reversed(range(hidden if dots else 0))), *after)


@infers("Einsum")
def _infer_einsum(node: Node) -> Sequence[ValueType] | None:
    types = [tensor_type(node, index) for index in range(node.num_inputs)]
    equation = EinsumSpec.of(node).labels
    if equation is None:
        if all(each.shape.rank.is_static for each in types):
            ranks = ", ".join(str(len(each.shape)) for each in types)
            fail(node, f"the equation does not fit operands of ranks {ranks}")
        return None
    lengths = _label_lengths(node, equation, [each.shape.dims for each in types])
    return (TensorType(types[0].element_type, PartialShape([lengths[label] for label in equation.result])),)


def _label_lengths(node: Node, equation: Equation, shapes: Sequence[Sequence[Dimension]]) -> dict[str, Dimension]:
    """The length of each label: unique within an operand, and equal in all operands in which it is not 1."""
    lengths: dict[str, Dimension] = {}
    for labels, dims in zip(equation.terms, shapes, strict=True):
        own: dict[str, Dimension] = {}
        for label, dim in zip(labels, dims, strict=True):
            known = own.setdefault(label, dim)
            if not known.compatible(dim):
                fail(node, f"label {label} has lengths {known} and {dim} in one operand; expected one length")
            own[label] = known.merge(dim)
        for label, dim in own.items():
            known = lengths.get(label, dim)
            try:
                (lengths[label],) = broadcast_shapes(node, [PartialShape([known]), PartialShape([dim])]).dims
            except TypeInferenceError as e:
                fail(node, f"label {label} has lengths {known} and {dim}; expected equal lengths or 1", e)
    return lengths


@evaluates_with_spec("Einsum")
def einsum(spec: EinsumSpec, *operands: Array) -> Array:
    """The sum of products (ONNX Einsum-28); `onnx.reference` takes an empty equation for a missing one."""
    result: Array = np.asarray(np.einsum(spec.equation or "->", *map(widened, operands), optimize=True))
    return result.astype(operands[0].dtype, copy=False)


@operations("Einsum")
def _operations(node: Node) -> float:
    """One multiplication and addition for each combination of values of the labels."""
    labels = EinsumSpec.of(node).labels
    if labels is None:
        return 2.0 * math.prod(size_of(value) for value in node.input_values if value is not None)
    lengths: dict[str, int] = {}
    for term, value in zip(labels.terms, node.input_values, strict=True):
        for label, length in zip(term, lengths_of(value), strict=False):
            lengths[label] = max(length, lengths.get(label, 1))
    return 2.0 * math.prod(lengths.values())


@maps_axes("Einsum")
def _axes(node: Node) -> Axes:
    """The labels of the equation, unless one is repeated in a term: a diagonal."""
    labels = EinsumSpec.of(node).labels
    if labels is None or any(len(set(term)) != len(term) for term in (*labels.terms, labels.result)):
        return None
    return AxisMapping(tuple(map(tuple, labels.terms)), (tuple(labels.result),))
