"""`Tensor`: a value between two steps, with the layout and the colours that it has there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from engine import ops
from engine.errors import PreprocessingError
from engine.ir import Constant, ElementType, Node, Output, f32
from engine.preprocessing.layout import permutation
from engine.startup import dataclass

Length: TypeAlias = "int | Output"
"""The length of an axis: a number, or a value [1] i64 that the model computes."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value between two steps.

    Attributes:
        value: the value, a tensor of known rank; of colours in planes, the first plane.
        layout: its layout, or "" if it is unknown.
        colour: the order of its channels, such as "RGB", or "" if it is unknown.
        planes: the other planes, of colours whose planes are inputs of their own.
    """

    value: Output
    layout: str
    colour: str = ""
    planes: tuple[Output, ...] = ()

    @property
    def element_type(self) -> ElementType:
        """The element type of the current value."""
        return self.value.element_type

    def axis(self, letter: str) -> int:
        """The position of an axis. Raises `PreprocessingError` if there is none."""
        if not self.layout:
            raise PreprocessingError(f"needs axis {letter}, but the layout of {self.value.type} is unknown; give it")
        if letter not in self.layout:
            raise PreprocessingError(f"needs axis {letter}, got layout {self.layout}")
        return self.layout.index(letter)

    def length(self, letter: str) -> int | None:
        """The length of an axis; None if it is unknown. Raises `PreprocessingError` if the axis does not exist."""
        dim = self.value.shape[self.axis(letter)]
        return dim.get_length() if dim.is_static else None

    def computed(self, letter: str) -> Length:
        """The length of an axis as a number, or as a value that is computed for each inference."""
        length, axis = self.length(letter), self.axis(letter)
        return ops.Shape(self.value, start=axis, end=axis + 1).output(0) if length is None else length

    def with_value(self, value: Node | Output) -> Tensor:
        """A copy with another value, whose layout, colours and other facts are the same."""
        return replace(self, value=value.output(0) if isinstance(value, Node) else value)

    def in_type(self, element_type: ElementType) -> Tensor:
        """Cast, as ONNX defines it, to another element type."""
        if self.element_type is element_type:
            return self
        return self.with_value(ops.Cast(self.value, to=element_type.onnx))

    def as_real(self) -> Tensor:
        """Integers as f32, in which steps compute; floating-point types stay."""
        return self if self.element_type.is_real else self.in_type(f32)

    def in_layout(self, layout: str) -> Tensor:
        """The tensor in another layout: axes change their order; N may come as an axis of length 1, or leave as one.

        Raises `PreprocessingError` if that is impossible.
        """
        if self.layout == layout:
            return self
        if not self.layout:
            raise PreprocessingError(f"cannot become {layout}: the layout of {self.value.type} is unknown; give it")
        tensor = self
        if "N" in layout and "N" not in self.layout:
            added = ops.Unsqueeze(self.value, numbers(0))
            tensor = replace(self.with_value(added), layout=f"N{self.layout}")
        elif "N" in self.layout and "N" not in layout:
            if self.length("N") != 1:
                raise PreprocessingError(f"cannot drop N of {self}: its length is not known to be 1")
            dropped = ops.Squeeze(self.value, numbers(self.axis("N")))
            tensor = replace(self.with_value(dropped), layout=self.layout.replace("N", ""))
        perm = permutation(tensor.layout, layout)
        if perm == sorted(perm):
            return replace(tensor, layout=layout)
        return replace(tensor.with_value(ops.Transpose(tensor.value, perm=perm)), layout=layout)

    def __str__(self) -> str:
        words = (str(self.value.type), self.layout, self.colour)
        return " ".join(word for word in words if word)


def numbers(*values: int) -> Constant:
    """A constant vector of i64 with these elements."""
    return Constant(np.array(values, np.int64))


def vector(lengths: Sequence[Length]) -> Node:
    """Lengths as a tensor [n] i64: a constant if all of them are numbers."""
    if all(isinstance(length, int) for length in lengths):
        return numbers(*(length for length in lengths if isinstance(length, int)))
    return ops.Concat(*(numbers(length) if isinstance(length, int) else length for length in lengths), axis=0)


def difference(a: Length, b: Length) -> Length:
    """a - b, as a number if both are known, otherwise as a Sub."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return ops.Sub(_value(a), _value(b)).output(0)


def part(a: Length, numerator: int, denominator: int) -> Length:
    """a * numerator // denominator, as a number if `a` is known, otherwise as operators."""
    if isinstance(a, int):
        return a * numerator // denominator
    scaled = a if numerator == 1 else ops.Mul(a, numbers(numerator)).output(0)
    return ops.Div(scaled, numbers(denominator)).output(0)


def sliced(
    value: Output, axes: Sequence[int], starts: Sequence[Length], ends: Sequence[Length], step: int = 1
) -> Output:
    """The elements from `starts` to `ends`, exclusive, along `axes`."""
    steps = numbers(*[step] * len(axes))
    return ops.Slice(value, vector(starts), vector(ends), numbers(*axes), steps).output(0)


def _value(length: Length) -> Output:
    return numbers(length).output(0) if isinstance(length, int) else length
