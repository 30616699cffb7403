"""`CausalMaskDecomposition`: constant masks of a band of keys become comparisons of positions."""

from __future__ import annotations

from typing import Final

import numpy as np

from engine import ops
from engine.ir import Constant, Model, Node, boolean
from engine.ops.tensors import Array
from engine.passes.base import ModelPass
from engine.passes.runtime_info import copy_runtime_info
from engine.startup import dataclass

_MIN_KEYS: Final = 2
_MAX_BYTES: Final = 64 << 20
_MASKING: Final = frozenset({"Add", "And", "Where"})
_ATTENTIONS: Final = frozenset({"Attention", "FusedAttention"})
_MASK: Final = 3
"""The input of an attention that is a mask."""


@dataclass(frozen=True, slots=True)
class _Band:
    """Query i sees key k if low <= k - i <= high; None means no bound. Hidden keys have the value `hidden`."""

    low: int | None
    high: int | None
    hidden: float | None


class CausalMaskDecomposition(ModelPass):
    """Computes constant masks [..., queries, keys] in which each query sees the keys at some distances.

    The mask then depends on lengths by numbers alone, so that plans for other lengths have the same form: an And, Where
    or addition reads `k - i <= n`. Folding constants would undo it, so it runs last.
    """

    def run_on_model(self, model: Model) -> bool:
        """One walk over the constants of `model`."""
        changed = False
        for node in model.ordered_nodes():
            if not isinstance(node, Constant) or node.byte_size > _MAX_BYTES or not _is_mask(node):
                continue
            shape = node.output(0).shape.get_shape()
            if len(shape) < 2 or shape[-1] < _MIN_KEYS or any(length != 1 for length in shape[:-2]):
                continue
            if node.element_type is not boolean and node.element_type.name not in ("f32", "f64"):
                continue
            band = _band(node.data.reshape(shape[-2:]), is_boolean=node.element_type is boolean)
            if band is None or self.transformation_callback(node):
                continue
            made = _computed(node, band)
            # A constant has no origin in the user's model; its readers have.
            copy_runtime_info([target.node for target in node.output(0).target_inputs], made)
            node.output(0).replace(made[-1].output(0))
            self.rewrites += 1
            changed = True
        return changed


def _is_mask(constant: Constant) -> bool:
    """Whether a constant is read as a mask is; the data of others may no longer be available."""
    targets = constant.output(0).target_inputs
    return bool(targets) and all(
        target.node.op_type in _MASKING or (target.node.op_type in _ATTENTIONS and target.index == _MASK)
        for target in targets
    )


def _band(mask: Array, *, is_boolean: bool) -> _Band | None:
    """The band that a mask has; None if it has none, or hides nothing."""
    hidden: float | None = None
    allowed = mask
    if not is_boolean:
        allowed = mask == 0
        others = mask[~allowed]
        if not others.size or not (others == others[0]).all() or not others[0] < 0:
            return None
        hidden = float(others[0])
    if not allowed.any() or allowed.all():
        return None
    queries, keys = allowed.shape
    distance = np.arange(keys) - np.arange(queries)[:, None]
    low, high = int(distance[allowed].min()), int(distance[allowed].max())
    below, above = distance >= low, distance <= high
    if np.array_equal(allowed, above):
        return _Band(None, high, hidden)
    if np.array_equal(allowed, below):
        return _Band(low, None, hidden)
    return _Band(low, high, hidden) if np.array_equal(allowed, below & above) else None


def _computed(constant: Constant, band: _Band) -> list[Node]:
    """The nodes that compute a mask, the mask last."""
    shape = constant.output(0).shape.get_shape()
    ones = [1] * (len(shape) - 2)
    keys = np.arange(shape[-1], dtype=np.int64).reshape([*ones, 1, shape[-1]])
    queries = np.arange(shape[-2], dtype=np.int64).reshape([*ones, shape[-2], 1])
    distance = ops.Sub(Constant(keys), Constant(queries))
    bounds: list[Node] = []
    if band.high is not None:
        bounds.append(ops.LessOrEqual(distance, Constant(np.array(band.high, np.int64))))
    if band.low is not None:
        bounds.append(ops.GreaterOrEqual(distance, Constant(np.array(band.low, np.int64))))
    if len(bounds) == 2:
        bounds.append(ops.And(*bounds))
    if band.hidden is not None:
        zero, hidden = (Constant(np.array(value, constant.element_type.numpy)) for value in (0.0, band.hidden))
        bounds.append(ops.Where(bounds[-1], zero, hidden))
    return [distance, *bounds]
