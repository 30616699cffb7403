"""How far two right results of a model may lie apart: Monte Carlo arithmetic.

The model is evaluated several times, each time with every element of every value of real numbers changed by random
multiples of the machine epsilon of its type. How far the results move is what rounding does to them (D. Stott Parker,
Monte Carlo Arithmetic, 1997), whatever sums, cancellations and branches lie in between. Devices round less than that:
they add up in another order, fuse nodes and use other polynomials, which costs a few epsilons a node, where the change
here is 32. Elements of integers and truth values that move at all may differ by anything, for their values lie at a
border.

Few samples are enough for nearly all results, but not for sums of several values that lie at borders: `Answers` takes
more of them before it calls a result wrong. If two such values cancel each other when they jump together, each further
sample shows what one of them does alone with a chance of 1/2, so 60 of them all miss it with one of 1e-18.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

from engine.errors import InferError, ModelError
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, TensorType
from engine.ir.element_type import bf16, boolean, f16, string
from engine.ops import control_flow, create
from engine.ops.reference import compile_node

Array = np.ndarray[Any, np.dtype[Any]]

SAMPLES = 4
MORE_SAMPLES = 64
WIDE, NARROW = 32.0, 2.0
"""The number of epsilons by which values of 32 and 64 bits change, and values of fewer bits, whose steps are large
anyway.
"""
MARGIN = 3.0


@dataclass(frozen=True, slots=True)
class Expected:
    """A result, and by how much each of its elements may differ; infinity where it may be anything.

    `is_stable` is False if even the shape of the result depends on rounding.
    """

    value: Any
    tolerance: Array
    is_stable: bool = True


BORDERS = frozenset({
    "QuantizeLinear", "DynamicQuantizeLinear", "Floor", "Ceil", "Round", "Sign", "Cast", "CastLike", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "Equal", "Mod",
})  # fmt: skip
"""Operators whose results jump."""

CANCELLING = frozenset({"Gelu"})
"""Operators whose formula adds 1 to nearly -1: devices that compute it in f32 are exact to an epsilon of the input."""


class Unanswerable(Exception):
    """The model has no single right result for these inputs, such as a float that no integer is near to."""


class Answers:
    """The right results of a model. Raises `Unanswerable`, and the errors of evaluation."""

    def __init__(self, model: Model, feeds: Mapping[str, Array]) -> None:
        self._model, self._feeds = model, feeds
        self._results = expected(model, feeds)
        self._is_sure = False

    def difference(self, index: int, found: Any, slack: float = 0.0) -> str | None:
        """A description of the error in result `index`; None if it is right."""
        if difference(found, self._results[index], slack) is None:
            return None
        if not self._is_sure:
            self._results, self._is_sure = expected(self._model, self._feeds, MORE_SAMPLES), True
        return difference(found, self._results[index], slack)


def expected(model: Model, feeds: Mapping[str, Array], samples: int = SAMPLES) -> list[Expected]:
    """The results of a model, with tolerances. Raises `Unanswerable`, and the errors of evaluation."""
    inputs = [feeds[parameter.friendly_name] for parameter in model.parameters]
    exact = _run(model, inputs, None, is_checked=True)
    try:
        moved = [_run(model, inputs, np.random.default_rng(sample)) for sample in range(samples)]
        if samples > SAMPLES:
            moved.append(_run(model, inputs, None, is_wide=True))
    except InferError as e:  # a shape that depends on rounding is not what a later node accepts
        raise Unanswerable(str(e)) from e
    return [_expected(value, [each[index] for each in moved]) for index, value in enumerate(exact)]


def difference(found: Any, right: Expected, slack: float = 0.0) -> str | None:
    """The error in a result, in words; None if it is right. `slack` is an absolute error that is also allowed."""
    got, want = np.asarray(found), np.asarray(right.value)
    if got.dtype != want.dtype:
        return f"is {got.dtype}, expected {want.dtype}"
    if not right.is_stable:
        return None
    if got.shape != want.shape:
        return f"has shape {got.shape}, expected {want.shape}"
    if want.dtype == object:
        return None if got.tolist() == want.tolist() else f"is {got.tolist()!r:.100}, expected {want.tolist()!r:.100}"
    same = (got == want) | ((got != got) & (want != want))
    with np.errstate(all="ignore"):
        wide = (lambda a: a) if want.dtype.kind == "c" else (lambda a: a.astype(np.longdouble))
        near = np.abs(wide(got) - wide(want)) <= right.tolerance + slack
    wrong = np.flatnonzero(~(same | near | np.isinf(right.tolerance)))
    if not len(wrong):
        return None
    at = int(wrong[0])
    return (
        f"{len(wrong)} of {want.size} elements differ; the first at {np.unravel_index(at, want.shape)}: got "
        f"{got.flat[at]!r}, expected {want.flat[at]!r} within {float(right.tolerance.flat[at]):.3g}"
    )


def _run(
    model: Model,
    given: Sequence[Any],
    noise: np.random.Generator | None,
    *,
    is_checked: bool = False,
    is_wide: bool = False,
) -> list[Any]:
    """The results of a model, given its parameters and captures.

    `noise` also changes the values in bodies. `is_wide` keeps values of 16 bits in f32 between the nodes, as devices
    may.
    """
    values: dict[Output, Any] = {}
    for parameter, value in zip([*model.parameters, *model.captures], given, strict=True):
        values[parameter.output(0)] = _moved(value, noise)
    for node in model.ordered_nodes():
        if isinstance(node, Constant):
            values[node.output(0)] = _moved(node.data, noise)
        elif node.op_type not in ("Parameter", "Result"):
            inputs = [None if source is None else values[source] for source in node.input_values]
            if is_checked:
                _check(node, inputs)
            if noise is not None and node.op_type in BORDERS:
                inputs[0] = _shifted(inputs[0], noise)
            with _bodies_with(noise):
                made = _evaluated_wide(node, inputs) if is_wide else compile_node(node)(inputs)
            if noise is not None and node.op_type in CANCELLING:
                made = [(made[0] + (_moved(inputs[0], noise) - inputs[0])).astype(inputs[0].dtype)]
            if noise is not None and node.op_type == "Equal":
                made = [_either_if_near(made[0], *inputs, noise)]
            for output, value in zip(node.outputs, made, strict=True):
                values[output] = _moved(value, noise)
    results = [result.input_value(0) for result in model.results]
    return [_narrow(values[output], output) if is_wide else values[output] for output in results]


def _bodies_with(noise: np.random.Generator | None) -> AbstractContextManager[object]:
    """While it is open, the bodies of the nodes that are compiled are evaluated with `noise`."""
    if noise is None:
        return nullcontext()

    class Body:
        def __init__(self, model: Model) -> None:
            self._model = model

        def run(self, inputs: Sequence[Any]) -> list[Any]:
            return _run(self._model, inputs, noise)

    return mock.patch.object(control_flow, "ModelEvaluator", Body)


def _evaluated_wide(node: Node, inputs: list[Any]) -> list[Any]:
    """The outputs of a node that reads f32 in place of f16 and bf16. Only a cast to these rounds."""
    wide = [_widened(value) for value in inputs]
    if not node.has_bodies:
        try:
            sources = [
                None if source is None or value is None else _parameter(source, value)
                for source, value in zip(node.input_values, wide, strict=True)
            ]
            outputs = node.num_outputs
            twin = create(node.op_type, sources, node.attributes, domain=node.domain, num_outputs=outputs)
            return [_widened(value) for value in compile_node(twin)(wide)]
        except ModelError:  # an operator of 16 bits only
            pass
    pairs = zip(node.input_values, wide, strict=True)
    narrow = [value if source is None else _narrow(value, source) for source, value in pairs]
    return [_widened(value) for value in compile_node(node)(narrow)]


def _parameter(source: Output, value: Any) -> Parameter:
    if not isinstance(source.type, TensorType):
        return Parameter(source.type)
    return Parameter(ElementType.from_numpy(value.dtype), value.shape)


def _widened(value: Any) -> Any:
    return value.astype(np.float32) if getattr(value, "dtype", None) in (f16.numpy, bf16.numpy) else value


def _narrow(value: Any, output: Output) -> Any:
    is_tensor = isinstance(value, (np.ndarray, np.generic)) and isinstance(output.type, TensorType)
    return value.astype(output.element_type.numpy) if is_tensor and _is_real(value) else value


def _check(node: Any, inputs: list[Any]) -> None:
    """Refuse what no two implementations agree about."""
    first = inputs[0] if inputs else None
    if node.op_type not in ("Cast", "CastLike", "QuantizeLinear") or not isinstance(first, (np.ndarray, np.generic)):
        return
    target = node.output(0).element_type
    if not _is_real(first) or target.is_real or target in (boolean, string):
        return
    numbers = first.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise Unanswerable(f"{node}: conversion of what is no number")
    bounds = ml_dtypes.iinfo(target.numpy)
    if node.op_type != "QuantizeLinear" and not ((numbers > bounds.min - 1) & (numbers < bounds.max + 1)).all():
        raise Unanswerable(f"{node}: conversion of what {target} does not have")


def _moved(value: Any, noise: np.random.Generator | None) -> Any:
    if noise is None or not isinstance(value, (np.ndarray, np.generic)) or not _is_real(value):
        return value
    kind: Any = ml_dtypes.finfo(value.dtype)  # type: ignore[no-untyped-call]
    size = (WIDE if kind.bits >= 32 else NARROW) * float(kind.eps)
    wide = np.float64 if kind.bits > 16 else np.float32
    with np.errstate(all="ignore"):
        return (value.astype(wide) * (1 + size * noise.uniform(-1, 1, value.shape))).astype(value.dtype)


def _shifted(value: Any, noise: np.random.Generator) -> Any:
    """All elements larger in the first sample, smaller in the second, and either of it in others.

    So a value at a border falls to both of its sides: sums of quantized values are exactly between two steps so often
    that changes by little leave some of them out. Each falls on its own: what follows may add them up.
    """
    if not isinstance(value, (np.ndarray, np.generic)) or not _is_real(value):
        return value
    kind: Any = ml_dtypes.finfo(value.dtype)  # type: ignore[no-untyped-call]
    sample = noise.bit_generator.seed_seq.entropy
    side = (1, -1)[sample] if sample < 2 else noise.choice((1, -1), value.shape)
    factor = 1 + 4 * side * (WIDE if kind.bits >= 32 else NARROW) * float(kind.eps)
    with np.errstate(all="ignore"):
        return (value.astype(np.float64) * factor).astype(value.dtype)


def _either_if_near(is_equal: Array, a: Array, b: Array, noise: np.random.Generator) -> Array:
    """Equal's result, but either value where operands differ by what rounding does: changed ones are never equal."""
    if not _is_real(a):
        return is_equal
    kind: Any = ml_dtypes.finfo(a.dtype)  # type: ignore[no-untyped-call]
    most = 8 * (WIDE if kind.bits >= 32 else NARROW) * float(kind.eps)
    with np.errstate(all="ignore"):
        one, other = a.astype(np.float64), b.astype(np.float64)
        is_near = np.abs(one - other) <= most * np.maximum(np.abs(one), np.abs(other))
    return np.where(is_near, noise.choice((True, False), is_equal.shape), is_equal)


def _is_real(value: Any) -> bool:
    return value.dtype.name.startswith(("float", "bfloat"))


def _expected(value: Any, moved: list[Any]) -> Expected:
    if not isinstance(value, (np.ndarray, np.generic)):
        return Expected(value, np.zeros(()))
    want = np.asarray(value)
    others = [np.asarray(each) for each in moved]
    if any(each.shape != want.shape for each in others):
        return Expected(want, np.zeros(want.shape), is_stable=False)
    if not _is_real(want):
        changes = np.zeros(want.shape, bool)
        for each in others:
            changes |= np.asarray(each != want, bool)
        return Expected(want, np.where(changes, np.inf, 0.0))
    kind: Any = ml_dtypes.finfo(want.dtype)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        exact = want.astype(np.float64)
        spread = np.max([np.abs(each.astype(np.float64) - exact) for each in others], axis=0)
        # Functions such as Gelu cancel inside: their error is relative to the tensor's values, not to their results.
        largest = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
        tolerance = MARGIN * spread + 4 * float(kind.eps) * largest + float(kind.smallest_normal)
    # Infinity or NaN in one of the runs only: the element lies at the border of the type.
    is_at_border = ~np.isfinite(tolerance)
    return Expected(
        want, np.where(is_at_border & ~_all_same(want, others), np.inf, np.where(is_at_border, 0, tolerance))
    )


def _all_same(want: Array, others: list[Array]) -> Array:
    same = np.ones(want.shape, bool)
    for each in others:
        same &= (each == want) | ((each != each) & (want != want))
    return same
