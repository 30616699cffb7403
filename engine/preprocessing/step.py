"""`Step`: the base of all steps, and the steps that process each element alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np

from engine import ops
from engine.errors import ModelError, PreprocessingError
from engine.ir import Constant, ElementType, f32
from engine.preprocessing.layout import checked_layout
from engine.preprocessing.tensor import Tensor
from engine.startup import dataclass

Numbers: TypeAlias = "float | Sequence[float]"


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One change of a tensor. Its fields are the arguments of the method that adds it.

    The constructor raises `PreprocessingError` for arguments that fit no tensor. `name` is the method's; `changes_size`
    says that the heights and widths before and after it differ.
    """

    name: ClassVar[str]
    changes_size: ClassVar[bool] = False

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """Add the operators of the step after `x`. Raises `PreprocessingError` if they do not fit."""

    def __str__(self) -> str:
        """The call that adds the step, as `engine compile --preprocess` takes it."""
        given = []
        for position, field in enumerate(fields(self)):
            value = getattr(self, field.name)
            if field.default is MISSING or (position == 0 and value != field.default):
                given.append(argument_text(value))
            elif value != field.default:
                given.append(f"{field.name}={argument_text(value)}")
        return f"{self.name}({', '.join(given)})"


def argument_text(value: Any) -> str:
    """An argument as text: names are not quoted."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(argument_text, value))}]"
    return str(value)


def element_type_of(value: Any) -> ElementType:
    """An element type by itself, its name (`u8`), or numpy's name or dtype. Raises `PreprocessingError`."""
    if isinstance(value, ElementType):
        found = value
    else:
        try:
            found = ElementType.parse(value) if isinstance(value, str) else ElementType.from_numpy(value)
        except ModelError:
            try:
                found = ElementType.from_numpy(value)
            except ModelError as e:
                raise PreprocessingError(f"expected an element type such as u8 or f16, got {value!r}") from e
    if not (found.is_real or found.is_integral) or found.is_packed or (found.is_real and found.bits == 8):
        raise PreprocessingError(f"expected an integer or floating-point type of 8 bits or more, got {found}")
    return found


def as_numbers(value: Any, what: str) -> float | tuple[float, ...]:
    """A finite number, or several. Raises `PreprocessingError`."""
    try:
        found = tuple(map(float, value)) if isinstance(value, (Iterable, np.ndarray)) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = ()
    is_finite = all(map(math.isfinite, found)) if isinstance(found, tuple) else math.isfinite(found)
    if found == () or not is_finite:
        raise PreprocessingError(f"expected a finite number for {what}, or one for each channel, got {value!r}")
    return found


def check_flag(what: str, value: object) -> None:
    """Raise `PreprocessingError` unless `value` is True or False: the text `false` would be true."""
    if not isinstance(value, bool):
        raise PreprocessingError(f"expected True or False for {what}, got {value!r}")


def per_channel(x: Tensor, value: float | tuple[float, ...]) -> Constant:
    """A constant of the tensor's type that broadcasts to it. Raises `PreprocessingError` if the channels differ."""
    if not isinstance(value, tuple):
        return _finite(value, x.element_type)
    axis, channels = x.axis("C"), x.length("C")
    if channels != len(value):
        known = "an unknown number of" if channels is None else channels
        raise PreprocessingError(f"got {len(value)} numbers for {known} channels of {x}")
    shape = [len(value)] + [1] * (len(x.layout) - 1 - axis)
    return _finite(value, x.element_type, shape)


@dataclass(frozen=True, slots=True)
class Mean(Step):
    """Subtracts a number, or one for each channel. Integers become f32."""

    name = "mean"
    values: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_numbers(self.values, "mean"))

    def apply(self, x: Tensor) -> Tensor:
        x = x.as_real()
        return x.with_value(ops.Sub(x.value, per_channel(x, self.values)))


@dataclass(frozen=True, slots=True)
class Scale(Step):
    """Divides by a number, or by one for each channel. Integers become f32."""

    name = "scale"
    values: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_numbers(self.values, "scale"))
        if 0.0 in (self.values if isinstance(self.values, tuple) else (self.values,)):
            raise PreprocessingError("divides by its numbers, so they cannot be 0")

    def apply(self, x: Tensor) -> Tensor:
        x = x.as_real()
        divisor = per_channel(x, self.values)
        if not np.all(divisor.data):
            raise PreprocessingError(f"divides by {argument_text(self.values)}, which is 0 in {x.element_type}")
        return x.with_value(ops.Div(x.value, divisor))


@dataclass(frozen=True, slots=True)
class Clamp(Step):
    """Replaces numbers below `low` and above `high` by these."""

    name = "clamp"
    low: float
    high: float

    def __post_init__(self) -> None:
        bounds = [as_numbers(bound, "a bound") for bound in (self.low, self.high)]
        if not all(isinstance(bound, float) for bound in bounds) or not self.low <= self.high:
            raise PreprocessingError(f"expected two numbers, the lower first, got {self.low!r} and {self.high!r}")

    def apply(self, x: Tensor) -> Tensor:
        bounds = [representable(bound, x.element_type) for bound in (self.low, self.high)]
        return x.with_value(ops.Clip(x.value, *bounds))


@dataclass(frozen=True, slots=True)
class ToType(Step):
    """Converts to another element type.

    To an integer type, numbers are rounded, halves to even, and those outside its range become its smallest or largest.
    """

    name = "to_type"
    element_type: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "element_type", element_type_of(self.element_type))

    def apply(self, x: Tensor) -> Tensor:
        target: ElementType = self.element_type
        if not target.is_integral or target is x.element_type or not (x.element_type.is_real or _is_int(x)):
            return x.in_type(target)
        limits = np.iinfo(target.numpy)
        if x.element_type.is_real:
            x = x if x.element_type.bits > f32.bits // 2 else x.in_type(f32)  # f16 does not reach the limits
            x = x.with_value(ops.Round(x.value))
            low, high = (_within(bound, x.element_type) for bound in (int(limits.min), int(limits.max)))
        else:
            own = np.iinfo(x.element_type.numpy)
            low, high = max(int(limits.min), int(own.min)), min(int(limits.max), int(own.max))
            if (low, high) == (int(own.min), int(own.max)):
                return x.in_type(target)
        dtype = x.element_type.numpy
        clipped = ops.Clip(x.value, Constant(np.array(low, dtype)), Constant(np.array(high, dtype)))
        return x.with_value(clipped).in_type(target)


@dataclass(frozen=True, slots=True)
class ToLayout(Step):
    """Brings the axes into another order. N is added as an axis of length 1, and dropped if it is one."""

    name = "to_layout"
    layout: str

    def __post_init__(self) -> None:
        checked_layout(self.layout)

    def apply(self, x: Tensor) -> Tensor:
        return x.in_layout(self.layout)


def representable(value: float, element_type: ElementType) -> Constant:
    """A scalar of an element type. Raises `PreprocessingError` if the type does not have it."""
    if element_type.is_integral:
        limits = np.iinfo(element_type.numpy)
        if not float(value).is_integer() or not limits.min <= value <= limits.max:
            raise PreprocessingError(f"{value:g} is not a number of {element_type}; convert the tensor with to_type")
    return _finite(value, element_type)


def _finite(value: Any, element_type: ElementType, shape: Sequence[int] = ()) -> Constant:
    """A constant of an element type. Raises `PreprocessingError` if it is infinite there, as 1e6 is in f16."""
    with np.errstate(over="ignore"):
        data = np.array(value).astype(element_type.numpy).reshape(shape)
    if element_type.is_real and not np.isfinite(data.astype(np.float64)).all():
        raise PreprocessingError(f"{argument_text(value)} is infinite in {element_type}; use to_type first")
    return Constant(data)


def _is_int(x: Tensor) -> bool:
    return x.element_type.is_integral


def _within(bound: int, element_type: ElementType) -> float:
    """The number of a floating-point type that is nearest to `bound` and not beyond it."""
    rounded = element_type.numpy.type(bound)
    return float(rounded if abs(int(rounded)) <= abs(bound) else np.nextafter(rounded, element_type.numpy.type(0)))
