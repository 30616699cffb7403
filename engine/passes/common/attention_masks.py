"""Additive masks of attention scores, as inputs or attributes of the operator `Attention`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from engine.ir import Dimension, ElementType, Node, Output
from engine.ops.tensors import Array
from engine.ops.traits import traits_of
from engine.passes.fusion import constant_data, dims_of, operation, same_length, scalar
from engine.startup import dataclass

# Below this magnitude, a mask's value plus a score cannot overflow: the largest float16 is 65504.
_LOWEST = {"f16": -6.0e4}
# At or below this, a masked score has zero probability, whatever the scores are.
_FORBIDS = {"f16": -3.0e4}


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask as the operator takes it: an input, the attribute `is_causal`, or none."""

    value: Output | None = None
    is_causal: bool = False
    absorbed: list[Node] = field(default_factory=list)


def as_mask(value: Output, scores: Sequence[Dimension], element_type: ElementType, is_relaxed: bool) -> Mask | None:
    """`value`, which is added to scores of the shape [B, H, S, T], as a mask; None if the operator would differ.

    The operator would differ if the mask broadcasts the scores to a larger shape, if its last axis is broadcast (the
    operator would forbid the missing keys) or, unless `is_relaxed`, if all keys of a row could be forbidden.
    """
    dims = dims_of(value)
    if dims is None or not 2 <= len(dims) <= 4 or value.element_type is not element_type:
        return None
    if not same_length(dims[-1], scores[3]):
        return None
    if not all(dim == 1 or same_length(dim, score) for dim, score in zip(dims[::-1], scores[::-1], strict=False)):
        return None
    data = constant_data(value)
    if data is not None:
        wide = data.astype(np.float64)
        if np.isnan(wide).any():
            return None
        if not wide.any():
            return Mask()
        if _is_causal(wide, _FORBIDS.get(element_type.name, -1e30)):
            return Mask(is_causal=True)
        may_forbid = bool((wide.max(axis=-1) < _LOWEST.get(element_type.name, -np.finfo(np.float64).max)).any())
    else:
        limits = _limits(value)
        may_forbid = limits is None or limits[0] < _LOWEST.get(element_type.name, -np.finfo(np.float64).max)
    if not may_forbid:
        return Mask(value)
    return _as_condition(value) if is_relaxed else None


def _as_condition(value: Output) -> Mask:
    """The condition of Where(condition, 0, -inf); any other mask unchanged."""
    choice = operation(value, "Where")
    if choice is not None and scalar(choice.input_value(1)) == 0 and scalar(choice.input_value(2)) == -np.inf:
        condition = choice.input_value(0)
        if (dims_of(condition) or ()) == (dims_of(value) or ()):
            return Mask(condition, absorbed=[choice])
    return Mask(value)


def _is_causal(mask: Array, forbids: float) -> bool:
    """True if row i allows, by 0, exactly the keys up to i, and forbids the others."""
    if any(length != 1 for length in mask.shape[:-2]):
        return False
    rows, columns = mask.shape[-2], mask.shape[-1]
    table = mask.reshape(rows, columns)
    allowed = np.tri(rows, columns, dtype=bool)
    return bool(rows > 1 and (table[allowed] == 0).all() and (table[~allowed] <= forbids).all())


def _limits(value: Output, depth: int = 0) -> tuple[float, float] | None:
    """Finite bounds of all elements of `value`; None if there are none, or they cannot be determined."""
    node = value.node
    data = constant_data(value)
    if data is not None:
        if not data.size or not np.isfinite(data.astype(np.float64)).all():
            return None
        return float(data.min()), float(data.max())
    if depth > 16 or node.domain:
        return None
    if node.op_type == "Cast":
        source = node.input_value(0)
        if source.element_type.name == "bool":
            return 0.0, 1.0
        return _limits(source, depth + 1) if value.element_type.name in ("f32", "f64", "bf16") else None
    traits = traits_of(node)
    if traits.moves is not None and traits.data == 1 and not traits.fills:
        return _limits(node.input_value(0), depth + 1)
    if node.op_type not in ("Where", "Add", "Sub", "Mul"):
        return None
    first = 1 if node.op_type == "Where" else 0
    a, b = (_limits(node.input_value(first + i), depth + 1) for i in range(2))
    if a is None or b is None:
        return None
    return _combined(node.op_type, a, b, value.element_type)


def _combined(
    op_type: str, a: tuple[float, float], b: tuple[float, float], element_type: ElementType
) -> tuple[float, float] | None:
    if op_type == "Where":
        return min(a[0], b[0]), max(a[1], b[1])
    if op_type == "Mul":
        ends = [x * y for x in a for y in b]
    else:
        ends = [x + y if op_type == "Add" else x - y for x in a for y in b]
    with np.errstate(over="ignore"):
        if not np.isfinite(np.array(ends).astype(element_type.numpy).astype(np.float64)).all():
            return None
    return min(ends), max(ends)
