"""Upgrades of operators that move data: shapes, axes and counts become inputs."""

from __future__ import annotations

import numpy as np

from engine.ir import Output, i64
from engine.onnx.upgrades.call import OldCall, upgrade
from engine.onnx.upgrades.emit import (
    cast,
    constant_value,
    emit,
    i64_scalar,
    i64s,
    rank_as_value,
    rank_of,
    scalar_like,
)


@upgrade("Reshape", since=1, to=5)
def _shape_input(call: OldCall) -> OldCall:
    if "shape" not in call.attributes:
        call.invalid("attribute `shape` is missing")
    shape = i64s(call.integers("shape"))
    return call.at(5, drop=["shape", "consumed_inputs"], inputs=[call.input(0), shape])


@upgrade("Squeeze", "Unsqueeze", since=11, to=13)
def _axes_input(call: OldCall) -> OldCall:
    """Squeeze without axes drops every dimension of length 1 in both versions."""
    axes = call.integers("axes")
    if call.op_type == "Unsqueeze" and "axes" not in call.attributes:
        call.invalid("attribute `axes` is missing")
    return call.at(13, drop=["axes"], inputs=[call.input(0), i64s(axes)] if axes else [call.input(0)])


@upgrade("Concat", since=1, to=4)
def _concat_axis(call: OldCall) -> OldCall:
    """The default axis was 1."""
    return call.at(4, axis=call.integer("axis", 1))


@upgrade("Slice", since=1, to=10)
def _slice_inputs(call: OldCall) -> OldCall:
    """Without axes the first dimensions are sliced, perhaps not all of them, so their axes are stated."""
    starts, ends = call.integers("starts"), call.integers("ends")
    axes = call.integers("axes") or tuple(range(len(starts)))
    if not len(starts) == len(ends) == len(axes):
        call.invalid(f"{len(starts)} starts, {len(ends)} ends and {len(axes)} axes; expected equal numbers")
    inputs = [call.input(0), i64s(starts), i64s(ends), i64s(axes)]
    return call.at(10, drop=["starts", "ends", "axes"], inputs=inputs)


@upgrade("Split", since=1, to=2)
def _split_axis(call: OldCall) -> OldCall:
    """The axis had no default, and the lengths could be an input, as they are again from 13 on."""
    if "axis" not in call.attributes:
        call.unsupported("Split-1 has no default axis", "set attribute `axis`")
    if not call.has_input(1):
        return call.at(2)
    return call.at(13, drop=["split"], inputs=[call.input(0), cast(call.input(1), i64)])


@upgrade("Split", since=11, to=13)
def _split_lengths_input(call: OldCall) -> OldCall:
    lengths = call.integers("split")
    inputs = [call.input(0), i64s(lengths)] if lengths else [call.input(0)]
    return call.at(13, drop=["split"], inputs=inputs)


@upgrade("Split", since=13, to=18)
def _split_count(call: OldCall) -> OldCall:
    """Without lengths there were as many parts as outputs, of equal lengths; from 18 on the last one may be shorter."""
    if call.has_input(1):
        return call.at(18)
    x, axis, count = call.input(0), call.integer("axis", 0), call.num_outputs
    rank = rank_of(x)
    length = x.shape[axis] if rank is not None and -rank <= axis < rank else None
    if length is None or length.is_dynamic:
        whole = emit("Gather", emit("Shape", x), i64s([axis]))
        return call.at(18, inputs=[x, emit("Expand", emit("Div", whole, i64s([count])), i64s([count]))])
    if length.min % count:
        call.invalid(f"axis {axis} of length {length} has no {count} equal parts; expected `split`, their lengths")
    return call.at(18, num_outputs=count)


@upgrade("Tile", since=1, to=6)
def _tile_repeats(call: OldCall) -> OldCall:
    """One axis was tiled: count and axis were scalars of the data's type."""
    x, count, axis = call.input(0), call.input(1), call.input(2)
    rank, known_count, known_axis = rank_of(x), constant_value(count), constant_value(axis)
    if rank is None or known_count is None or known_axis is None:
        return call.at(6, inputs=[x, _repeats(x, cast(count, i64), cast(axis, i64))])
    index = int(known_axis.item())
    if not -rank <= index < rank:
        call.invalid(f"axis {index} is out of range for rank {rank}; expected {-rank}..{rank - 1}")
    repeats = np.ones(rank, np.int64)
    repeats[index] = int(known_count.item())
    return call.at(6, inputs=[x, i64s(repeats.tolist())])


def _repeats(x: Output, count: Output, axis: Output) -> Output:
    """A vector of ones, as long as x's rank, with `count` at `axis`, which may be negative."""
    rank = rank_as_value(x)
    axes = emit("Range", i64_scalar(0), rank, i64_scalar(1))
    return emit("Where", emit("Equal", axes, emit("Mod", axis, rank)), count, i64_scalar(1))


@upgrade("Pad", since=1, to=2)
def _pad_attribute(call: OldCall) -> OldCall:
    """`paddings` became `pads`.

    The specification of Pad-1 contradicts itself: its attribute lists all begins, then all ends, like `pads`; its
    example interleaves them, like the exporters of its time. So only lists that mean the same both ways are accepted.
    """
    paddings = call.integers("paddings")
    half = len(paddings) // 2
    if len(paddings) % 2 or paddings[0::2] != paddings[:half] or paddings[1::2] != paddings[half:]:
        call.unsupported(
            f"paddings {list(paddings)} are ambiguous: writers of opset 1 store either all begins, then all ends, or "
            "begin and end of each axis in turn",
            "write the model with Pad-2 (`pads`: all begins, then all ends)",
        )
    return call.at(2, drop=["paddings"], pads=paddings)


@upgrade("Pad", since=2, to=11)
def _pad_inputs(call: OldCall) -> OldCall:
    x, value = call.input(0), call.number("value", 0.0)
    inputs = [x, i64s(call.integers("pads"))]
    if value != 0.0 and call.text("mode", "constant") == "constant":
        inputs.append(scalar_like(value, x))
    return call.at(11, drop=["pads", "value"], inputs=inputs)


@upgrade("TopK", since=1, to=10)
def _topk_count_input(call: OldCall) -> OldCall:
    return call.at(10, drop=["k"], inputs=[call.input(0), i64s([call.integer("k")])])


@upgrade("Scatter", since=9, to=11)
def _scatter_successor(call: OldCall) -> OldCall:
    """The same operator under another name."""
    return call.at(11, op_type="ScatterElements")
