"""The check of `engine.testing.facts` of axes: slices in another order, and a slice beside other ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.ir import Node
from engine.ops.axes import AxisMapping, Labels, axes_of
from engine.ops.tensors import Array
from engine.testing.perturbed import Inputs, Run, refuted, replaced, rounding, wide


def check_axes(node: Node, run: Run, inputs: Inputs) -> bool:
    """Check each axis that is named in inputs and outputs; whether there is one of more than one slice."""
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
            raise refuted(
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
            raise refuted(
                node, f"axis {name}", f"slices in the order {order.tolist()} do not give output {index} in that order"
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
            changed[at] = replaced(array, np.broadcast_to(place != kept, array.shape), random)
    for index, (old, new, labels) in enumerate(zip(before, run(changed), mapping.outputs, strict=True)):
        if labels is not None and name in labels:
            axis = labels.index(name)
            if old.shape != new.shape or not _is_near(new.take(kept, axis), old.take(kept, axis)):
                raise refuted(
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
    """Whether arrays are equal, apart from rounding in another order of sums."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind not in "fV":
        return bool((a == b).all())
    x, y = wide(a, b)
    size = np.abs(y[np.isfinite(y)]).max(initial=0.0)
    return np.allclose(x, y, rtol=0, atol=rounding(a) * size, equal_nan=True)
