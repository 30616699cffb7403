"""Upgrades of Softmax, LogSoftmax and Hardmax, which treated their input as a matrix before 13."""

from __future__ import annotations

from engine.onnx.upgrades.call import OldCall, Upgraded, upgrade
from engine.onnx.upgrades.emit import emit, rank_of, reshape_like


@upgrade("Hardmax", "LogSoftmax", "Softmax", since=11, to=13)
def _over_one_axis(call: OldCall) -> Upgraded:
    """All dimensions from `axis` on were flattened to a row; from 13 on the operator works along one dimension.

    If at most one of these dimensions is longer than 1, the row is along that dimension.
    """
    x = call.input(0)
    axis = call.integer("axis", 1)
    rank = rank_of(x)
    if rank is not None:
        first = axis + rank if axis < 0 else axis
        if not 0 <= first <= rank:
            call.invalid(f"axis {axis} is out of range for rank {rank}; expected {-rank}..{rank}")
        long = [dim for dim in range(first, rank) if x.shape[dim] != 1]
        if first < rank and len(long) <= 1:
            return call.at(13, axis=long[0] if long else rank - 1)
    return [reshape_like(emit(call.op_type, emit("Flatten", x, axis=axis), axis=-1), x)]
