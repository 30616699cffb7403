"""Fits one family of plans to recorded plans for several lengths: its numbers are polynomials of the lengths.

The plans must have the same steps over the same buffers. Each size and attribute is then a constant, or the polynomial
that its values at the first samples determine, and it must have the right values at the others. The first samples are
adjacent lengths at the beginning of the range; the others are its corners, and one inside. That proves the polynomial
for the kinds of numbers that lowerings compute: a bound (`min`, `max`) is convex or concave, and such a function that
has the slope of its first step on average is affine; a rounded quotient has a first step of 0 or 1, and another
average. In a product of several of them, one that is too small at a corner would have to be balanced by one that is too
large, and again inside. A value that goes up and down in steps, such as a remainder, is not such a number:
`engine.lowering.lengths` finds the operators that compute it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engine.native import Number, PlanFamily, Varying, VaryingAttribute
from engine.startup import dataclass
from engine_cpu.recording import BufferCall, StepCall

if TYPE_CHECKING:
    from fractions import Fraction

Array = np.ndarray[Any, np.dtype[Any]]
Lengths = tuple[int, ...]

_COMPARED_BYTES: Final = 64 << 20
"""The most bytes of a constant that are compared; larger ones must be the same array."""


class Misfit(Exception):
    """Plans for several lengths do not have one form; the message names the first difference, `node` its node.

    `is_number`: a number is not a polynomial of the degree that was tried. `ends`: the lengths, by index, whose
        greatest
    value has a plan that differs from the plans for the least lengths, which have one form; empty if these also differ.
    """

    def __init__(self, reason: str, node: str = "", *, is_number: bool = False, ends: tuple[int, ...] = ()) -> None:
        super().__init__(f"{node}: {reason}" if node else reason)
        self.reason, self.node = reason, node
        self.is_number, self.ends = is_number, ends


def monomials(count: int, degree: int) -> list[tuple[int, ...]]:
    """The products of lengths in a polynomial of a degree, from 1 to 3, each as the indices of its lengths.

    Products of different lengths are always included; the greatest power is a square.
    """
    products: list[tuple[int, ...]] = [(index,) for index in range(count)]
    for size in (2, 3):
        for chosen in combinations_with_replacement(range(count), size):
            if max(map(chosen.count, chosen)) <= (2 if size <= degree else 1):
                products.append(chosen)
    return products


def sample_lengths(least: Lengths, degree: int) -> list[Lengths]:
    """The lengths from `least` on whose plans determine polynomials of a degree: one for each of its terms.

    Each is as far from `least`, in each length, as that length's power in the term.
    """
    steps = [(), *monomials(len(least), degree)]
    return [tuple(low + step.count(index) for index, low in enumerate(least)) for step in steps]


def check_lengths(least: Lengths, most: Lengths) -> list[Lengths]:
    """The lengths whose plans check polynomials: the corners of the range, the last of which is `most`, and one inside.

    The one inside is at 5/13 of the way, where numbers that agree at the ends by chance are likely to differ.
    """
    middle = tuple(low + (high - low) * 5 // 13 for low, high in zip(least, most, strict=True))
    corners = product(*zip(least, most, strict=True))
    return [middle, *(corner for corner in corners if corner != least)]


class Fit:
    """Numbers as polynomials of lengths, from their values at samples."""

    def __init__(self, samples: Sequence[Lengths], degree: int) -> None:
        self._samples = samples
        self._terms = monomials(len(samples[0]), degree)
        size = 1 + len(self._terms)
        self._inverse = _inverse(
            [[1, *(math.prod(each[index] for index in term) for term in self._terms)] for each in samples[:size]]
        )
        self._known: dict[tuple[int, ...], Number] = {}

    def number(self, values: Sequence[int], what: str, node: str = "") -> Number:
        """The number that has these values. Raises `Misfit` naming `what` if no polynomial with integers has them."""
        key = tuple(values)
        if all(value == key[0] for value in key):
            return key[0]
        if key not in self._known:
            self._known[key] = self._polynomial(key, what, node)
        return self._known[key]

    def _polynomial(self, values: tuple[int, ...], what: str, node: str) -> Varying:
        found = [sum(a * b for a, b in zip(row, values, strict=False)) for row in self._inverse]
        if all(each.denominator == 1 for each in found):
            constant, *factors = (int(each) for each in found)
            made = Varying(constant, tuple(each for each in zip(self._terms, factors, strict=True) if each[1]))
            if all(made.at(each) == value for each, value in zip(self._samples, values, strict=True)):
                return made
        listed = ", ".join(f"{value} at {list(each)}" for value, each in zip(values, self._samples, strict=True))
        raise Misfit(f"{what} is {listed}, which is not a polynomial of the lengths", node, is_number=True)


def _inverse(matrix: Sequence[Sequence[int]]) -> list[list[Fraction]]:
    """The inverse of a small regular matrix, exactly."""
    from fractions import Fraction  # which loads `decimal`

    size = len(matrix)
    rows = [[Fraction(x) for x in row] + [Fraction(int(i == j)) for j in range(size)] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(i for i in range(column, size) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [x / rows[column][column] for x in rows[column]]
        for i in range(size):
            if i != column and rows[i][column]:
                rows[i] = [x - rows[i][column] * y for x, y in zip(rows[i], rows[column], strict=True)]
    return [row[size:] for row in rows]


@dataclass(slots=True)
class _Builder:
    """Adds calls to a family; `ids` has its numbers of the recorded buffers."""

    family: PlanFamily
    fit: Fit
    ids: list[int] = field(default_factory=list)
    origins: list[int | None] = field(default_factory=list)
    """For each step of the family, the number of the recorded step; None for the copy of a constant."""
    is_trial: bool = False
    _steps: int = 0

    def add(self, calls: Sequence[BufferCall | StepCall]) -> None:
        """Add a call from the same call of all recordings."""
        first = calls[0]
        if isinstance(first, StepCall):
            steps = [each for each in calls if isinstance(each, StepCall)]
            self._add_step(steps if len(steps) == len(calls) else _differ(first.name))
        else:
            buffers = [each for each in calls if isinstance(each, BufferCall)]
            self._add_buffer(buffers if len(buffers) == len(calls) else _differ())

    def _add_buffer(self, calls: Sequence[BufferCall]) -> None:
        first = calls[0]
        if any((each.kind, each.of, each.alignment) != (first.kind, first.of, first.alignment) for each in calls):
            _differ()
        nbytes = self.fit.number([each.nbytes for each in calls], f"the size of a buffer ({first.kind})")
        if first.kind == "constant":
            self.ids.append(self._add_constant([each.array for each in calls if each.array is not None], nbytes))
        elif first.kind == "view":
            offset = self.fit.number([each.offset for each in calls], "the offset of a part of a buffer")
            self.ids.append(self.family.add_view(self.ids[first.of], offset, nbytes))
        else:
            self.ids.append(getattr(self.family, f"add_{first.kind}")(nbytes, first.alignment))

    def _add_constant(self, arrays: Sequence[Array], nbytes: Number) -> int:
        """The array that all recordings read; or the longest, whose dimensions begin, or end, with the others'
        dimensions; or the rows of a table among which theirs are.
        """
        longest = max(arrays, key=lambda each: each.nbytes)
        others = [each for each in arrays if not _is_same(each, longest)]
        if self.is_trial and any(all(like(longest, each) for each in others) for like in (_overlap, _overlap_at_end)):
            # No sample is the longest in all dimensions, so the family is not used.
            return self.family.add_constant(longest, longest.nbytes)
        does_begin = all(_begins(longest, each) for each in others)
        if does_begin and _is_flat(arrays):
            return self.family.add_constant(longest, nbytes)
        does_end = not does_begin and all(_ends(longest, each) for each in others)
        if not (does_begin or does_end) or longest.itemsize not in (1, 2, 4, 8):
            if (rows := _rows_of_table(arrays)) is not None:
                offset = self.fit.number(rows[1], "the first row of a table")
                return self.family.add_view(self.family.add_constant(rows[0], rows[0].nbytes), offset, nbytes)
            raise Misfit(f"a constant of {longest.nbytes} bytes differs between lengths")
        shape = [self.fit.number(lengths, "a length") for lengths in zip(*(each.shape for each in arrays), strict=True)]
        strides = [stride // longest.itemsize for stride in longest.strides]
        source, target = self.family.add_constant(longest, longest.nbytes), self.family.add_buffer(nbytes)
        if does_end:
            offsets = [_offset_at_end(longest, each) for each in arrays]
            offset = self.fit.number(offsets, "the beginning of the end of a constant")
            left = self.fit.number([longest.nbytes - each for each in offsets], "the end of a constant")
            source = self.family.add_view(source, offset, left)
        attributes: dict[str, VaryingAttribute] = {
            "element_bytes": longest.itemsize,
            "shape": shape,
            "source_strides": strides,
            "destination_strides": self._dense(arrays),
        }
        self.family.add_step("strided_copy", [source], [target], attributes, "constant")
        self.origins.append(None)
        return target

    def _dense(self, arrays: Sequence[Array]) -> list[Number]:
        strides = zip(*([stride // each.itemsize for stride in each.strides] for each in arrays), strict=True)
        return [self.fit.number(each, "the distance of elements of a constant") for each in strides]

    def fitted(self, calls: Sequence[StepCall]) -> dict[str, VaryingAttribute]:
        """The attributes of a step. Raises `Misfit` if its calls do not have one form."""
        first = calls[0]
        if all(each is first for each in calls):
            return dict(first.numbers)
        for each in calls:
            if each.kernel != first.kernel:
                _differ(first.name, f"{first.kernel} at one length, {each.kernel} at another")
            if (each.inputs, each.outputs) != (first.inputs, first.outputs):
                _differ(first.name)
            if each.numbers.keys() != first.numbers.keys():
                _differ(first.name, f"the attributes of {first.kernel}")
        return {
            key: self._attribute([each.numbers[key] for each in calls], f"attribute {key} of {first.kernel}", first)
            for key in first.numbers
        }

    def _add_step(self, calls: Sequence[StepCall]) -> None:
        first, attributes = calls[0], self.fitted(calls)
        inputs, outputs = ([self.ids[each] for each in ids] for ids in (first.inputs, first.outputs))
        self.family.add_step(first.kernel, inputs, outputs, attributes, first.name)
        self.origins.append(self._steps)
        self._steps += 1

    def _attribute(self, values: Sequence[Any], what: str, step: StepCall) -> VaryingAttribute:
        first = values[0]
        if all(value == first for value in values):
            return first  # type: ignore[no-any-return]
        if all(_is_integer(value) for value in values):
            return self.fit.number(values, what, step.name)
        if all(isinstance(value, (list, tuple)) and len(value) == len(first) for value in values):
            columns = list(zip(*values, strict=True))
            if all(_is_integer(value) for column in columns for value in column):
                return [self.fit.number(column, what, step.name) for column in columns]
        raise Misfit(f"{what} is not an integer, and differs between lengths", step.name)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _differ(node: str = "", what: str = "the steps or their buffers") -> Any:
    raise Misfit(f"{what} differ between lengths", node)


def _is_same(array: Array, other: Array) -> bool:
    return array is other or (array.ctypes.data == other.ctypes.data and array.nbytes == other.nbytes)


def _overlap(first: Array, second: Array) -> bool:
    """Whether two arrays have the same elements at the beginning of each dimension, up to the shorter length."""
    if first.ndim != second.ndim:
        return False
    common = tuple(slice(min(lengths)) for lengths in zip(first.shape, second.shape, strict=True))
    return _begins(first[common], np.ascontiguousarray(second[common]))


def _begins(longest: Array, other: Array) -> bool:
    """Whether `other` is the beginning of each dimension of an array, up to rounding.

    A function of equal numbers may differ in the last bits, because numpy computes the rest of a vector by other code.
    """
    if other.nbytes > _COMPARED_BYTES or other.dtype != longest.dtype or other.ndim != longest.ndim:
        return False
    if any(length > most for length, most in zip(other.shape, longest.shape, strict=True)):
        return False
    first = np.ascontiguousarray(longest[tuple(slice(length) for length in other.shape)])
    if first.tobytes() == other.tobytes():
        return True
    if first.dtype.kind != "f":
        return False
    with np.errstate(invalid="ignore"):  # the difference of infinities is NaN, and compares as different
        is_near = np.abs(first - other) <= 4 * np.finfo(first.dtype).eps * np.abs(other)
    return bool((is_near | (first == other)).all())


def _ends(longest: Array, other: Array) -> bool:
    """Whether `other` is the end of each dimension of an array, up to rounding.

    So are the biases of attention scores by the distance from a key to the last query.
    """
    if other.ndim != longest.ndim or any(
        length > most for length, most in zip(other.shape, longest.shape, strict=True)
    ):
        return False
    return _begins(longest[tuple(slice(-length, None) if length else slice(0) for length in other.shape)], other)


def _overlap_at_end(first: Array, second: Array) -> bool:
    """Whether two arrays have the same elements at the end of each dimension, up to the shorter length."""
    if first.ndim != second.ndim:
        return False
    common = tuple(
        slice(-min(lengths), None) if min(lengths) else slice(0)
        for lengths in zip(first.shape, second.shape, strict=True)
    )
    return _begins(first[common], np.ascontiguousarray(second[common]))


def _offset_at_end(longest: Array, other: Array) -> int:
    """Where in memory the end of each dimension of `longest` begins that has the lengths of `other`, in bytes."""
    steps = zip(longest.shape, other.shape, longest.strides, strict=True)
    return sum((most - length) * stride for most, length, stride in steps)


def _rows_of_table(arrays: Sequence[Array]) -> tuple[Array, list[int]] | None:
    """The memory in which all arrays lie, and where each begins there, in bytes; None if it is not that of one array.

    So do the rows of a table of positions that a model slices.
    """
    tables = [_table(each) for each in arrays]
    first = tables[0]
    if first is None or any(each is None or not _is_same(each, first) for each in tables):
        return None
    begins = [each.ctypes.data for each in arrays]
    low, high = min(begins), max(begin + each.nbytes for begin, each in zip(begins, arrays, strict=True))
    start = low - first.ctypes.data
    return first.reshape(-1).view(np.uint8)[start : start + high - low], [begin - low for begin in begins]


def _table(array: Array) -> Array | None:
    """The array whose memory a contiguous one views; None if there is none, or if it is not contiguous."""
    table = array
    while isinstance(table.base, np.ndarray):
        table = table.base
    return table if table is not array and table.flags.c_contiguous and array.flags.c_contiguous else None


def _is_flat(arrays: Sequence[Array]) -> bool:
    """Whether the elements of shorter arrays are the first ones in memory of longer ones, if they are equal.

    Only the first dimension that is longer than 1 may differ.
    """
    shapes = [each.shape for each in arrays]
    if len({len(shape) for shape in shapes}) > 1:
        return False
    differing = [axis for axis, lengths in enumerate(zip(*shapes, strict=True)) if len(set(lengths)) > 1]
    return len(differing) < 2 and all(all(n == 1 for n in shape[: differing[0]]) for shape in shapes if differing)


def fit_family(
    recordings: Sequence[Sequence[BufferCall | StepCall]], fit: Fit, most: Lengths, isa: str, *, is_trial: bool = False
) -> tuple[PlanFamily, list[int | None]]:
    """The family of the recorded plans, and for each of its steps the number of the recorded one; None for a copy.

    With `is_trial`, the greatest lengths are not among the recorded ones, and the family cannot be used.

    Raises `Misfit` if the plans do not have one form, and `PlanError`.
    """
    counts = {len(each) for each in recordings}
    builder = _Builder(PlanFamily(most, isa=isa), fit, is_trial=is_trial)
    for index, calls in enumerate(zip(*recordings, strict=False)):
        try:
            builder.add(calls)
        except Misfit as e:
            raise (e if e.node else _named(e, index, builder, recordings)) from e
    if len(counts) > 1:
        _differ()
    return builder.family, builder.origins


def _named(why: Misfit, index: int, builder: _Builder, recordings: Sequence[Sequence[BufferCall | StepCall]]) -> Misfit:
    """A misfit of the buffer of call `index` with the node that causes it, if a step shows one.

    That is the first step that itself differs, or otherwise the first that uses the buffer.
    """
    for calls in zip(*recordings, strict=False):
        steps = [each for each in calls if isinstance(each, StepCall)]
        if len(steps) == len(calls):
            try:
                builder.fitted(steps)
            except Misfit as e:
                return e
    return Misfit(why.reason, _user(recordings[0], index), is_number=why.is_number)


def _user(calls: Sequence[BufferCall | StepCall], index: int) -> str:
    """The node of the first step that uses the buffer of a call, or a part of it; empty if none does."""
    number, used = -1, set[int]()
    for place, call in enumerate(calls):
        if isinstance(call, BufferCall):
            number += 1
            if place == index or call.of in used:
                used.add(number)
        elif not used.isdisjoint((*call.inputs, *call.outputs)):
            return call.name
    return ""
