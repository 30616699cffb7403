"""Shapes that may be partly unknown: `Dimension` and `PartialShape`."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from engine.errors import ModelError

_LONGEST: Final = (1 << 63) - 1


class Dimension:
    """One dimension: a known length, or an interval of lengths with an optional symbol.

    `Dimension(3)` is static; `Dimension(1, 8)` is in 1..8; `Dimension()` is any length;
    `Dimension(symbol="N")` is any length, but the same for every `N` in one model.
    """

    __slots__ = ("max", "min", "symbol")

    min: int
    max: int | None
    symbol: str | None

    def __init__(self, low: int | None = None, high: int | None = None, symbol: str | None = None) -> None:
        if low is not None and high is None:
            high = low
        self.min = 0 if low is None else _length(low)
        self.max = high if high is None else _length(high)
        if symbol is not None and not isinstance(symbol, str):
            raise ModelError(f"a dimension's symbol must be a str; got {symbol!r}")
        self.symbol = symbol or None
        if self.min < 0 or (self.max is not None and self.max < self.min):
            raise ModelError(f"dimension {low}..{high} is empty; lengths are non-negative and min <= max")

    @classmethod
    def at_least(cls, low: int, symbol: str | None = None) -> Dimension:
        """A dimension of `low` or more."""
        dimension = cls(low, symbol=symbol)
        dimension.max = None
        return dimension

    @property
    def is_static(self) -> bool:
        """Whether exactly one length is possible."""
        return self.min == self.max

    @property
    def is_dynamic(self) -> bool:
        """Whether more than one length is possible."""
        return self.min != self.max

    def get_length(self) -> int:
        """The length. Raises `ModelError` if the dimension is dynamic."""
        if self.min != self.max:
            raise ModelError(f"dimension {self} is dynamic and has no single length; check is_static first")
        return self.min

    def __index__(self) -> int:
        """The length, so that numpy takes a static shape: `int(dim)`, `np.zeros(shape)`.

        Raises `ModelError` if the dimension is dynamic.
        """
        return self.get_length()

    __int__ = __index__

    def accepts(self, length: int) -> bool:
        """Whether a tensor may have this length."""
        return self.min <= length and (self.max is None or length <= self.max)

    def compatible(self, other: Dimension) -> bool:
        """Whether some length lies in both intervals."""
        low = self.min if self.min > other.min else other.min
        return (self.max is None or low <= self.max) and (other.max is None or low <= other.max)

    def merge(self, other: Dimension) -> Dimension:
        """The lengths that fit both; keeps the first symbol. Raises `ModelError` if none does."""
        if not self.compatible(other):
            raise ModelError(f"dimensions {self} and {other} have no common length")
        if self.is_static:
            return self
        if other.is_static:
            return other
        merged = Dimension(symbol=self.symbol or other.symbol)
        merged.min = max(self.min, other.min)
        bounds = [bound for bound in (self.max, other.max) if bound is not None]
        merged.max = min(bounds) if bounds else None
        return merged

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dimension):
            # A static dimension drops its symbol, so that it is printed, hashed and merged as a plain length.
            return (
                self.min == other.min
                and self.max == other.max
                and (self.min == self.max or self.symbol == other.symbol)
            )
        if isinstance(other, int):
            return self.min == self.max == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.min) if self.min == self.max else hash((self.min, self.max, self.symbol))

    def __str__(self) -> str:
        if self.is_static:
            return str(self.min)
        bounds = "" if self.min == 0 and self.max is None else f"{self.min}..{'' if self.max is None else self.max}"
        if self.symbol is not None:
            return f"{self.symbol}:{bounds}" if bounds else self.symbol
        return bounds or "?"

    def __repr__(self) -> str:
        return f"Dimension({self})"


def _length(value: object) -> int:
    if type(value) is int:
        if value > _LONGEST:
            raise ModelError(f"a dimension is {value}; lengths are at most 2^63 - 1, the largest integer of 64 bits")
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return _length(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise ModelError(
            f"a dimension must be an int, a symbol, a Dimension, or None for any length; got {value!r}"
        ) from None


DimensionLike: TypeAlias = int | str | Dimension | None

_ANY: Final = Dimension()


class _Static(dict[int, Dimension]):
    """The dimensions of the lengths that most models have, each made once."""

    most: Final = 1024

    def __missing__(self, length: int) -> Dimension:
        return self.setdefault(length, Dimension(length))


_STATIC: Final = _Static()
_BOUNDED: Final = re.compile(r"(?:(?P<symbol>[^:\s]+):)?(?P<low>\d{1,19})\.\.(?P<high>\d{0,19})")
_MAX_DIGITS: Final = 19  # of a 64-bit length; Python refuses to parse thousands of digits


def as_dimension(value: DimensionLike) -> Dimension:
    """`value` as a `Dimension`: an int (-1 is any), a symbol, text such as `1..8`, or None for any length."""
    if type(value) is int and 0 <= value <= _STATIC.most:
        return _STATIC[value]
    if isinstance(value, Dimension):
        return value
    if value is None:
        return _ANY
    if isinstance(value, str):
        return _parse_dimension(value)
    value = _length(value)
    if 0 <= value <= _STATIC.most:
        return _STATIC[value]
    return _ANY if value == -1 else Dimension(value)


def _parse_dimension(text: str) -> Dimension:
    if text in ("", "?"):
        return _ANY
    if text.isdecimal() and len(text) <= _MAX_DIGITS:
        return as_dimension(int(text))
    bounded = _BOUNDED.fullmatch(text)
    if bounded is None:
        return Dimension(symbol=text)
    low = int(bounded["low"])
    if not bounded["high"]:
        return Dimension.at_least(low, bounded["symbol"])
    return Dimension(low, int(bounded["high"]), bounded["symbol"])


class PartialShape:
    """A shape whose rank or dimensions may be unknown; immutable and hashable.

    `PartialShape([1, "N", None, Dimension(1, 8)])` has rank 4; `PartialShape.dynamic()` has unknown rank.
    """

    __slots__ = ("_dims", "_hash", "_static")

    _dims: tuple[Dimension, ...] | None
    _static: tuple[int, ...] | None

    def __init__(self, dims: Iterable[DimensionLike] | None) -> None:
        self._hash = 0
        if dims is None:
            self._dims = self._static = None
            return
        try:
            if isinstance(dims, str):  # its letters would become symbols
                raise TypeError
            self._dims = tuple([as_dimension(dim) for dim in dims])
        except TypeError:
            raise ModelError(
                f"a shape must be a list of dimensions, or None for an unknown rank; got {dims!r}"
            ) from None
        lengths = [dim.min for dim in self._dims if dim.min == dim.max]
        self._static = tuple(lengths) if len(lengths) == len(self._dims) else None

    @staticmethod
    def dynamic(rank: int | None = None) -> PartialShape:
        """A shape of unknown rank, or of `rank` dimensions of any length."""
        return _DYNAMIC if rank is None else PartialShape([None] * rank)

    @property
    def is_static(self) -> bool:
        """Whether the rank and every length are known."""
        return self._static is not None

    @property
    def is_dynamic(self) -> bool:
        """Whether the rank or any dimension is unknown."""
        return self._static is None

    @property
    def rank(self) -> Dimension:
        """The number of dimensions, as a `Dimension`, which is dynamic if the rank is unknown."""
        dims = self._dims
        return _ANY if dims is None else _STATIC[len(dims)] if len(dims) <= _STATIC.most else Dimension(len(dims))

    @property
    def dims(self) -> tuple[Dimension, ...]:
        """All dimensions. Raises `ModelError` if the rank is unknown."""
        if self._dims is None:
            raise ModelError("shape [...] has unknown rank; check shape.rank.is_static first")
        return self._dims

    def get_shape(self) -> tuple[int, ...]:
        """The lengths of all dimensions. Raises `ModelError` if any is unknown."""
        if self._static is None:
            raise ModelError(f"shape {self} is dynamic; check is_static first, or read shape.rank and shape[i]")
        return self._static

    def size(self) -> int:
        """The number of elements. Raises `ModelError` if dynamic."""
        count = 1
        for length in self.get_shape():
            count *= length
        return count

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of `shape` has this partial shape; equal symbols must have equal lengths."""
        if self._static is not None:
            return self._static == shape
        if self._dims is None:
            return True
        if len(self._dims) != len(shape):
            return False
        seen: dict[str, int] = {}
        for dim, length in zip(self._dims, shape, strict=True):
            if not dim.accepts(length):
                return False
            if dim.symbol is not None and seen.setdefault(dim.symbol, length) != length:
                return False
        return True

    def compatible(self, other: PartialShape) -> bool:
        """Whether some static shape fits both."""
        if self._dims is None or other._dims is None:
            return True
        if len(self._dims) != len(other._dims):
            return False
        return all(a.compatible(b) for a, b in zip(self._dims, other._dims, strict=True))

    def merge(self, other: PartialShape) -> PartialShape:
        """The shapes that fit both. Raises `ModelError` if none does."""
        if self._dims is None or self == other:
            return other
        if other._dims is None:
            return self
        if len(self._dims) != len(other._dims):
            raise ModelError(f"shapes {self} and {other} have different ranks")
        return PartialShape([a.merge(b) for a, b in zip(self._dims, other._dims, strict=True)])

    def __getitem__(self, index: int) -> Dimension:
        dims = self.dims
        if not -len(dims) <= index < len(dims):
            raise ModelError(
                f"dimension {index} of shape {self} does not exist; expected {-len(dims)}..{len(dims) - 1}"
            )
        return dims[index]

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self.dims)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, PartialShape):
            if self._static is not None or other._static is not None:
                return self._static == other._static
            return self._dims == other._dims
        if isinstance(other, (tuple, list)):
            try:
                return self == PartialShape(other)
            except ModelError:  # it lists no dimensions
                return False
        return NotImplemented

    def __hash__(self) -> int:
        if not self._hash:
            # Static shapes equal tuples of their lengths, so the hashes must be equal too.
            self._hash = hash(self._static if self._static is not None else self._dims)
        return self._hash

    def __str__(self) -> str:
        return "[...]" if self._dims is None else f"[{','.join(map(str, self._dims))}]"

    def __repr__(self) -> str:
        return f"PartialShape({self})"


_DYNAMIC: Final = PartialShape(None)

ShapeLike: TypeAlias = PartialShape | Iterable[DimensionLike] | None


def as_shape(value: ShapeLike) -> PartialShape:
    """`value` as a `PartialShape`; None is a shape of unknown rank."""
    return value if isinstance(value, PartialShape) else PartialShape(value)
