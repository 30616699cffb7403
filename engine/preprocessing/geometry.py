"""Steps that change the heights and widths of images: resize, crop, pad, letter-box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from engine import ops
from engine.errors import PreprocessingError
from engine.ir import Constant, Output
from engine.preprocessing.step import Step, as_numbers, check_flag, representable
from engine.preprocessing.tensor import Length, Tensor, difference, numbers, part, sliced, vector
from engine.startup import dataclass

MAX_LENGTH: Final = (1 << 31) - 1
"""The greatest length and number of a step: no tensor is as long."""
MODES: Final = ("nearest", "linear", "cubic")
COORDINATES: Final = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")
NEAREST: Final = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
ASPECTS: Final = ("stretch", "not_larger", "not_smaller")
PADDING: Final = ("constant", "edge", "reflect", "wrap")


@dataclass(frozen=True, slots=True)
class Resize(Step):
    """Resizes height and width, as ONNX's Resize does: see `InputSteps.resize`. Integers become f32 unless nearest."""

    name = "resize"
    changes_size = True
    size: Any = None
    mode: str = "linear"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    antialias: bool = False
    cubic_coefficient: float = -0.75
    aspect: str = "stretch"

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", as_size(self.size))
        check_choice("mode", self.mode, MODES)
        check_choice("coordinates", self.coordinates, COORDINATES)
        check_choice("nearest", self.nearest, NEAREST)
        check_choice("aspect", self.aspect, ASPECTS)
        check_flag("antialias", self.antialias)
        if not isinstance(as_numbers(self.cubic_coefficient, "cubic_coefficient"), float):
            raise PreprocessingError(f"expected one number for cubic_coefficient, got {self.cubic_coefficient!r}")
        if self.antialias and self.mode == "nearest":
            raise PreprocessingError("antialias needs mode linear or cubic, got nearest")

    def apply(self, x: Tensor) -> Tensor:
        if self.size is None:
            raise PreprocessingError("the height and width to resize to are unknown; give them: resize((224, 224))")
        axes = _axes(x)
        x = x if self.mode == "nearest" else x.as_real()
        # Resize counts the sizes in the order of its axes.
        attributes: dict[str, Any] = {"axes": axes, "mode": self.mode, "antialias": int(self.antialias)}
        attributes |= {"coordinate_transformation_mode": self.coordinates, "nearest_mode": self.nearest}
        attributes |= {"cubic_coeff_a": self.cubic_coefficient, "keep_aspect_ratio_policy": self.aspect}
        done = x.with_value(ops.Resize(x.value, None, None, numbers(*self.size), **attributes))
        if 0 in (done.length("H"), done.length("W")):
            raise PreprocessingError(f"{x} is too long or too wide to keep its ratio in {list(self.size)}: got {done}")
        return done


@dataclass(frozen=True, slots=True)
class Crop(Step):
    """Keeps the rows and columns from `begin` to `end`, exclusive; negative numbers count from the end."""

    name = "crop"
    changes_size = True
    begin: Any
    end: Any

    def __post_init__(self) -> None:
        for field in ("begin", "end"):
            object.__setattr__(self, field, _pair(getattr(self, field), field))

    def apply(self, x: Tensor) -> Tensor:
        for letter, begin, end in zip("HW", self.begin, self.end, strict=True):
            length = x.length(letter)
            if length is not None:
                begin, end = (n + length if n < 0 else n for n in (begin, end))
                if not 0 <= begin < end <= length:
                    raise PreprocessingError(f"keeps {begin}..{end} of {letter}, got {x}, whose {letter} is {length}")
            elif end == 0 or ((begin < 0) == (end < 0) and begin >= end):
                raise PreprocessingError(f"keeps nothing of {letter}: begin {begin} is not before end {end}")
        size = [b - a if (a < 0) == (b < 0) else None for a, b in zip(self.begin, self.end, strict=True)]
        return _of_size(x, sliced(x.value, _axes(x), self.begin, self.end), size)


@dataclass(frozen=True, slots=True)
class CentreCrop(Step):
    """Keeps the middle of an image that is at least as large; of an odd rest, the smaller half goes from the front."""

    name = "centre_crop"
    changes_size = True
    size: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_size(self.size))

    def apply(self, x: Tensor) -> Tensor:
        starts: list[Length] = []
        ends: list[Length] = []
        for letter, kept in zip("HW", self.size, strict=True):
            length = x.length(letter)
            if length is not None and length < kept:
                raise PreprocessingError(f"keeps {kept} of {letter}, got {x}, whose {letter} is {length}")
            rest = difference(x.computed(letter), kept)
            starts.append(part(rest, 1, 2))
            ends.append(
                kept + starts[-1] if isinstance(starts[-1], int) else ops.Add(starts[-1], numbers(kept)).output(0)
            )
        return _of_size(x, sliced(x.value, _axes(x), starts, ends), self.size)


@dataclass(frozen=True, slots=True)
class Pad(Step):
    """Adds rows and columns before (`begin`) and after (`end`): of `value`, or as numpy's modes of the same names."""

    name = "pad"
    changes_size = True
    begin: Any
    end: Any
    mode: str = "constant"
    value: float = 0.0

    def __post_init__(self) -> None:
        for field in ("begin", "end"):
            pair = _pair(getattr(self, field), field)
            if min(pair) < 0:
                raise PreprocessingError(f"expected numbers of 0 or more for {field}, got {list(pair)}; crop removes")
            object.__setattr__(self, field, pair)
        check_choice("mode", self.mode, PADDING)
        _check_number(self.value, "value")

    def apply(self, x: Tensor) -> Tensor:
        for letter, begin, end in zip("HW", self.begin, self.end, strict=True):
            length = x.length(letter)
            most = None if length is None or self.mode != "reflect" else length - 1
            if most is not None and max(begin, end) > most:
                raise PreprocessingError(
                    f"reflects {max(begin, end)} of {letter}, but {x} has at most {most} to reflect"
                )
        return x.with_value(_padded(x, self.begin, self.end, self.mode, self.value))


@dataclass(frozen=True, slots=True)
class LetterBox(Step):
    """Resizes as far as both lengths fit, keeping their ratio, and fills the rest: see `InputSteps.letter_box`."""

    name = "letter_box"
    changes_size = True
    size: Any = None
    value: float = 114.0
    mode: str = "linear"
    position: str = "centre"
    antialias: bool = False

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", as_size(self.size))
        check_choice("mode", self.mode, MODES)
        check_choice("position", self.position, ("centre", "start"))
        check_flag("antialias", self.antialias)
        _check_number(self.value, "value")

    def apply(self, x: Tensor) -> Tensor:
        x = Resize(self.size, self.mode, antialias=self.antialias, aspect="not_larger").apply(x)
        begins: list[Length] = []
        ends: list[Length] = []
        for letter, size in zip("HW", self.size, strict=True):
            rest = difference(size, x.computed(letter))
            if not isinstance(rest, int):
                # An image so long that none of it is left is not filled up, and has too few elements for its type.
                rest = ops.Min(rest, numbers(size - 1)).output(0)
            begins.append(part(rest, 1, 2) if self.position == "centre" else 0)
            ends.append(difference(rest, begins[-1]))
        return _of_size(x, _padded(x, begins, ends, "constant", self.value), self.size)


def as_size(value: Any) -> tuple[int, int]:
    """A height and a width, or one number for both. Raises `PreprocessingError`."""
    pair = (value, value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else value
    height, width = _pair(pair, "size")
    if min(height, width) < 1:
        raise PreprocessingError(f"expected a height and a width of 1 or more, got {value!r}")
    return height, width


def check_choice(what: str, value: object, allowed: Sequence[str]) -> None:
    """Raise `PreprocessingError` unless `value` is one of the allowed ones."""
    if value not in allowed:
        raise PreprocessingError(f"expected {what} of {', '.join(allowed)}, got {value!r}")


def _pair(value: Any, what: str) -> tuple[int, int]:
    try:
        height, width = value
        if any(isinstance(n, (bool, str)) or int(n) != n or abs(n) > MAX_LENGTH for n in (height, width)):
            raise TypeError
        return int(height), int(width)
    except (TypeError, ValueError, OverflowError):
        raise PreprocessingError(
            f"expected two whole numbers, of height and width, for {what}, got {value!r}"
        ) from None


def _check_number(value: object, what: str) -> None:
    if not isinstance(as_numbers(value, what), float):
        raise PreprocessingError(f"expected one number for {what}, got {value!r}")


def _axes(x: Tensor) -> list[int]:
    return [x.axis("H"), x.axis("W")]


def _padded(x: Tensor, begins: Sequence[Length], ends: Sequence[Length], mode: str, value: float) -> Output:
    filling: Constant | None = representable(value, x.element_type) if mode == "constant" else None
    return ops.Pad(x.value, vector([*begins, *ends]), filling, numbers(*_axes(x)), mode=mode).output(0)


def _of_size(x: Tensor, value: Output, size: Sequence[int | None]) -> Tensor:
    """`value` with this height and width, None if unknown, which may not follow from the types of its operators.

    If a crop keeps less of an image, it has fewer elements, so the Reshape refuses it.
    """
    done = x.with_value(value)
    lengths = [(letter, length) for letter, length in zip("HW", size, strict=True) if length is not None]
    if all(done.length(letter) == length for letter, length in lengths):
        return done
    target = [0] * len(x.layout)
    for letter, length in lengths:
        target[x.axis(letter)] = length
    return x.with_value(ops.Reshape(value, numbers(*target)))
