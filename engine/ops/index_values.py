"""Indices, labels, positions and lengths that are constants: refused if they are out of range.

The same rules explain the failure of an evaluation, whose inputs have become known: see `engine.ops.refusal`.
Specs are imported with their families, which few models need.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from engine.ir import Constant, Dimension, Node, PartialShape, TensorType
from engine.ops.gather import GatherNDSpec, GatherSpec, ReverseSequenceSpec, ScatterElementsSpec, TensorScatterSpec
from engine.ops.registry import attribute, restricts
from engine.ops.rules import fail, normalize_axis
from engine.ops.tensors import Array

_ML: Final = "ai.onnx.ml"


def _constant(node: Node, index: int) -> Array | None:
    """The value of input `index` if it is a constant with elements."""
    source = node.input_value(index).node if node.has_input(index) else None
    return source.data if isinstance(source, Constant) and source.data.size else None


def _shape(node: Node, index: int) -> PartialShape | None:
    """The shape of input `index`, if its rank is known."""
    value_type = node.input_value(index).type if node.has_input(index) else None
    is_known = isinstance(value_type, TensorType) and value_type.shape.rank.is_static
    return value_type.shape if is_known and isinstance(value_type, TensorType) else None


def _require(node: Node, what: str, found: Array, low: int, high: int, of: str) -> None:
    """Fail if a value is not in low..high."""
    least, most = found.min().item(), found.max().item()
    if not low <= least <= most <= high:  # nor is NaN
        worst = most if most > high else least
        worst = int(worst) if np.isfinite(worst) else worst
        fail(node, f"{what} {worst} is out of range for {of}; expected {low}..{high}")


def _require_index(node: Node, found: Array, length: Dimension, what: str = "index") -> None:
    """Fail if a value is not in -length..length - 1."""
    if length.max is not None:
        _require(node, what, found, -length.max, length.max - 1, f"a dimension of {length}")


@restricts("Gather", "GatherElements", "ScatterElements")
def _restrict_elements(node: Node) -> None:
    indices, shape = _constant(node, 1), _shape(node, 0)
    if indices is None or shape is None:
        return
    is_gather = node.op_type != "ScatterElements"
    axis = GatherSpec.of(node).axis if is_gather else ScatterElementsSpec.of(node).axis
    _require_index(node, indices, shape[axis])


@restricts("GatherND", "ScatterND")
def _restrict_slices(node: Node) -> None:
    indices, shape = _constant(node, 1), _shape(node, 0)
    if indices is None or shape is None:
        return
    first = GatherNDSpec.of(node).batch_dims if node.op_type == "GatherND" else 0
    for place in range(indices.shape[-1]):
        _require_index(node, indices[..., place], shape[first + place])


@restricts("TensorScatter")
def _restrict_steps(node: Node) -> None:
    starts, past, update, spec = _constant(node, 2), _shape(node, 0), _shape(node, 1), TensorScatterSpec.of(node)
    if starts is None or past is None or update is None:
        return
    length, steps = past[spec.axis], update[spec.axis].min if spec.mode == "linear" else 1
    if length.max is not None:
        _require(node, "write_indices", starts, 0, length.max - max(steps, 1),
                 f"{steps} steps and a dimension of {length}")  # fmt: skip


@restricts("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _restrict_labels(node: Node) -> None:
    from engine.ops.losses import LossSpec

    labels, scores = _constant(node, 1), _shape(node, 0)
    if labels is None or scores is None:
        return
    ignored = LossSpec.of(node).ignore_index
    counted = labels if ignored is None else labels[labels != ignored]
    if counted.size:
        _require_index(node, counted, scores[1], "label")


@restricts("RotaryEmbedding")
def _restrict_positions(node: Node) -> None:
    positions, cache = _constant(node, 3), _shape(node, 1)
    if positions is not None and cache is not None:
        _require_index(node, positions, cache[0], "position")


@restricts("MaxUnpool")
def _restrict_unpooled(node: Node) -> None:
    from engine.ops.pool import MaxUnpoolSpec

    places, target, shape = _constant(node, 1), _constant(node, 2), _shape(node, 0)
    if target is not None:
        lengths = target.reshape(-1).tolist()
        fits = shape is None or (len(lengths) == len(shape) and all(map(Dimension.accepts, shape.dims[:2], lengths)))
        if min(lengths) < 0 or not fits:
            expected = (
                "lengths of 0 or more" if shape is None else f"[{shape[0]}, {shape[1]}, ...], of rank {len(shape)}"
            )
            fail(node, f"output_shape is {lengths}; expected {expected}")
    elif node.has_input(2) or shape is None or shape.is_dynamic:
        return
    else:
        lengths = list(MaxUnpoolSpec.of(node).unpooled_shape(shape.get_shape()))
    if places is not None:
        count = prod(lengths)
        _require(node, "index", places, -count, count - 1, f"a result of {count} elements")


@restricts("RoiAlign")
def _restrict_batches(node: Node) -> None:
    samples, shape = _constant(node, 2), _shape(node, 0)
    if samples is not None and shape is not None and shape[0].max is not None:
        _require(node, "batch index", samples, 0, shape[0].max - 1, f"{shape[0]} samples")


@restricts("MaxRoiPool")
def _restrict_regions(node: Node) -> None:
    regions, shape = _constant(node, 1), _shape(node, 0)
    if regions is not None and shape is not None and shape[0].max is not None:
        _require(node, "batch index", regions[:, 0], 0, shape[0].max - 1, f"{shape[0]} samples")


@restricts("Compress")
def _restrict_condition(node: Node) -> None:
    condition, shape = _constant(node, 1), _shape(node, 0)
    if condition is None or shape is None:
        return
    axis = attribute(node, "axis")
    if axis is not None:
        length = shape[normalize_axis(node, axis, len(shape))].max
    else:
        length = shape.size() if shape.is_static else None
    chosen = np.flatnonzero(condition)
    if length is not None and chosen.size and chosen[-1] >= length:
        fail(node, f"condition chooses element {chosen[-1]} of {length}")


@restricts("ArrayFeatureExtractor", domain=_ML)
def _restrict_features(node: Node) -> None:
    features, shape = _constant(node, 1), _shape(node, 0)
    if features is not None and shape is not None and len(shape):
        _require_index(node, features, shape[-1], "feature")


@restricts("Trilu")
def _restrict_diagonal(node: Node) -> None:
    diagonal = _constant(node, 1)
    if diagonal is not None and diagonal.size != 1:
        fail(node, f"k has shape {list(diagonal.shape)}; expected one number")


@restricts("CenterCropPad")
def _restrict_lengths(node: Node) -> None:
    lengths = _constant(node, 1)
    if lengths is not None and lengths.min() < 0:
        fail(node, f"shape is {lengths.tolist()}; expected lengths of 0 or more")


@restricts("Squeeze")
def _restrict_axes(node: Node) -> None:
    axes, shape = _constant(node, 1), _shape(node, 0)
    if axes is not None and shape is not None and len(set((axes % max(len(shape), 1)).tolist())) < axes.size:
        fail(node, f"axes are {axes.tolist()}; expected each axis once")


@restricts("Expand")
def _restrict_target(node: Node) -> None:
    lengths = _constant(node, 1)
    if lengths is not None and lengths.min() < 0:
        fail(node, f"shape is {lengths.tolist()}; expected lengths of 0 or more")


@restricts("AffineGrid")
def _restrict_grid(node: Node) -> None:
    size, theta = _constant(node, 1), _shape(node, 0)
    if size is not None and (size.min() < 0 or 0 in size[2:]):
        fail(node, f"size is {size.tolist()}; expected lengths of 0 or more, and in space of 1 or more")
    if size is not None and theta is not None and not theta[0].accepts(int(size[0])):
        fail(node, f"size is {size.tolist()}, and theta has {theta[0]} samples; expected equal numbers")


@restricts("ReverseSequence")
def _restrict_reversed(node: Node) -> None:
    counts, shape = _constant(node, 1), _shape(node, 0)
    length = None if shape is None else shape[ReverseSequenceSpec.of(node).time_axis].max
    if counts is not None and length is not None:
        _require(node, "a sequence length", counts, 0, length, f"sequences of {length} steps")


@restricts("RNN", "GRU", "LSTM")
def _restrict_sequences(node: Node) -> None:
    from engine.ops.recurrent import RecurrentSpec

    counts, shape = _constant(node, 4), _shape(node, 0)
    length = None if shape is None else shape[1 if RecurrentSpec.of(node).batch_first else 0].max
    if counts is not None and length is not None:
        _require(node, "a sequence length", counts, 0, length, f"sequences of {length} steps")


@restricts("SplitToSequence")
def _restrict_parts(node: Node) -> None:
    lengths, shape = _constant(node, 1), _shape(node, 0)
    if lengths is None:
        return
    if not lengths.ndim:
        if lengths < 1:
            fail(node, f"split is {lengths}; expected 1 or more")
        return
    if lengths.min() < 0:
        fail(node, f"split is {lengths.tolist()}; expected lengths of 0 or more")
    length = None if shape is None else shape[normalize_axis(node, attribute(node, "axis"), len(shape))]
    if length is not None and not length.accepts(int(lengths.sum())):
        fail(node, f"split is {lengths.tolist()}, of {lengths.sum()} elements, and the axis has {length}")


@restricts("TopK")
def _restrict_count(node: Node) -> None:
    count = _constant(node, 1)
    if count is not None and count.min() < 0:
        fail(node, f"K is {count.tolist()}; expected 0 or more")


@restricts("Dropout")
def _restrict_ratio(node: Node) -> None:
    ratio, training = _constant(node, 1), _constant(node, 2)
    if ratio is not None and training is not None and training.all() and not 0 <= float(ratio.reshape(-1)[0]) < 1:
        fail(node, f"ratio is {ratio}; expected 0 or more, and less than 1")


@restricts("Col2Im")
def _restrict_windows(node: Node) -> None:
    from engine.ops.conv import Col2ImSpec

    image, block, shape = _constant(node, 1), _constant(node, 2), _shape(node, 0)
    if image is None or block is None or shape is None or len(shape) != 3:
        return
    windows = prod(Col2ImSpec.of(node).at(image.tolist(), block.tolist()).outputs)
    if not shape[2].accepts(windows) or (shape[1].is_static and shape[1].min % prod(block.tolist())):
        fail(
            node, f"windows of {block.tolist()} over {image.tolist()} are {windows} of {prod(block.tolist())} elements"
        )
