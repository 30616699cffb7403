"""`check_facts`: whether an operator keeps the promises that it declares, by the evaluation of one of its nodes.

    from engine.testing.facts import check_facts

    def test_swirl_keeps_its_promises():
        x = Parameter(f32, [3, 4], "x")
        check_facts(ops.create("Swirl", [x], domain="com.example"), [np.random.default_rng(0).normal(size=(3, 4))])

Inputs are changed, and the results that the operator promises to depend on nothing changed must stay. A single node
can refute a promise, not prove it: check nodes of all attributes, ranks and types. The values should differ from each
other, because elements are told apart by their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from engine.errors import EngineError
from engine.ir import ElementType, Node
from engine.ops import OpDef, all_ops
from engine.ops.axes import AxisMapping, Labels, axes_of, has_axes, is_axis_shared
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.reference import compile_node
from engine.ops.tensors import Array
from engine.ops.traits import Moves, Traits, traits_of
from engine.testing.random_nodes import MAKERS, random_node

Inputs: TypeAlias = Sequence[Array | None]
_Inputs: TypeAlias = "list[Array | None]"
Run: TypeAlias = Callable[[Sequence[Any]], tuple[Any, ...]]
_ROUNDS: Final = 3
"""How often elements are replaced, each time others."""


def check_facts(node: Node, inputs: Inputs) -> list[str]:
    """Compare the traits and axes of a node with its evaluation; the promises that the node could have refuted.

    `inputs`: the values of its inputs, None for an omitted one. Raises `AssertionError` with the promise and the
    elements that refute it.
    """
    traits, checked = traits_of(node), []
    if traits.random or not all(isinstance(each, (np.ndarray, type(None))) for each in inputs):
        return []
    run = _quiet(compile_node(node))
    inputs = [*inputs][: node.num_inputs]
    for name, check in _CHECKS.items():
        if getattr(traits, name) and check(node, traits, run, inputs):
            checked.append(name)
    if has_axes(node.op_type, node.domain) and _check_axes(node, run, inputs):
        checked.append("axes")
    return checked


def check_operator(op: OpDef) -> set[str]:
    """`check_facts` for the nodes that the engine has of an operator of ONNX; the promises that were compared."""
    return {name for node, inputs in nodes_of(op.name, op.domain) for name in check_facts(node, inputs)}


def checkable(op: OpDef) -> set[str]:
    """The promises of an operator that evaluations can refute."""
    promised = {name for name in _CHECKS if getattr(op.traits, name)}
    return {*promised, "axes"} if is_axis_shared(op.name, op.domain) else promised


def nodes_of(op_type: str, domain: str = "", count: int = 10) -> Iterator[tuple[Node, list[Array | None]]]:
    """Nodes of an operator with inputs: its cases, and random ones."""
    cases = [each for each in all_cases().values() if (each.domain, each.op_type) == (domain, op_type)]
    if not domain and op_type in MAKERS:
        cases.extend(random_node(op_type, seed) for seed in range(count))
    for case in cases:
        yield _node(case)


def operators_without_facts() -> list[str]:
    """The operators of ONNX of which nothing is declared, so that passes and devices assume nothing."""
    return [str(op) for op in all_ops() if op.traits == Traits() and not has_axes(op.name, op.domain)]


def _node(case: OperatorCase) -> tuple[Node, list[Array | None]]:
    return case.node(as_constants=True)[0], case.arrays()


def _quiet(run: Run) -> Run:
    def call(inputs: Sequence[Any]) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            return tuple(np.array(each) for each in run([None if x is None else x.copy() for x in inputs]))

    return call


def _refuted(node: Node, promise: str, detail: str) -> AssertionError:
    return AssertionError(f"{node} declares {promise}, but {detail}")


# -- each check: True if the node could have refuted the promise ------------------------------------------------------


def _data(traits: Traits, inputs: _Inputs) -> list[Array]:
    return [each for each in inputs[: traits.data] if each is not None]


def _check_pointwise(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    data = _data(traits, inputs)
    shape = np.broadcast_shapes(*(each.shape for each in data))
    before = run(inputs)
    for index, result in enumerate(before):
        if result.shape != shape:
            raise _refuted(node, "pointwise", f"output {index} has shape {result.shape}, and its data {shape}")
    size, random = int(np.prod(shape)), np.random.default_rng(0)
    for _ in range(_ROUNDS):
        kept = random.random(shape) < 0.5  # the places of results that must stay
        changed = [*inputs]
        for at, value in enumerate(data):
            read = np.zeros(value.size, bool)
            places = np.broadcast_to(np.arange(value.size).reshape(value.shape), shape)
            read[places[kept]] = True
            changed[at] = _replaced(value, ~read.reshape(value.shape), random)
        for index, (old, new) in enumerate(zip(before, run(changed), strict=True)):
            wrong = np.argwhere(~_same(old, new) & kept)
            if len(wrong):
                place = tuple(map(int, wrong[0]))
                raise _refuted(
                    node,
                    "pointwise",
                    f"element {place} of output {index} changed from {old[place]} to {new[place]} with elements of "
                    "other places",
                )
    return size > 1


def _check_broadcasts(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    data = _data(traits, inputs)
    shape = np.broadcast_shapes(*(each.shape for each in data))
    for result in run(inputs):
        if result.shape != shape:
            raise _refuted(node, "broadcasts", f"shapes {[each.shape for each in data]} give {result.shape}")
    return len({each.shape for each in data}) > 1


def _check_moves(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    """Numbers all elements, so that each result tells which of them it is."""
    data = _data(traits, inputs)
    count = sum(each.size for each in data)
    if any(count > _largest(each.dtype) for each in data):
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
        raise _refuted(node, f"moves={traits.moves.name}", f"of the elements 1..{count}, it gives {others[0]}")
    places, times = np.unique(results, return_counts=True)
    promise = f"moves={traits.moves.name}"
    if traits.moves < Moves.REPETITION and (times > 1).any():
        raise _refuted(node, promise, f"element {places[times > 1][0]} of 1..{count} is in the results twice")
    if traits.moves < Moves.SELECTION and len(places) != count:
        raise _refuted(node, promise, f"only {len(places)} of {count} elements are in the results")
    if traits.moves is Moves.VIEW and (results != np.arange(1, count + 1)).any():
        raise _refuted(node, promise, f"the elements 1..{count} give {results.tolist()}")
    return count > 1


def _check_reduces(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    """All elements, in another order, along the axes that get shorter."""
    data, result = inputs[0], run(inputs)[0]
    assert data is not None
    if result.size not in (0, 1) or not _is_moderate(data):
        return False
    turned = run([data.reshape(-1)[::-1].reshape(data.shape), *inputs[1:]])[0]
    once, again = _wide(result, turned)
    if not np.allclose(once, again, rtol=_rounding(data), atol=_rounding(data), equal_nan=True):
        raise _refuted(node, "reduces", f"the elements in reverse order give {turned} instead of {result}")
    return data.size > 1


def _check_product(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    """f(2 x) - f(x) = f(x) - f(0), for each factor x."""
    assert traits.product is not None
    if traits.quantizes or not all(each is None or _is_moderate(each) for each in inputs):
        return False  # rounds and saturates, or is not finite
    for index in traits.product:
        x = inputs[index] if index < len(inputs) else None
        if x is None:
            continue
        half = (x / 2).astype(x.dtype) if x.dtype.kind != "f" else x
        values = [run([*inputs[:index], each, *inputs[index + 1 :]])[0] for each in (half * 2, half, half * 0)]
        twice, once, none = _wide(*values)
        size = 100 * _rounding(values[1]) * max(1.0, float(np.abs(twice).max(initial=0)))
        if not np.allclose(twice - once, once - none, rtol=0, atol=size):
            raise _refuted(node, f"product={traits.product}", f"the results are not affine in input {index}")
    return True


def _check_commutative(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    if len(inputs) < 2:
        return False
    for old, new in zip(run(inputs), run([inputs[1], inputs[0], *inputs[2:]]), strict=True):
        if old.shape != new.shape or not (_same(old, new) | (old == new)).all():
            raise _refuted(node, "commutative", f"swapped inputs give {new.reshape(-1)[:8]}, not {old.reshape(-1)[:8]}")
    return True


def _check_shape_only(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    data, random = inputs[0], np.random.default_rng(0)
    assert data is not None
    changed = _replaced(data, np.ones(data.shape, bool), random)
    if not all(_same(a, b).all() for a, b in zip(run(inputs), run([changed, *inputs[1:]]), strict=True)):
        raise _refuted(node, "shape_only", "other elements of the same shape give other results")
    return data.size > 0


def _check_monotonic(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    """Real numbers alone: integers overflow."""
    data = inputs[0]
    if data is None or data.dtype.kind not in "fb" or any(each is not None and each.size > 1 for each in inputs[1:]):
        return False
    ascending = np.sort(data.reshape(-1)).reshape(data.shape)
    (result, *_) = run([ascending, *inputs[1:]])
    (results,) = _wide(result.reshape(-1))
    results = results[~np.isnan(results)]
    steps = np.nan_to_num(results[1:], posinf=1e300, neginf=-1e300) - np.nan_to_num(
        results[:-1], posinf=1e300, neginf=-1e300
    )
    near = 4 * _rounding(result) * np.abs(results[np.isfinite(results)]).max(initial=0.0)
    if (steps < -near).any() and (steps > near).any():
        raise _refuted(node, "monotonic", f"ascending data gives results that rise and fall: {results[:8]}")
    return data.size > 2


def _check_keeps_zero(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    zeros = [None if x is None else np.zeros_like(x) if i < traits.data else x for i, x in enumerate(inputs)]
    if any(x is not None and (x.dtype.kind not in "fiub" or not x.size) for x in zeros[: traits.data]):
        return False  # of no elements, a product is 1
    for index, result in enumerate(run(zeros)):
        if index == 0 and result.astype(bool).any():
            raise _refuted(node, "keeps_zero", f"zeros give {result[result.astype(bool)][0]}")
    return True


def _check_range(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
    """Of real numbers: the least integer has no absolute value."""
    assert traits.range is not None
    (result, *_) = run(inputs)
    if result.dtype.kind != "f":
        return False
    low, high = traits.range
    near = _rounding(result)
    outside = result[(result < low - near * abs(low)) | (result > high + near * abs(high))]
    if outside.size:
        raise _refuted(node, f"range={traits.range}", f"it gives {outside[0]}")
    return bool(result.size)


def _check_addresses(node: Node, traits: Traits, run: Run, inputs: _Inputs) -> bool:
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


_CHECKS: Final[dict[str, Callable[[Node, Traits, Run, _Inputs], bool]]] = {
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
}


# -- axes -------------------------------------------------------------------------------------------------------------


def _check_axes(node: Node, run: Run, inputs: _Inputs) -> bool:
    """For each axis that is named in inputs and outputs: slices in another order, and a slice beside other ones."""
    mapping = axes_of(node)
    if mapping is None:
        return False
    before = run(inputs)
    shared = {name for labels in mapping.inputs for name in labels or () if name}
    shared &= {name for labels in mapping.outputs for name in labels or ()}
    checked = False
    for name in sorted(shared):
        lengths = {array.shape[axis] for array, axis in _places(name, mapping.inputs, inputs)} - {1}
        made = {array.shape[axis] for array, axis in _places(name, mapping.outputs, before)}
        if len(lengths | (made - {1} if lengths else set())) > 1:
            raise _refuted(
                node, f"axis {name}", f"it has lengths {sorted(lengths)} in inputs and {sorted(made)} in outputs"
            )
        if lengths and min(lengths) > 1:
            length = lengths.pop()
            _check_order(node, name, length, mapping, run, inputs, before)
            _check_slice(node, name, length, mapping, run, inputs, before)
            checked = True
    return checked


def _check_order(
    node: Node,
    name: str,
    length: int,
    mapping: AxisMapping,
    run: Run,
    inputs: list[Array | None],
    before: Sequence[Array],
) -> None:
    order = np.roll(np.arange(length), 1)
    after = run([_taken(array, labels, name, order) for array, labels in zip(inputs, mapping.inputs, strict=True)])
    for index, (old, new, labels) in enumerate(zip(before, after, mapping.outputs, strict=True)):
        expected = _taken(old, labels, name, order)
        assert expected is not None
        if name in (labels or ()) and not _is_near(new, expected):
            raise _refuted(
                node, f"axis {name}", f"slices in the order {order.tolist()} do not give those of output {index} in it"
            )


def _check_slice(
    node: Node,
    name: str,
    length: int,
    mapping: AxisMapping,
    run: Run,
    inputs: list[Array | None],
    before: Sequence[Array],
) -> None:
    random, kept = np.random.default_rng(0), length // 2
    changed = [*inputs]
    for at, (array, labels) in enumerate(zip(inputs, mapping.inputs, strict=True)):
        if array is not None and labels is not None and name in labels and array.shape[labels.index(name)] == length:
            place = np.arange(length).reshape([-1 if each == name else 1 for each in labels])
            changed[at] = _replaced(array, np.broadcast_to(place != kept, array.shape), random)
    for index, (old, new, labels) in enumerate(zip(before, run(changed), mapping.outputs, strict=True)):
        if labels is not None and name in labels:
            axis = labels.index(name)
            if old.shape != new.shape or not _is_near(new.take(kept, axis), old.take(kept, axis)):
                raise _refuted(
                    node, f"axis {name}", f"slice {kept} of output {index} changed with other slices of the inputs"
                )


def _places(name: str, labels: Sequence[Labels], arrays: Sequence[Array | None]) -> list[tuple[Array, int]]:
    """The arrays that have an axis of this name, and its place."""
    found = zip(arrays, labels, strict=True)
    return [(array, each.index(name)) for array, each in found if array is not None and each and name in each]


def _taken(array: Array | None, labels: Labels, name: str, order: Array) -> Array | None:
    if array is None or labels is None or name not in labels or array.shape[labels.index(name)] == 1:
        return array
    return array.take(order, labels.index(name))


def _is_near(a: Array, b: Array) -> bool:
    """Equal but for the order of sums."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind not in "fV":
        return bool((a == b).all())
    x, y = _wide(a, b)
    size = np.abs(y[np.isfinite(y)]).max(initial=0.0)
    return np.allclose(x, y, rtol=0, atol=_rounding(a) * size, equal_nan=True)


# -- numbers ----------------------------------------------------------------------------------------------------------


def _replaced(value: Array, where: Array, random: np.random.Generator) -> Array:
    """The array with other elements at some places: elements of other places, so that they are valid ones."""
    others = random.permutation(value.reshape(-1)).reshape(value.shape)
    return np.where(where, others, value).astype(value.dtype)


def _same(a: Array, b: Array) -> Array:
    """Where elements are equal, bit by bit but for the sign and the payload of NaN."""
    if a.dtype.kind not in "fV":
        return np.asarray(a == b)
    x, y = _wide(a, b)
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def _wide(*values: Array) -> list[Array]:
    return [each.astype(np.float64) for each in values]


def _is_moderate(value: Array) -> bool:
    """Whether sums and products of the elements neither overflow nor are NaN."""
    return value.dtype.kind in "fiu" and bool((np.abs(value.astype(np.float64)) < 1000).all())


def _largest(dtype: np.dtype[Any]) -> int:
    """The number up to which a type holds all integers."""
    if dtype.kind == "f":
        return int(2 ** (np.finfo(dtype).nmant + 1))
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 0


def _rounding(value: Array) -> float:
    """A relative tolerance for a few operations; 0 for integers."""
    if value.dtype.kind not in "fV" or not ElementType.from_numpy(value.dtype).is_real:
        return 0.0
    return 16 * float(ml_dtypes.finfo(value.dtype).eps)  # type: ignore[no-untyped-call]
