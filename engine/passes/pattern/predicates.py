"""Predicates: conditions on a matched value, combined with `&`, `|` and `~`, that can explain why they failed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from engine.errors import ModelError, PassError
from engine.ir import Constant, ElementType, Output, TensorType
from engine.ops import attribute, find_op

Symbols: TypeAlias = "dict[str, int | str]"


class Predicate:
    """A named condition on an `Output`.

    Args:
        check: gets the value and the symbols bound so far in this match (which it may extend).
        name: the condition's text in explanations, such as `consumers_count(1)`.
        actual: describes the actual value, for explanations.
        uses_symbols: False if `check` ignores the symbols, which reduces the matcher's search.
        attributes: names of the attributes that it reads; `wrap_type` refuses those that no operator has.
    """

    __slots__ = ("_actual", "attributes", "check", "name", "uses_symbols")

    check: Callable[[Output, Symbols], bool]
    name: str
    uses_symbols: bool
    attributes: frozenset[str]

    def __init__(
        self,
        check: Callable[[Output, Symbols], bool],
        name: str,
        actual: Callable[[Output], str] | None = None,
        *,
        uses_symbols: bool = True,
        attributes: Iterable[str] = (),
    ) -> None:
        self.check = check
        self.name = name
        self.uses_symbols = uses_symbols
        self.attributes = frozenset(attributes)
        self._actual = actual

    def __call__(self, value: Output, symbols: Symbols | None = None) -> bool:
        """Whether the condition holds for `value`."""
        return self.check(value, {} if symbols is None else symbols)

    def __and__(self, other: PredicateLike) -> Predicate:
        return _Both(self, as_predicate(other))

    def __or__(self, other: PredicateLike) -> Predicate:
        return _Either(self, as_predicate(other))

    def __invert__(self) -> Predicate:
        return _Not(self)

    def why(self, value: Output, symbols: Symbols) -> str:
        """Why the condition does not hold for `value`, as text."""
        if self._actual is None:
            return f"{self.name} does not hold"
        return f"{self.name} does not hold: {self._actual(value)}"


class _Both(Predicate):
    """Both; the first part that fails explains why it does not hold."""

    __slots__ = ("_left", "_right")

    def __init__(self, left: Predicate, right: Predicate) -> None:
        super().__init__(
            lambda v, s: left.check(v, s) and right.check(v, s),
            f"({left.name} & {right.name})",
            uses_symbols=left.uses_symbols or right.uses_symbols,
            attributes=left.attributes | right.attributes,
        )
        self._left, self._right = left, right

    def why(self, value: Output, symbols: Symbols) -> str:
        trial = dict(symbols)
        if not self._left.check(value, trial):
            return self._left.why(value, symbols)
        return self._right.why(value, trial)


class _Either(Predicate):
    """Either condition; symbols bound by a failing part are discarded."""

    __slots__ = ("_left", "_right")

    def __init__(self, left: Predicate, right: Predicate) -> None:
        super().__init__(
            lambda v, s: _tried(left, v, s) or _tried(right, v, s),
            f"({left.name} | {right.name})",
            uses_symbols=left.uses_symbols or right.uses_symbols,
            attributes=left.attributes | right.attributes,
        )
        self._left, self._right = left, right

    def why(self, value: Output, symbols: Symbols) -> str:
        return f"{self._left.why(value, symbols)}, and {self._right.why(value, symbols)}"


class _Not(Predicate):
    """The negation; it binds no symbols."""

    __slots__ = ()

    def __init__(self, inner: Predicate) -> None:
        super().__init__(
            lambda v, s: not inner.check(v, dict(s)),
            f"~{inner.name}",
            inner._actual,
            uses_symbols=inner.uses_symbols,
            attributes=inner.attributes,
        )


def _tried(predicate: Predicate, value: Output, symbols: Symbols) -> bool:
    if not predicate.uses_symbols:
        return predicate.check(value, symbols)
    trial = dict(symbols)
    if not predicate.check(value, trial):
        return False
    symbols.update(trial)
    return True


PredicateLike: TypeAlias = "Predicate | Callable[[Output], bool]"


def as_predicate(value: PredicateLike) -> Predicate:
    """`value` as a `Predicate`; a plain function of an `Output` becomes one under its own name."""
    if isinstance(value, Predicate):
        return value
    if not callable(value):
        raise PassError(f"a predicate is a function of an Output, got {type(value).__name__}: {value!r}")
    return Predicate(lambda v, _: bool(value(v)), _function_name(value), uses_symbols=False)


def _function_name(function: Callable[..., Any]) -> str:
    name = str(getattr(function, "__name__", repr(function)))
    code = getattr(function, "__code__", None)
    if name != "<lambda>" or code is None:
        return name
    return f"lambda at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _plain(
    check: Callable[[Output], bool], name: str, actual: Callable[[Output], str], attributes: Iterable[str] = ()
) -> Predicate:
    """A built-in predicate that ignores symbols."""
    return Predicate(lambda v, _: check(v), name, actual, uses_symbols=False, attributes=attributes)


def _its_type(value: Output) -> str:
    return f"its type is {value.type}"


def consumers_count(count: int) -> Predicate:
    """Exactly `count` input ports read the value."""
    return Predicate(
        lambda v, _: v.num_consumers == count,
        f"consumers_count({count})",
        lambda v: f"it has {v.num_consumers} ({', '.join(str(t.node) for t in v.target_inputs) or 'none'})",
        uses_symbols=False,
    )


def has_static_shape() -> Predicate:
    """Every dimension of the tensor is known."""
    return _plain(lambda v: type(v.type) is TensorType and v.type.shape.is_static, "has_static_shape()", _its_type)


def has_static_rank() -> Predicate:
    """The rank of the tensor is known."""
    return _plain(lambda v: type(v.type) is TensorType and v.type.shape.rank.is_static, "has_static_rank()", _its_type)


def has_static_dim(index: int) -> Predicate:
    """Dimension `index` of the tensor is known."""
    return _plain(lambda v: _static_dim(v, index), f"has_static_dim({index})", _its_type)


def _static_dim(value: Output, index: int) -> bool:
    if type(value.type) is not TensorType or value.type.shape.rank.is_dynamic:
        return False
    dims = value.type.shape.dims
    return -len(dims) <= index < len(dims) and dims[index].is_static


def rank_equals(rank: int) -> Predicate:
    """The rank of the tensor is known and is `rank`."""
    return _plain(lambda v: type(v.type) is TensorType and v.type.shape.rank == rank, f"rank_equals({rank})", _its_type)


def type_matches(*element_types: ElementType | str) -> Predicate:
    """The tensor's element type is one of those given, as `f32` or `"f32"`. Raises `PassError` for other arguments."""
    wanted = [_element_type(value) for value in element_types]
    if not wanted:
        raise PassError("type_matches needs at least one element type")
    return _plain(
        lambda v: type(v.type) is TensorType and v.type.element_type in wanted,
        f"type_matches({', '.join(t.name for t in wanted)})",
        _its_type,
    )


def _element_type(value: ElementType | str) -> ElementType:
    if isinstance(value, ElementType):
        return value
    if not isinstance(value, str):
        raise PassError(f"type_matches takes element types such as engine.ir.f32 or 'f32', got {value!r}")
    try:
        return ElementType.parse(value)
    except ModelError as e:
        raise PassError(f"type_matches: {e}") from None


def output_index_matches(index: int) -> Predicate:
    """The value is output `index` of its node."""
    return _plain(lambda v: v.index == index, f"output_index_matches({index})", lambda v: f"it is output {v.index}")


def attrs_match(**expected: Any) -> Predicate:
    """Every given attribute has its given value; an omitted attribute has its operator's default.

    A value may be a function, which is called with the attribute.
    """
    text = ", ".join(f"{k}={_function_name(v) if callable(v) else repr(v)}" for k, v in expected.items())
    return _plain(
        lambda v: all(_attribute_equals(v, name, want) for name, want in expected.items()),
        f"attrs_match({text})",
        lambda v: ", ".join(f"{name} is {_attribute(v, name)!r}" for name in expected),
        expected,
    )


def _attribute(value: Output, name: str) -> Any:
    node = value.node
    op = find_op(node.op_type, node.domain)
    if op is None or name not in op.attributes or op.attributes[name].required:
        return node.attributes.get(name)
    return attribute(node, name)


def _attribute_equals(value: Output, name: str, want: Any) -> bool:
    actual = _attribute(value, name)
    if callable(want):
        return bool(want(actual))
    if isinstance(want, ElementType):
        want = want.onnx
    if isinstance(want, list):
        want = tuple(want)
    if isinstance(actual, np.ndarray) or isinstance(want, np.ndarray):
        return actual is not None and np.array_equal(actual, want)
    return bool(actual == want)


def shape_matches(pattern: str) -> Predicate:
    """The shape has the form of `pattern`, such as `[?, N, 4]`, `[B, S, ...]` or `[]`.

    `?` matches any dimension, a number that length, and a word is a symbol: all its occurrences in the whole pattern
    must have the same length (or, if unknown, the same symbol of the model). `...`, at most once, matches any further
    dimensions.
    """
    tokens = [token.strip() for token in pattern.strip()[1:-1].split(",") if token.strip()]
    if not (pattern.strip().startswith("[") and pattern.strip().endswith("]")) or tokens.count("...") > 1:
        raise PassError(f"shape_matches({pattern!r}) is not of the form [d0, d1, ...]")
    return _ShapeMatches(pattern, tokens)


class _ShapeMatches(Predicate):
    """Keeps its tokens, to report the values of its symbols."""

    __slots__ = ("_tokens",)

    def __init__(self, pattern: str, tokens: list[str]) -> None:
        super().__init__(lambda v, s: _shape_fits(v, tokens, s), f"shape_matches({pattern!r})", _its_type)
        self._tokens = tokens
        self.uses_symbols = any(not token.isdecimal() and token not in ("?", "...") for token in tokens)

    def why(self, value: Output, symbols: Symbols) -> str:
        bound = [f"{token}={symbols[token]}" for token in self._tokens if token in symbols]
        return super().why(value, symbols) + (f", with {', '.join(bound)} bound earlier" if bound else "")


def _shape_fits(value: Output, tokens: list[str], symbols: Symbols) -> bool:
    if type(value.type) is not TensorType or value.type.shape.rank.is_dynamic:
        return False
    dims = list(value.type.shape.dims)
    if "..." in tokens:
        hole = tokens.index("...")
        tail = len(tokens) - hole - 1
        if len(dims) < len(tokens) - 1:
            return False
        tokens = tokens[:hole] + tokens[hole + 1 :]
        dims = dims[:hole] + dims[len(dims) - tail :]
    if len(dims) != len(tokens):
        return False
    bound = dict(symbols)
    for dim, token in zip(dims, tokens, strict=True):
        if token == "?":
            continue
        known: int | str | None = dim.get_length() if dim.is_static else dim.symbol
        if token.isdecimal():
            if known != int(token):
                return False
        elif known is None or bound.setdefault(token, known) != known:
            return False
    symbols.update(bound)
    return True


def value_matches(expected: Any, rtol: float = 1e-5, atol: float = 0.0) -> Predicate:
    """The value is a constant whose elements all equal `expected` (a number, or an array of the same shape).

    Floating-point constants compare within `rtol`; 1e-5 lets a constant that went through f16 or a decimal text still
    be recognised. `expected` may be a function, which is called with the array.
    """
    text = _function_name(expected) if callable(expected) else repr(expected)
    return _plain(lambda v: _value_equals(v, expected, rtol, atol), f"value_matches({text})", _its_value)


def _its_value(value: Output) -> str:
    if not isinstance(value.node, Constant):
        return f"it comes from {value.node}"
    data = value.node.data
    text = np.array2string(data, threshold=8, separator=", ").replace("\n", "")
    return f"it is {value.node.element_type.name}{list(data.shape)} {text}"


def _value_equals(value: Output, expected: Any, rtol: float, atol: float) -> bool:
    if not isinstance(value.node, Constant):
        return False
    data = value.node.data
    if callable(expected):
        return bool(expected(data))
    want = np.asarray(expected)
    if (want.ndim and want.shape != data.shape) or not data.size:
        return False
    is_real = value.node.element_type.is_real
    # Comparing one element first rules out most constants without reading all weights.
    first = want.reshape(-1)[0]
    if is_real and want.dtype.kind in "biuf":
        return _is_close(float(data.flat[0]), float(first), rtol, atol) and (
            data.size == 1 or _close(data, want, is_real, rtol, atol)
        )
    return _close(data.reshape(-1)[:1], first, is_real, rtol, atol) and _close(data, want, is_real, rtol, atol)


def _is_close(number: float, want: float, rtol: float, atol: float) -> bool:
    """`np.isclose` of two numbers, which most comparisons are, without arrays."""
    if math.isfinite(want):
        return abs(number - want) <= atol + rtol * abs(want)
    return number == want or (number != number and want != want)


def _close(data: Any, want: Any, is_real: bool, rtol: float, atol: float) -> bool:
    if not is_real and data.dtype.kind != "c":
        return bool(np.all(data == want))
    with np.errstate(all="ignore"):
        wide = data.astype(np.float64) if is_real else data
        return bool(np.all(np.isclose(wide, want, rtol=rtol, atol=atol, equal_nan=True)))
