"""`Variable`: a value that a request keeps from one inference to the next, such as the keys of past tokens."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import GraphError, ModelError
from engine.ir.element_type import ElementType, string
from engine.ir.shape import PartialShape
from engine.ir.types import TensorType, ValueType
from engine.startup import dataclass

Array = NDArray[Any]

_AXES: Final = ("axis", "batch_axis", "written_axis")
_FLAGS: Final = ("is_placed", "is_masked")
_MAX_ELEMENTS: Final = 2**31
"""The limit of an initial value in a file. Most files have none; it only refuses absurd numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A pair of an input and an output of a model: the value of the output after an inference is the value of the input
    in the next one.

    Attributes:
        name: unique among the model's variables.
        parameter: the name of the input, which reads the value.
        result: the name of the output, which gives the next value.
        initial: the value before the first inference, of the input's element type and rank. Where the input's
            length is not fixed and the initial value has length 1, the value is repeated to the length that other
            inputs give to the same symbol, such as the number of sequences.
        axis: the dimension along which each inference appends, such as the one of past tokens; None if the shape stays.
        bound: the greatest length along `axis`; None for no limit.
        batch_axis: the dimension of independent sequences; None if there is none.
        is_placed: whether the model computes the positions at which it writes, as GroupQueryAttention does from the
            numbers of tokens of each sequence, and so expects each sequence at the beginning of `axis`, or of a window;
            otherwise, new positions are those behind the value.
        is_masked: whether the model's mask says which positions of `axis` have tokens of a sequence, wherever they are,
            and their positions in the text count these; see `engine.passes.MaskedCaches`.
        written_axis: the dimension along which each inference writes new positions into a value of a fixed length, the
            length of `initial`, at places that other inputs or variables give; None if it does not.
    """

    name: str
    parameter: str
    result: str
    initial: Array
    axis: int | None = None
    bound: int | None = None
    batch_axis: int | None = None
    is_placed: bool = False
    written_axis: int | None = None
    is_masked: bool = False

    @property
    def is_growing(self) -> bool:
        """Whether inferences append to the value."""
        return self.axis is not None

    def check(self, read: ValueType, given: ValueType) -> None:
        """Raise `GraphError` unless the types of the input and the output, the initial value and the axes fit."""
        pair = f"variable `{self.name}` (input `{self.parameter}`: {read}, output `{self.result}`: {given})"
        if not isinstance(read, TensorType) or not isinstance(given, TensorType):
            raise GraphError(f"{pair}: only tensors can be variables")
        if read.element_type is not given.element_type or read.element_type is string:
            raise GraphError(f"{pair}: input and output must have the same element type, of numbers")
        if read.shape.rank.is_dynamic:
            raise GraphError(f"{pair}: the rank of the input must be known")
        rank = len(read.shape)
        for what, axis in zip(_AXES, (self.axis, self.batch_axis, self.written_axis), strict=True):
            if axis is not None and not 0 <= axis < rank:
                raise GraphError(f"{pair}: {what} is {axis}; expected 0 to {rank - 1}")
        if self.axis is not None and self.written_axis is not None:
            raise GraphError(f"{pair}: it has axis and written_axis; a value either grows or has a fixed length")
        if self.batch_axis is not None and self.batch_axis in (self.axis, self.written_axis):
            which = "axis" if self.written_axis is None else "written_axis"
            raise GraphError(f"{pair}: {which} and batch_axis are both {self.batch_axis}")
        if self.bound is not None and (self.axis is None or self.bound < 0):
            raise GraphError(f"{pair}: bound is {self.bound}; expected a length of 0 or more along a growing axis")
        if given.shape.rank.is_static:
            self._check_next(pair, read.shape, given.shape)
        self._check_initial(pair, read)

    def _check_next(self, pair: str, read: PartialShape, given: PartialShape) -> None:
        if len(given) != len(read):
            raise GraphError(f"{pair}: input and output have different ranks")
        for index, (old, new) in enumerate(zip(read, given, strict=True)):
            if index == self.axis:
                if old.is_static:
                    raise GraphError(f"{pair}: dimension {index} grows, but the input has a fixed length there")
            elif not old.compatible(new):
                raise GraphError(f"{pair}: dimension {index} is {old} before an inference and {new} after it")

    def _check_initial(self, pair: str, read: TensorType) -> None:
        initial = self.initial
        if not isinstance(initial, np.ndarray) or initial.dtype != read.element_type.numpy:
            kind = initial.dtype if isinstance(initial, np.ndarray) else type(initial).__name__
            raise GraphError(f"{pair}: the initial value is {kind}; expected an array of {read.element_type.numpy}")
        if initial.ndim != len(read.shape) or not all(
            dim.accepts(length) or (length == 1 and dim.is_dynamic and index != self.axis)
            for index, (dim, length) in enumerate(zip(read.shape, initial.shape, strict=True))
        ):
            raise GraphError(f"{pair}: the initial value has shape {initial.shape}, which the input does not take")
        if self.axis is not None and self.bound is not None and initial.shape[self.axis] > self.bound:
            raise GraphError(f"{pair}: the initial value is longer than the bound {self.bound}")

    def to_json(self) -> dict[str, Any]:
        """The variable as values for JSON, which `from_json` reads; fields that are None are left out."""
        value: dict[str, Any] = {
            "name": self.name,
            "input": self.parameter,
            "output": self.result,
            "initial": _array_to_json(self.initial),
        }
        for key in (*_AXES, "bound"):
            if getattr(self, key) is not None:
                value[key] = getattr(self, key)
        for key in _FLAGS:
            if getattr(self, key):
                value[key] = True
        return value

    @classmethod
    def from_json(cls, value: Any) -> Variable:
        """Read the result of `to_json`. Raises `ModelError` for anything else."""
        try:
            names = [value[key] for key in ("name", "input", "output")]
            numbers = [value.get(key) for key in ("axis", "bound", "batch_axis", "written_axis")]
            if not all(isinstance(name, str) for name in names):
                raise TypeError("name, input and output must be strings")
            if not all(number is None or type(number) is int for number in numbers):
                raise TypeError("axis, bound, batch_axis and written_axis must be integers")
            is_placed, is_masked = (value.get(key, False) for key in _FLAGS)
            if type(is_placed) is not bool or type(is_masked) is not bool:
                raise TypeError("is_placed and is_masked must be true or false")
            name, parameter, result = names
            axis, bound, batch_axis, written_axis = numbers
            initial = _array_from_json(value["initial"])
            return cls(name, parameter, result, initial, axis, bound, batch_axis, is_placed, written_axis, is_masked)
        except (AttributeError, KeyError, TypeError, ValueError, ModelError) as e:
            raise ModelError(f"the description of a variable is malformed: {e!r}") from e


def _array_to_json(array: Array) -> dict[str, Any]:
    described: dict[str, Any] = {"type": ElementType.from_numpy(array.dtype).name, "shape": list(array.shape)}
    raw = np.ascontiguousarray(array).tobytes()
    if any(raw):
        import base64

        described["data"] = base64.b64encode(raw).decode()
    return described


def _array_from_json(value: Any) -> Array:
    element, shape, data = ElementType.parse(value["type"]), value["shape"], value.get("data")
    if element is string or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"an initial value cannot be {element}{shape}")
    if (size := math.prod(shape)) > _MAX_ELEMENTS:
        raise ValueError(f"an initial value of {size} elements is too large")
    if data is None:
        return np.zeros(shape, element.numpy)
    import base64
    import binascii

    try:
        raw = base64.b64decode(data, validate=True)
    except binascii.Error as e:
        raise ValueError(f"the data of an initial value is damaged: {e}") from e
    return np.frombuffer(raw, element.numpy).reshape(shape).copy()
