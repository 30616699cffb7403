"""Predicates: conditions on a matched value, combined with `&`, `|` and `~`, that can say why they failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from engine.errors import PassError
from engine.ir import Constant, ElementType, Output, TensorType
from engine.ops import attribute, find_op

Symbols: TypeAlias = "dict[str, int | str]"


class Predicate:
    """A named condition on an `Output`.

    Args:
        check: gets the value and the symbols bound so far in this match (which it may extend).
        name: how the condition reads in explanations, `consumers_count(1)`.
        actual: what the value is instead, for explanations.
    """

    __slots__ = ("_actual", "check", "name")

    check: Callable[[Output, Symbols], bool]
    name: str

    def __init__(
        self,
        check: Callable[[Output, Symbols], bool],
        name: str,
        actual: Callable[[Output], str] | None = None,
    ) -> None:
        self.check = check
        self.name = name
        self._actual = actual

    def __call__(self, value: Output, symbols: Symbols | None = None) -> bool:
        """Whether the condition holds for `value`."""
        return self.check(value, {} if symbols is None else symbols)

    def __and__(self, other: PredicateLike) -> Predicate:
        return _And(self, as_predicate(other))

    def __or__(self, other: PredicateLike) -> Predicate:
        right = as_predicate(other)
        return Predicate(lambda v, s: self.check(v, s) or right.check(v, s), f"({self.name} | {right.name})")

    def __invert__(self) -> Predicate:
        return Predicate(lambda v, s: not self.check(v, dict(s)), f"~{self.name}", self._actual)

    def why(self, value: Output, symbols: Symbols) -> str:
        """In words, why the condition does not hold for `value`."""
        if self._actual is None:
            return f"{self.name} does not hold"
        return f"{self.name} does not hold: {self._actual(value)}"


class _And(Predicate):
    """Both; its explanation is that of the first part that fails."""

    __slots__ = ("_left", "_right")

    def __init__(self, left: Predicate, right: Predicate) -> None:
        super().__init__(lambda v, s: left.check(v, s) and right.check(v, s), f"({left.name} & {right.name})")
        self._left, self._right = left, right

    def why(self, value: Output, symbols: Symbols) -> str:
        trial = dict(symbols)
        if not self._left.check(value, trial):
            return self._left.why(value, symbols)
        return self._right.why(value, trial)


PredicateLike: TypeAlias = "Predicate | Callable[[Output], bool]"


def as_predicate(value: PredicateLike) -> Predicate:
    """`value` as a `Predicate`; a plain function of an `Output` becomes one under its own name."""
    if isinstance(value, Predicate):
        return value
    if not callable(value):
        raise PassError(f"a predicate is a function of an Output, got {type(value).__name__}: {value!r}")
    return Predicate(lambda v, _: bool(value(v)), getattr(value, "__name__", repr(value)))


def consumers_count(count: int) -> Predicate:
    """Exactly `count` input ports read the value."""
    return Predicate(
        lambda v, _: len(v.node._consumers[v.index] or ()) == count,
        f"consumers_count({count})",
        lambda v: f"it has {v.num_consumers} consumers ({', '.join(str(t.node) for t in v.target_inputs)})",
    )


def has_static_shape() -> Predicate:
    """Every dimension of the tensor is known."""
    return Predicate(
        lambda v, _: type(v.type) is TensorType and v.type.shape.is_static,
        "has_static_shape()",
        lambda v: f"its type is {v.type}",
    )


def has_static_rank() -> Predicate:
    """The rank of the tensor is known."""
    return Predicate(
        lambda v, _: type(v.type) is TensorType and v.type.shape.rank.is_static,
        "has_static_rank()",
        lambda v: f"its type is {v.type}",
    )


def has_static_dim(index: int) -> Predicate:
    """Dimension `index` of the tensor is known."""
    return Predicate(lambda v, _: _static_dim(v, index), f"has_static_dim({index})", lambda v: f"its type is {v.type}")


def _static_dim(value: Output, index: int) -> bool:
    if type(value.type) is not TensorType or value.type.shape.rank.is_dynamic:
        return False
    dims = value.type.shape.dims
    return -len(dims) <= index < len(dims) and dims[index].is_static


def rank_equals(rank: int) -> Predicate:
    """The rank of the tensor is known and is `rank`."""
    return Predicate(
        lambda v, _: type(v.type) is TensorType and v.type.shape.rank == rank,
        f"rank_equals({rank})",
        lambda v: f"its type is {v.type}",
    )


def type_matches(*element_types: ElementType) -> Predicate:
    """The tensor's element type is one of those given."""
    return Predicate(
        lambda v, _: type(v.type) is TensorType and v.type.element_type in element_types,
        f"type_matches({', '.join(t.name for t in element_types)})",
        lambda v: f"its type is {v.type}",
    )


def output_index_matches(index: int) -> Predicate:
    """The value is output `index` of its node."""
    return Predicate(
        lambda v, _: v.index == index, f"output_index_matches({index})", lambda v: f"it is output {v.index}"
    )


def attrs_match(**expected: Any) -> Predicate:
    """Every attribute given has that value; one that the node leaves out counts with its operator's default.

    A value that is a function is asked with the attribute instead.
    """
    text = ", ".join(f"{k}={v!r}" for k, v in expected.items())
    return Predicate(
        lambda v, _: all(_attribute_equals(v, name, want) for name, want in expected.items()),
        f"attrs_match({text})",
        lambda v: ", ".join(f"{name} is {_attribute(v, name)!r}" for name in expected),
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
    if isinstance(want, list):
        want = tuple(want)
    if isinstance(actual, np.ndarray) or isinstance(want, np.ndarray):
        return actual is not None and np.array_equal(actual, want)
    return bool(actual == want)


def shape_matches(pattern: str) -> Predicate:
    """The shape has this form: `[?, N, 4]`, `[B, S, ...]`, `[]`.

    `?` is any dimension, a number that length, a word a symbol: wherever it stands in the whole pattern it must be
    the same length (or, where lengths are unknown, the same symbol of the model). `...` stands for any further
    dimensions, at one place.
    """
    tokens = [token.strip() for token in pattern.strip()[1:-1].split(",") if token.strip()]
    if not (pattern.strip().startswith("[") and pattern.strip().endswith("]")) or tokens.count("...") > 1:
        raise PassError(f"shape_matches({pattern!r}) is not written as [d0, d1, ...]")
    return Predicate(
        lambda v, symbols: _shape_fits(v, tokens, symbols),
        f"shape_matches({pattern!r})",
        lambda v: f"its type is {v.type}",
    )


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

    Floating-point constants compare within `rtol`; 1e-5 lets a constant that went through f16 or a decimal text
    still be recognised. A function is asked with the array instead.
    """
    return Predicate(
        lambda v, _: _value_equals(v, expected, rtol, atol),
        f"value_matches({expected!r})",
        lambda v: f"it is {v.node.data!r}" if isinstance(v.node, Constant) else f"it comes from {v.node}",
    )


def _value_equals(value: Output, expected: Any, rtol: float, atol: float) -> bool:
    if not isinstance(value.node, Constant):
        return False
    if callable(expected):
        return bool(expected(value.node.data))
    element_type = value.node.element_type
    data = value.node.data
    if element_type.is_real:
        data = data.astype(np.float64)
    want = np.asarray(expected)
    if want.ndim and want.shape != data.shape:
        return False
    if element_type.is_real or element_type.is_complex:
        with np.errstate(all="ignore"):
            return bool(np.all(np.isclose(data, want, rtol=rtol, atol=atol, equal_nan=True)))
    return bool(np.all(data == want))
