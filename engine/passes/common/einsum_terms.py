"""Building blocks of `EinsumDecomposition`: values with labelled axes, and operations on them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import numpy as np

from engine import ops
from engine.ir import Constant, Dimension, ElementType, Node, Output
from engine.limits import OverBudgetError
from engine.passes.common.transpose_merge import transposed
from engine.passes.folding import bytes_allowed, constant_fold
from engine.passes.fusion import derived_constant, dims_of, reshape_target, same_length
from engine.startup import dataclass

Axis: TypeAlias = "tuple[Output, int]"
"""An axis of a value, for its length."""

_TO_THE_END: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Term:
    """A value, and a label for each of its axes."""

    value: Output
    labels: tuple[str, ...]

    @property
    def dims(self) -> tuple[Dimension, ...]:
        """The lengths of the term's axes, in their order."""
        dims = dims_of(self.value)
        assert dims is not None
        return dims

    @property
    def is_constant(self) -> bool:
        """Whether the value is constant, so that rearranging it costs nothing at run time."""
        return isinstance(self.value.node, Constant)


class EinsumNodes:
    """The created nodes, inputs first. Nodes with only constant inputs are folded."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: list[Node] = []

    def add(self, node: Node) -> Output:
        """The value of a new node."""
        folded = constant_fold(node, bytes_allowed(node))
        if folded is not None:
            return folded[0]
        self.made.append(node)
        return node.output(0)

    def converted(self, term: Term, element_type: ElementType) -> Term:
        """The term with a Cast to `element_type`, or as it is if it has that type."""
        if term.value.element_type is element_type:
            return term
        return Term(self.add(ops.Cast(term.value, to=element_type)), term.labels)

    def transposed(self, term: Term, labels: Sequence[str]) -> Term:
        """The term with its axes in the order of `labels`, which may contain other labels too."""
        wanted = tuple(label for label in labels if label in term.labels)
        return Term(self._permuted(term.value, [term.labels.index(label) for label in wanted]), wanted)

    def _permuted(self, value: Output, order: Sequence[int]) -> Output:
        moved = transposed(value, order)
        if moved is not value and not isinstance(moved.node, Constant):
            self.made.append(moved.node)
        return moved

    def spread(self, term: Term, labels: Sequence[str]) -> Output:
        """The term with an axis for each of `labels`, starting at the first label that it has."""
        ordered = self.transposed(term, labels)
        first = min(map(labels.index, ordered.labels), default=len(labels))
        missing = [axis - first for axis, label in enumerate(labels) if axis > first and label not in term.labels]
        return self.unsqueezed(ordered.value, missing)

    def without(self, term: Term, labels: Collection[str]) -> Term:
        """The term without the axes of these labels, which have length 1."""
        axes = [axis for axis, label in enumerate(term.labels) if label in labels]
        return Term(self.squeezed(term.value, axes), tuple(label for label in term.labels if label not in labels))

    def summed(self, term: Term, labels: Sequence[str]) -> Term:
        """The sum over the axes of these labels."""
        if not labels:
            return term
        axes = Constant(np.array([term.labels.index(label) for label in labels], np.int64))
        kept = tuple(label for label in term.labels if label not in labels)
        return Term(self.add(ops.ReduceSum(term.value, axes, keepdims=0)), kept)

    def diagonal(self, term: Term) -> Term:
        """The term with each label once: for axes with the same label, the elements with equal indices.

        For two axes of length n, these are every (n + 1)-th of the n * n elements.
        """
        twice = next((label for label in term.labels if term.labels.count(label) > 1), None)
        if twice is None:
            return term
        first = term.labels.index(twice)
        second = term.labels.index(twice, first + 1)
        order = [axis for axis in range(len(term.labels)) if axis != second]
        order.insert(first + 1, second)
        value = self._permuted(term.value, order)
        groups: list[list[Axis]] = [[(value, axis)] for axis in range(len(order)) if axis != first + 1]
        groups[first] *= 2
        one, dim, other = Constant(np.array([1], np.int64)), term.dims[first], term.dims[second]
        step = (
            Constant(np.array([dim.get_length() + 1], np.int64)).output(0)
            if dim.is_static
            else self.add(ops.Add(self.add(ops.Shape(value, start=first, end=first + 1)), one))
        )
        start, end, axis = (Constant(np.array([number], np.int64)) for number in (0, _TO_THE_END, first))
        square = self.reshaped(value, groups, is_sure=same_length(dim, other))
        line = self.add(ops.Slice(square, start, end, axis, step))
        return self.diagonal(Term(line, tuple(term.labels[axis] for axis in order if axis != second)))

    def unsqueezed(self, value: Output, axes: Sequence[int]) -> Output:
        """The value with new axes of length 1 at positions `axes` of the result."""
        return self.add(ops.Unsqueeze(value, Constant(np.array(axes, np.int64)))) if axes else value

    def squeezed(self, value: Output, axes: Sequence[int]) -> Output:
        """The value without these axes of length 1."""
        return self.add(ops.Squeeze(value, Constant(np.array(axes, np.int64)))) if axes else value

    def grouped(self, value: Output, groups: Sequence[Sequence[int]]) -> Output:
        """The value with consecutive axes joined; an empty group is a new axis of length 1."""
        if all(len(group) < 2 for group in groups):
            return self.unsqueezed(value, [place for place, group in enumerate(groups) if not group])
        return self.reshaped(value, [[(value, axis) for axis in group] for group in groups])

    def reshaped(self, value: Output, groups: Sequence[Sequence[Axis]], *, is_sure: bool = True) -> Output:
        """The value with one axis per group, whose length is the product of the lengths of the group's axes.

        Unless `is_sure`, the value may have a different number of elements, which fails at run time.
        """
        source = dims_of(value)
        dims = [_joined(group) for group in groups]
        assert source is not None
        if isinstance(value.node, Constant):
            shape = [dim.get_length() for dim in dims]
            with suppress(OverBudgetError):  # otherwise, it is reshaped in each inference
                return derived_constant([value.node], shape, lambda data: data.reshape(shape)).output(0)
        if all(dim.is_static for dim in dims):
            lengths = [dim.get_length() for dim in dims]
            return self._reshape(value, Constant(np.array(lengths, np.int64)).output(0), has_zero=0 in lengths)
        target = reshape_target(dims, source) if is_sure else None
        if target is not None:
            return self._reshape(value, Constant(np.array(target, np.int64)).output(0), has_zero=False)
        pieces = [self._length(group) for group in groups]
        return self._reshape(value, self.add(ops.Concat(*pieces, axis=0)), has_zero=True)

    def _reshape(self, value: Output, target: Output, *, has_zero: bool) -> Output:
        # If a length may be zero, 0 must not mean "copy the length".
        return self.add(ops.Reshape(value, target, allowzero=1) if has_zero else ops.Reshape(value, target))

    def _length(self, group: Sequence[Axis]) -> Output:
        """The product of the lengths of some axes, as a vector of one element."""
        dims = [_dim(axis) for axis in group]
        known = math.prod(dim.get_length() for dim in dims if dim.is_static)
        length = (
            None
            if known == 1 and any(dim.is_dynamic for dim in dims)
            else Constant(np.array([known], np.int64)).output(0)
        )
        for (value, axis), dim in zip(group, dims, strict=True):
            if dim.is_dynamic:
                piece = self.add(ops.Shape(value, start=axis, end=axis + 1))
                length = piece if length is None else self.add(ops.Mul(length, piece))
        assert length is not None
        return length


def _dim(axis: Axis) -> Dimension:
    dims = dims_of(axis[0])
    assert dims is not None
    return dims[axis[1]]


def _joined(group: Sequence[Axis]) -> Dimension:
    if len(group) == 1:
        return _dim(group[0])
    dims = [_dim(axis) for axis in group]
    return Dimension(math.prod(dim.get_length() for dim in dims)) if all(dim.is_static for dim in dims) else Dimension()
