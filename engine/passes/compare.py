"""Comparing two models: node by node, with the differences in words, or by what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from engine.ir import Constant, Model, Node, Output
from engine.ops.evaluator import evaluate_model

_MOST = 20


def compare_models(
    a: Model,
    b: Model,
    *,
    attributes: bool = True,
    constants: bool = True,
    names: bool = True,
    rt_info: bool = True,
    types: bool = True,
) -> list[str]:
    """The differences between two models, in words; an empty list where they are equal.

    Compares inputs, outputs and, from the outputs up, operators and edges; and what is switched on: attributes
    (bodies included), constants' values (bit by bit, NaN equal to NaN), friendly names that were given, rt_info,
    and types. At most 20 differences are listed.
    """
    comparison = _Comparison(attributes, constants, names, rt_info, types)
    comparison.models(a, b)
    return comparison.found[:_MOST]


@dataclass(slots=True)
class _Comparison:
    attributes: bool
    constants: bool
    names: bool
    rt_info: bool
    types: bool
    found: list[str] = field(default_factory=list)
    pairs: dict[Node, Node] = field(default_factory=dict)

    def models(self, a: Model, b: Model) -> None:
        for what, left, right in (
            ("inputs", a.parameters, b.parameters),
            ("captures", a.captures, b.captures),
            ("sinks", a.sinks, b.sinks),
            ("outputs", a.results, b.results),
        ):
            if len(left) != len(right):
                self.found.append(f"{what}: {_names(left)} against {_names(right)}")
                return
            for x, y in zip(left, right, strict=True):
                if what in ("inputs", "outputs") and self.names and x.friendly_name != y.friendly_name:
                    self.found.append(f"{what}: `{x.friendly_name}` against `{y.friendly_name}`")
                self.nodes(x, y)

    def nodes(self, a: Node, b: Node) -> None:
        """Compare two nodes and, without recursion, everything above them."""
        stack = [(a, b)]
        while stack and len(self.found) < _MOST:
            x, y = stack.pop()
            known = self.pairs.get(x)
            if known is not None:
                if known is not y:
                    self.found.append(f"{x} stands at the place of {known} and of {y}")
                continue
            self.pairs[x] = y
            if self.node(x, y):
                stack.extend(
                    (s.node, t.node)
                    for s, t in zip(x._sources, y._sources, strict=True)
                    if s is not None and t is not None
                )

    def node(self, a: Node, b: Node) -> bool:
        """Compare two nodes by themselves; True where their inputs can be compared one by one."""
        if (a.domain, a.op_type) != (b.domain, b.op_type):
            self.found.append(f"{a} against {b}")
            return False
        if self.names and a.has_own_name and b.has_own_name and a.friendly_name != b.friendly_name:
            self.found.append(f"friendly name: {a} against {b}")
        if self.rt_info and (a._rt_info or {}) != (b._rt_info or {}):
            self.found.append(f"rt_info of {a}: {a._rt_info or {}} against {b._rt_info or {}}")
        if self.types and list(a._types) != list(b._types):
            self.found.append(f"types of {a}: {_texts(a._types)} against {_texts(b._types)}")
        if isinstance(a, Constant) and isinstance(b, Constant):
            if self.constants:
                self.constant(a, b)
            return True
        if self.attributes:
            self.attribute_maps(a, b)
        if len(a._sources) != len(b._sources):
            self.found.append(f"{a} has {len(a._sources)} inputs against {len(b._sources)} of {b}")
            return False
        for position, (s, t) in enumerate(zip(a._sources, b._sources, strict=True)):
            if (s is None) != (t is None) or (s is not None and t is not None and s.index != t.index):
                self.found.append(f"input {position} of {a} reads {_source(s)} against {_source(t)}")
        return True

    def constant(self, a: Constant, b: Constant) -> None:
        x, y = a.data, b.data
        if x.dtype != y.dtype or x.shape != y.shape:
            self.found.append(f"{a}: {x.dtype}{list(x.shape)} against {y.dtype}{list(y.shape)}")
        elif x is not y and not _equal_arrays(x, y):
            different = int(np.sum(x != y))
            self.found.append(f"values of {a}: {different} of {x.size} elements differ")

    def attribute_maps(self, a: Node, b: Node) -> None:
        for name in sorted({*a.attributes, *b.attributes}):
            x, y = a.attributes.get(name), b.attributes.get(name)
            if isinstance(x, Model) and isinstance(y, Model):
                before = len(self.found)
                self.models(x, y)
                self.found[before:] = [f"{name} of {a}: {text}" for text in self.found[before:]]
            elif not _equal_attributes(x, y):
                self.found.append(f"attribute {name} of {a}: {x!r} against {y!r}")


def _equal_attributes(x: Any, y: Any) -> bool:
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and x.shape == y.shape and _equal_arrays(x, y)
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(_equal_attributes, x, y))
    return type(x) is type(y) and bool(x == y or (x != x and y != y))


def _equal_arrays(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    if x.dtype == object:
        return bool(np.array_equal(x, y))
    return np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


def _names(nodes: Sequence[Node]) -> str:
    return "[" + ", ".join(node.friendly_name for node in nodes) + "]"


def _texts(types: Sequence[Any]) -> str:
    return "[" + ", ".join(map(str, types)) + "]"


def _source(source: Output | None) -> str:
    return "nothing" if source is None else str(source)


Evaluate = Callable[[Model, dict[str, Any]], Sequence[Any]]


def check_equivalence(
    a: Model,
    b: Model,
    *,
    inputs: dict[str, Any] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    dims: dict[str, int] | None = None,
) -> None:
    """Raise `AssertionError` where two models of the same inputs compute different outputs on the same data.

    Args:
        inputs: values by name; those not given are random (see `random_input`), with dynamic dimensions of `dims`
            by symbol, else 2.
        rtol: allowed difference relative to the largest magnitude of an output; by default 64 units in the last
            place of its type, enough for reductions of a few thousand terms in another order, whose error grows
            with the square root of their number.
    """
    rng = np.random.default_rng(seed)
    feed = dict(inputs or {})
    for parameter in a.parameters:
        if parameter.friendly_name not in feed:
            feed[parameter.friendly_name] = random_input(parameter.type, rng, dims or {})
    left, right = evaluate_model(a, feed), evaluate_model(b, feed)
    if len(left) != len(right):
        raise AssertionError(f"{len(left)} outputs against {len(right)}")
    for result, x, y in zip(a.results, left, right, strict=True):
        problem = _difference(x, y, rtol)
        if problem:
            raise AssertionError(f"output `{result.friendly_name}`: {problem}")


def random_input(value_type: Any, rng: np.random.Generator, dims: dict[str, int]) -> Any:
    """A seeded array for a tensor type: standard normal reals, integers in 0..3, random bools.

    Raises `AssertionError` for types that hold no numbers: give these inputs yourself.
    """
    element_type, shape = getattr(value_type, "element_type", None), getattr(value_type, "shape", None)
    if element_type is None or shape is None or shape.rank.is_dynamic:
        raise AssertionError(f"no random value can be made for {value_type}; give it in inputs")
    lengths = [d.get_length() if d.is_static else max(d.min, dims.get(d.symbol or "", 2)) for d in shape.dims]
    if element_type.is_real or element_type.is_complex:
        return rng.standard_normal(lengths).astype(element_type.numpy)
    if element_type.name == "bool":
        return rng.integers(0, 2, lengths).astype(bool)
    if element_type.is_integral:
        return rng.integers(0, 4 if element_type.bits > 2 else 2, lengths).astype(element_type.numpy)
    raise AssertionError(f"no random value can be made for {value_type}; give it in inputs")


def _difference(x: Any, y: Any, rtol: float | None) -> str:
    if x is None or y is None:
        return "" if x is y else f"{x!r} against {y!r}"
    if isinstance(x, list):
        if not isinstance(y, list) or len(x) != len(y):
            return f"{x!r} against {y!r}"
        return next(filter(None, (_difference(p, q, rtol) for p, q in zip(x, y, strict=True))), "")
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{x.dtype}{list(x.shape)} against {y.dtype}{list(y.shape)}"
    if x.dtype.kind in "biuOS" or not x.size:
        return "" if np.array_equal(x, y) else "values differ"
    if rtol is None:
        rtol = 64 * _resolution(x.dtype)
    wide_x, wide_y = (v.astype(np.complex128 if v.dtype.kind == "c" else np.float64) for v in (x, y))
    with np.errstate(all="ignore"):
        if not np.array_equal(np.isfinite(wide_x), np.isfinite(wide_y)):
            return "NaN or infinity at different places"
        finite = np.isfinite(wide_x)
        error = np.abs(wide_x - wide_y)[finite].max(initial=0.0)
        scale = np.abs(wide_x)[finite].max(initial=0.0)
    return "" if error <= rtol * max(scale, 1e-30) else f"differs by {error:.3g} where the maximum is {scale:.3g}"


def _resolution(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of a floating-point type."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
