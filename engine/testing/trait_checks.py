"""The checks of `engine.testing.facts` of single traits: each returns True if the node could have refuted the trait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from engine.errors import EngineError
from engine.ir import Node
from engine.ops.tensors import Array
from engine.ops.traits import Growth, Moves, Traits
from engine.testing.perturbed import (
    Inputs,
    Run,
    is_moderate,
    largest,
    refuted,
    replaced,
    rounding,
    same,
    wide,
)

_ROUNDS: Final = 3
"""How often elements are replaced, different ones each time."""
_F16: Final = 65504.0
_LARGE: Final = 60000.0
_HUGE: Final = 1e30


def _data(traits: Traits, inputs: Inputs) -> list[Array]:
    return [each for each in inputs[: traits.data] if each is not None]


def _check_pointwise(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    data = _data(traits, inputs)
    shape = np.broadcast_shapes(*(each.shape for each in data))
    before = run(inputs)
    for index, result in enumerate(before):
        if result.shape != shape:
            raise refuted(node, "pointwise", f"output {index} has shape {result.shape}, and its data {shape}")
    size, random = int(np.prod(shape)), np.random.default_rng(0)
    for _ in range(_ROUNDS):
        kept = random.random(shape) < 0.5  # the places of results that must stay
        changed = [*inputs]
        for at, value in enumerate(data):
            read = np.zeros(value.size, bool)
            places = np.broadcast_to(np.arange(value.size).reshape(value.shape), shape)
            read[places[kept]] = True
            changed[at] = replaced(value, ~read.reshape(value.shape), random)
        for index, (old, new) in enumerate(zip(before, run(changed), strict=True)):
            wrong = np.argwhere(~same(old, new) & kept)
            if len(wrong):
                place = tuple(map(int, wrong[0]))
                raise refuted(
                    node,
                    "pointwise",
                    f"element {place} of output {index} changed from {old[place]} to {new[place]} with elements of "
                    "other places",
                )
    return size > 1


def _check_broadcasts(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    data = _data(traits, inputs)
    shape = np.broadcast_shapes(*(each.shape for each in data))
    for result in run(inputs):
        if result.shape != shape:
            raise refuted(node, "broadcasts", f"shapes {[each.shape for each in data]} give {result.shape}")
    return len({each.shape for each in data}) > 1


def _check_moves(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    """Numbers all elements, so that each result shows which element it is."""
    data = _data(traits, inputs)
    count = sum(each.size for each in data)
    if any(count > largest(each.dtype) for each in data):
        return False
    assert traits.moves is not None
    start, numbered = 1, [*inputs]
    for at, value in enumerate(data):
        numbered[at] = np.arange(start, start + value.size).reshape(value.shape).astype(value.dtype)
        start += value.size
    results = np.concatenate([each.reshape(-1).astype(np.int64) for each in run(numbered)])
    others = results[(results < 1) | (results > count)]
    if traits.fills:
        results = results[(results >= 1) & (results <= count)]
    elif others.size:
        raise refuted(node, f"moves={traits.moves.name}", f"of the elements 1..{count}, it gives {others[0]}")
    places, times = np.unique(results, return_counts=True)
    promise = f"moves={traits.moves.name}"
    if traits.moves < Moves.REPETITION and (times > 1).any():
        raise refuted(node, promise, f"element {places[times > 1][0]} of 1..{count} is in the results twice")
    if traits.moves < Moves.SELECTION and len(places) != count:
        raise refuted(node, promise, f"only {len(places)} of {count} elements are in the results")
    if traits.moves is Moves.VIEW and (results != np.arange(1, count + 1)).any():
        raise refuted(node, promise, f"the elements 1..{count} give {results.tolist()}")
    return count > 1


def _check_reduces(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    """All elements, in another order, along the axes that get shorter."""
    data, result = inputs[0], run(inputs)[0]
    assert data is not None
    if result.size not in (0, 1) or not is_moderate(data):
        return False
    turned = run([data.reshape(-1)[::-1].reshape(data.shape), *inputs[1:]])[0]
    once, again = wide(result, turned)
    if not np.allclose(once, again, rtol=rounding(data), atol=rounding(data), equal_nan=True):
        raise refuted(node, "reduces", f"the elements in reverse order give {turned} instead of {result}")
    return data.size > 1


def _check_product(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    """f(2 x) - f(x) = f(x) - f(0), for each factor x."""
    assert traits.product is not None
    if traits.quantizes or not all(each is None or is_moderate(each) for each in inputs):
        return False  # rounds and saturates, or is not finite
    for index in traits.product:
        x = inputs[index] if index < len(inputs) else None
        if x is None:
            continue
        half = (x / 2).astype(x.dtype) if x.dtype.kind != "f" else x
        values = [run([*inputs[:index], each, *inputs[index + 1 :]])[0] for each in (half * 2, half, half * 0)]
        twice, once, none = wide(*values)
        size = 100 * rounding(values[1]) * max(1.0, float(np.abs(twice).max(initial=0)))
        if not np.allclose(twice - once, once - none, rtol=0, atol=size):
            raise refuted(node, f"product={traits.product}", f"the results are not affine in input {index}")
    return True


def _check_commutative(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    if len(inputs) < 2:
        return False
    for old, new in zip(run(inputs), run([inputs[1], inputs[0], *inputs[2:]]), strict=True):
        if old.shape != new.shape or not (same(old, new) | (old == new)).all():
            raise refuted(node, "commutative", f"swapped inputs give {new.reshape(-1)[:8]}, not {old.reshape(-1)[:8]}")
    return True


def _check_shape_only(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    data, random = inputs[0], np.random.default_rng(0)
    assert data is not None
    changed = replaced(data, np.ones(data.shape, bool), random)
    if not all(same(a, b).all() for a, b in zip(run(inputs), run([changed, *inputs[1:]]), strict=True)):
        raise refuted(node, "shape_only", "other elements of the same shape give other results")
    return data.size > 0


def _check_monotonic(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    """Checks real numbers only, since integers overflow."""
    data = inputs[0]
    if data is None or data.dtype.kind not in "fb" or any(each is not None and each.size > 1 for each in inputs[1:]):
        return False
    ascending = np.sort(data.reshape(-1)).reshape(data.shape)
    (result, *_) = run([ascending, *inputs[1:]])
    (results,) = wide(result.reshape(-1))
    results = results[~np.isnan(results)]
    steps = np.nan_to_num(results[1:], posinf=1e300, neginf=-1e300) - np.nan_to_num(
        results[:-1], posinf=1e300, neginf=-1e300
    )
    near = 4 * rounding(result) * np.abs(results[np.isfinite(results)]).max(initial=0.0)
    if (steps < -near).any() and (steps > near).any():
        raise refuted(node, "monotonic", f"ascending data gives results that rise and fall: {results[:8]}")
    return data.size > 2


def _check_keeps_zero(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    zeros = [None if x is None else np.zeros_like(x) if i < traits.data else x for i, x in enumerate(inputs)]
    if any(x is not None and (x.dtype.kind not in "fiub" or not x.size) for x in zeros[: traits.data]):
        return False  # the product of no elements is 1
    for index, result in enumerate(run(zeros)):
        if index == 0 and result.astype(bool).any():
            raise refuted(node, "keeps_zero", f"zeros give {result[result.astype(bool)][0]}")
    return True


def _check_range(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    """Checks real numbers only, since the smallest integer has no absolute value."""
    assert traits.range is not None
    (result, *_) = run(inputs)
    if result.dtype.kind != "f":
        return False
    low, high = traits.range
    near = rounding(result)
    outside = result[(result < low - near * abs(low)) | (result > high + near * abs(high))]
    if outside.size:
        raise refuted(node, f"range={traits.range}", f"it gives {outside[0]}")
    return bool(result.size)


def _check_addresses(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    """Numbers far beyond any length, and conditions beyond the data, which some of the nodes refuse."""
    index = traits.addresses
    given = inputs[index] if index is not None and index < len(inputs) else None
    if given is None or not given.size or given.dtype.kind not in "iub":
        return False
    wrong = np.ones(10_000, np.bool_) if given.dtype.kind == "b" else np.full_like(given, 10_000)
    try:
        run([wrong if at == index else each for at, each in enumerate(inputs)])
    except EngineError:
        return True
    return False  # some attributes permit any


def _check_growth(node: Node, traits: Traits, run: Run, inputs: Inputs) -> bool:
    """For large data, a root or logarithm is moderate; results that grow exceed f16, which some nodes must show."""
    data = inputs[0]
    if data is None or data.dtype != np.float32 or not data.size:
        return False
    size = _HUGE if traits.growth is Growth.SHRINKS else _LARGE
    (results,) = wide(run([np.full_like(data, size), *inputs[1:]])[0])
    most = float(np.abs(results[~np.isnan(results)]).max(initial=0.0))
    if traits.growth is Growth.SHRINKS and most > np.sqrt(_HUGE) * 10:
        raise refuted(node, "growth=SHRINKS", f"data of {size} gives {most}")
    return traits.growth is Growth.SHRINKS or most > _F16


CHECKS: Final[dict[str, Callable[[Node, Traits, Run, Inputs], bool]]] = {
    "pointwise": _check_pointwise,
    "broadcasts": _check_broadcasts,
    "moves": _check_moves,
    "reduces": _check_reduces,
    "product": _check_product,
    "commutative": _check_commutative,
    "shape_only": _check_shape_only,
    "monotonic": _check_monotonic,
    "keeps_zero": _check_keeps_zero,
    "range": _check_range,
    "addresses": _check_addresses,
    "growth": _check_growth,
}
