"""How long the reference evaluation of a node takes, estimated from its operator and the types of its values.

The estimate depends on nothing else, so that what a compiler decides by it is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from engine.ir import Constant, Node, Output, TensorType, f32, f64
from engine.ops.einsum import EinsumSpec
from engine.ops.elementwise import POINTWISE

_FAST: Final = 8
"""Units per element of an operator that numpy computes in a few passes over its arrays."""
_SLOW: Final = 1000
"""Units per element of an operator that may loop in Python."""
_PRODUCTS_PER_UNIT: Final = 16
"""Multiply-adds per unit of a product in f32 or f64, which numpy passes to BLAS; other types have none."""
_UNITS_PER_OTHER_PRODUCT: Final = 4
_CALL: Final = 5000
"""Units of one step of a loop in Python that calls numpy a few times."""

_FAST_OPERATORS: Final = POINTWISE | {
    "BatchNormalization", "BitCast", "Cast", "CastLike", "Clip", "Compress", "Concat", "ConstantOfShape", "CumSum",
    "DepthToSpace", "DequantizeLinear", "Dropout", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "IsInf", "IsNaN", "LayerNormalization", "LogSoftmax", "NonZero", "OneHot", "PRelu",
    "Pad", "Pow", "QuantizeLinear", "RMSNormalization", "Range", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    "Reshape", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "Softmax", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
_CONVOLUTIONS: Final = frozenset(["Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "DeformConv"])


def work_of(node: Node) -> int:
    """Units of about one nanosecond; unknown lengths count as 1.

    Products, convolutions and Einsum count their multiply-adds; others the elements of inputs and results, and what
    they do more than a fixed number of times for each: pairs of boxes, windows, support vectors.
    """
    values = [*(value for value in node.input_values if value is not None), *node.outputs]
    elements = sum(_size(value) for value in values)
    more = _MORE.get(node.op_type) if node.domain in ("", "ai.onnx.ml", "ai.onnx.preview") else None
    if more is not None:
        return _SLOW * elements + more(node)
    if node.domain:
        return _SLOW * elements
    if node.op_type in ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"):
        depth = _lengths(node.input_value(0))[-1:]
        if node.op_type == "Gemm" and node.attributes.get("transA"):
            depth = _lengths(node.input_value(0))[:1]
        return _FAST * elements + _products(node, _size(node.output(0)) * math.prod(depth))
    if node.op_type == "Einsum":
        return _FAST * elements + _products(node, _einsum_products(node))
    if node.op_type in _CONVOLUTIONS:
        weights = max(_size(value) for value in node.input_values[1:] if value is not None)
        longest = max(_size(node.output(0)), _size(node.input_value(0)))
        channels = max(1, *_lengths(node.input_value(0))[1:2])
        return _FAST * elements + _UNITS_PER_OTHER_PRODUCT * longest * max(1, weights // channels)
    return (_FAST if node.op_type in _FAST_OPERATORS else _SLOW) * elements


def _products(node: Node, count: int) -> int:
    is_fast = node.output(0).element_type in (f32, f64)
    return count // _PRODUCTS_PER_UNIT if is_fast else count * _UNITS_PER_OTHER_PRODUCT


def _einsum_products(node: Node) -> int:
    """One for each combination of values of the labels."""
    labels = EinsumSpec.of(node).labels
    if labels is None:
        return math.prod(_size(value) for value in node.input_values if value is not None)
    lengths: dict[str, int] = {}
    for term, value in zip(labels.terms, node.input_values, strict=True):
        for label, length in zip(term, _lengths(value), strict=False):
            lengths[label] = max(length, lengths.get(label, 1))
    return math.prod(lengths.values())


def _attention(node: Node) -> int:
    """A score for each query and key, of which there are several passes, and two products."""
    query, key, value = (_lengths(node.input_value(index)) for index in range(3))
    past = _lengths(node.input_value(4)) if node.has_input(4) else ()
    keys = (key[-2] if len(key) > 1 else 1) + (past[-2] if len(past) == 4 else 0)
    # Of three dimensions, the last one has all heads.
    heads: int = (node.attributes.get("q_num_heads") or 1) if len(query) == 3 else 1
    rows = math.prod(query[:-1]) * heads
    return rows * keys * (128 + (sum(query[-1:]) + sum(value[-1:])) // heads)


def _boxes(node: Node) -> int:
    """Each box that is kept is compared with those that are left."""
    scores, most = _lengths(node.input_value(1)), _number(node, 2)
    boxes = sum(scores[-1:])
    return 100 * math.prod(scores) * (boxes if most is None else min(max(most, 0), boxes))


def _pool(node: Node) -> int:
    """A pass over the results for each position of the window."""
    window: int = math.prod(node.attributes["kernel_shape"])
    passes = 8 if node.num_outputs > 1 else 2
    return window * (_CALL + passes * _size(node.output(0)))


def _neighbouring_channels(node: Node) -> int:
    channels = sum(_lengths(node.input_value(0))[1:2])
    window: int = min(node.attributes["size"], 2 * channels)
    return window * (_CALL + 3 * _size(node.input_value(0)))


def _support_vectors(node: Node) -> int:
    """The kernel of each row and vector, and the votes for pairs of classes."""
    numbers = max(_count(node, "support_vectors"), _count(node, "coefficients"))
    pairs = _count(node, "rho")
    rows = _lengths(node.input_value(0))
    return (rows[0] if len(rows) > 1 else 1) * (10 * numbers + _CALL * pairs)


def _linear(node: Node) -> int:
    """The product of rows of features with the coefficients."""
    x = _lengths(node.input_value(0))
    return (x[0] if len(x) > 1 else 1) * _count(node, "coefficients")


def _trees(node: Node) -> int:
    """At most all nodes for each row."""
    rows = _lengths(node.input_value(0))
    return (rows[0] if len(rows) > 1 else 1) * 4 * _count(node, "nodes_featureids")


def _recurrent(node: Node) -> int:
    """X: [S, B, I] or [B, S, I], W: [directions, gates * H, I], R: [directions, gates * H, H]."""
    lengths, directions = _lengths(node.input_value(0)), sum(_lengths(node.input_value(1))[:1])
    steps = sum(lengths[1:2] if node.attributes.get("layout") else lengths[:1])
    weights = _size(node.input_value(1)) + _size(node.input_value(2))
    return math.prod(lengths[:2]) * weights + 4 * _CALL * directions * steps


def _linear_attention(node: Node) -> int:
    """For each time step, a state of the size of a key times that of a value."""
    return 8 * _size(node.input_value(0)) * max(1, *_lengths(node.input_value(2))[-1:])


def _regions(node: Node) -> int:
    """RoiAlign: the samples of each cell of each region, which are at most those on the map if they are adaptive."""
    ratio: int = node.attributes.get("sampling_ratio", 0)
    cells, maps = _size(node.output(0)), _lengths(node.input_value(0))
    regions, size = sum(_lengths(node.input_value(1))[:1]), math.prod(maps[1:])
    return (4 * _CALL + 40 * ratio * ratio) * cells + (0 if ratio else 160 * regions * size)


def _whole_regions(node: Node) -> int:
    regions, maps = sum(_lengths(node.input_value(1))[:1]), _lengths(node.input_value(0))
    return regions * math.prod(maps[1:]) + _CALL * _size(node.output(0))


def _samples(node: Node) -> int:
    """GridSample: neighbours of each sample."""
    taps = {"cubic": 4, "nearest": 1}.get(node.attributes.get("mode", "linear"), 2)
    rank: int = max(0, len(_lengths(node.input_value(0))) - 2)
    neighbours: int = taps**rank
    return 20 * _size(node.output(0)) * neighbours


def _resized(node: Node) -> int:
    """With antialiasing, as many neighbours as the input is longer, each in a step of a loop."""
    if not node.attributes.get("antialias"):
        return 0
    lengths = zip(_lengths(node.input_value(0)), _lengths(node.output(0)), strict=False)
    return 4 * _CALL * sum(before // max(1, after) for before, after in lengths)


def _frames(node: Node) -> int:
    return 10 * _CALL * sum(_lengths(node.output(0))[1:2])


def _n_grams(node: Node) -> int:
    """The lengths of n-grams and the distances between their elements at each place."""
    row = sum(_lengths(node.input_value(0))[-1:])
    distances: int = min(node.attributes.get("max_skip_count", 0) + 1, row)
    lengths = range(node.attributes["min_gram_length"], node.attributes["max_gram_length"] + 1)
    shown = range(lengths.start, min(lengths.stop, _count(node, "ngram_counts") + 1))
    return distances * _size(node.input_value(0)) * sum(200 + 20 * length for length in shown)


_MORE: Final[dict[str, Callable[[Node], int]]] = {
    **dict.fromkeys(("Attention", "FlexAttention"), _attention),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(("LinearClassifier", "LinearRegressor"), _linear),
    **dict.fromkeys(("SVMClassifier", "SVMRegressor"), _support_vectors),
    **dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), _trees),
    "CausalConvWithState": lambda node: 8 * _size(node.input_value(0)) * max(1, *_lengths(node.input_value(1))[-1:]),
    "Det": lambda node: 2 * _size(node.input_value(0)) * max(1, *_lengths(node.input_value(0))[-1:]),
    "GridSample": _samples,
    "LRN": _neighbouring_channels,
    "LinearAttention": _linear_attention,
    "MaxRoiPool": _whole_regions,
    "NonMaxSuppression": _boxes,
    "Resize": _resized,
    "RoiAlign": _regions,
    "STFT": _frames,
    "TfIdfVectorizer": _n_grams,
}
"""Units beyond those for elements of operators whose work is not proportional to them."""


def _count(node: Node, name: str) -> int:
    """The number of elements of an attribute."""
    given = node.attributes.get(name)
    return 0 if given is None else len(given)


def _number(node: Node, index: int) -> int | None:
    """The single element of a constant input; 0 without the input, and None if it is not known."""
    if not node.has_input(index):
        return 0
    source = node.input_value(index).node
    return int(source.data.reshape(-1)[0]) if isinstance(source, Constant) and source.data.size == 1 else None


def _size(value: Output) -> int:
    return math.prod(_lengths(value))


def _lengths(value: Output | None) -> tuple[int, ...]:
    """The lengths of a tensor, 1 for unknown ones; empty for other types and for unknown rank."""
    if value is None or not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        return ()
    return tuple(dim.get_length() if dim.is_static else 1 for dim in value.shape)
