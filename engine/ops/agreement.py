"""Checks that lengths of inputs agree, for operators whose types ONNX infers without comparing them.

Kernels rely on these lengths, so contradictions are rejected when a node is created and when a model is read.
Only known lengths are compared: unknown ones may still turn out to fit. Specs are imported with their families, which
few models need.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from engine.errors import InputError
from engine.ir import Constant, Dimension, Node, PartialShape, as_dimension
from engine.ops.axes import notation_of
from engine.ops.reduce import ArgReduceSpec
from engine.ops.registry import attribute, compares
from engine.ops.rules import fail, normalize_axis, tensor_type


def _shape(node: Node, index: int) -> PartialShape | None:
    """The shape of input `index`; None if it is omitted, or its rank is unknown."""
    if not node.has_input(index):
        return None
    shape = tensor_type(node, index).shape
    return shape if shape.rank.is_static else None


def _is_single(shape: PartialShape) -> bool:
    """Whether a tensor of this shape may have one element."""
    return all(dim.accepts(1) for dim in shape)


@compares("BatchNormalization", "InstanceNormalization")
def _compare_channels(node: Node) -> None:
    shape = _shape(node, 0)
    if shape is not None and len(shape) == 1:
        _compare_layouts(node, [("N",), *[("1",)] * 4], {})  # for one channel, its axis may be missing
        return
    _compare_layouts(node, notation_of(node), {})


@compares("AffineGrid")
def _compare_thetas(node: Node) -> None:
    theta, size = _shape(node, 0), _shape(node, 1)
    _compare_layouts(node, notation_of(node), {})
    for rank, rows in ((4, 2), (5, 3)):
        wanted = PartialShape([None, rows, rows + 1])
        if (
            size is not None
            and len(size) == 1
            and size[0].accepts(rank)
            and (theta is None or theta.compatible(wanted))
        ):
            return
    if theta is not None and size is not None:
        fail(node, f"theta has shape {theta} and size {size}; expected [N, 2, 3] and [4], or [N, 3, 4] and [5]")


@compares("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LRN", "MaxRoiPool", "NonMaxSuppression")
def _compare_fixed(node: Node) -> None:
    _compare_layouts(node, notation_of(node), {})
    data = _shape(node, 0)
    unknown = {"GlobalAveragePool": "mean", "GlobalMaxPool": "maximum"}.get(node.op_type)
    if unknown is not None and data is not None and data.is_static:
        batch, channels, *lengths = data.get_shape()
        if batch and channels and not prod(lengths):
            fail(
                node,
                f"X has shape {data}; expected maps of 1 element or more: the {unknown} of no elements is undefined",
            )


@compares("ArgMax", "ArgMin")
def _compare_searched(node: Node) -> None:
    data = _shape(node, 0)
    if data is not None and data.is_static:
        try:
            ArgReduceSpec.of(node).at(data.get_shape())
        except InputError as e:
            fail(node, f"data has shape {data}; expected 1 element or more along axis {attribute(node, 'axis')}", e)


@compares("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _compare_features(node: Node) -> None:
    data = _shape(node, 0)
    if data is not None and not len(data):
        fail(node, "X has rank 0; expected 1 or more")


@compares("Adagrad", "Adam", "Momentum", domain="ai.onnx.preview.training")
def _compare_optimized(node: Node) -> None:
    """A tensor, its gradient and its accumulated values have one shape."""
    from engine.ops.training import PER_TENSOR

    given, kinds = range(2, node.num_inputs), PER_TENSOR[node.op_type][0]
    count = len(given) // kinds
    for index in given:
        shape, first = _shape(node, index), _shape(node, 2 + (index - 2) % count)
        if shape is not None and first is not None and not shape.compatible(first):
            fail(node, f"input {index} has shape {shape}; expected the shape of the updated tensor, {first}")
    for index in (0, 1):
        shape = _shape(node, index)
        if shape is not None and not _is_single(shape):
            fail(node, f"input {index} has shape {shape}; expected one number")


@compares("Trilu")
def _compare_diagonal(node: Node) -> None:
    _compare_layouts(node, notation_of(node), {})
    diagonal = _shape(node, 1)
    if diagonal is not None and not _is_single(diagonal):
        fail(node, f"k has shape {diagonal}; expected one number")


@compares("RNN", "GRU", "LSTM")
def _compare_recurrent(node: Node) -> None:
    from engine.ops.recurrent import RecurrentSpec

    spec = RecurrentSpec.of(node)
    lengths = {"D": as_dimension(len(spec.is_reversed))}
    if spec.hidden_size is not None:
        lengths["H"] = as_dimension(spec.hidden_size)
    _compare_layouts(node, notation_of(node), lengths)


def _compare_layouts(node: Node, layouts: Sequence[Sequence[str]], lengths: dict[str, Dimension]) -> None:
    """Fail if an input has another layout, or a length that contradicts `lengths` or an earlier input."""
    for index, names in enumerate(layouts[: node.num_inputs]):
        shape = _shape(node, index)
        if shape is None or not names:
            continue
        count = len(names) - ("..." in names)
        if len(shape) != count if count == len(names) else len(shape) < count:
            fail(node, f"input {index} has shape {shape}; expected [{', '.join(names)}]")
        dims = shape.dims if names[0] != "..." else shape.dims[len(shape) - count :]
        for name, dim in zip([name for name in names if name != "..."], dims, strict=False):
            if not _bind(name, dim, lengths):
                layout = " ".join(names)
                known = ", ".join(f"{key} = {value}" for key, value in lengths.items() if key in layout)
                fail(node, f"input {index} has shape {shape}; expected [{', '.join(names)}], where {known or layout}")


def _bind(name: str, dim: Dimension, lengths: dict[str, Dimension]) -> bool:
    """Whether `dim` may equal the length called `name`; if that is not known yet, it becomes `dim`."""
    factor, _, label = name.rpartition("*")
    if label.isdecimal():
        return dim.accepts(int(label))
    if factor:
        if dim.is_dynamic:
            return True
        length, rest = divmod(dim.min, int(factor))
        if rest:
            return False
        dim = as_dimension(length)
    known = lengths.get(label, dim)
    if not known.compatible(dim):
        return False
    lengths[label] = known.merge(dim)
    return True


# -- broadcasting to one input ----------------------------------------------------------------------------


def _broadcasts_to(shape: PartialShape, target: Sequence[Dimension]) -> bool:
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(dim.accepts(1) or dim.compatible(to) for dim, to in zip(shape, tail, strict=True))


@compares("LayerNormalization", "RMSNormalization")
def _compare_normalized(node: Node) -> None:
    data = _shape(node, 0)
    if data is None:
        return
    for index in (1, 2):
        shape = _shape(node, index)
        if shape is not None and not _broadcasts_to(shape, data.dims):
            fail(node, f"input {index} has shape {shape}, which does not broadcast to the shape of X, {data}")


@compares("Gemm")
def _compare_gemm(node: Node) -> None:
    a, b, c = (_shape(node, index) for index in range(3))
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return  # ONNX compares the ranks of these
    rows, inner = a.dims[::-1] if attribute(node, "transA") else a.dims
    other, columns = b.dims[::-1] if attribute(node, "transB") else b.dims
    if not inner.compatible(other):
        fail(node, f"A has {inner} columns and B {other} rows; expected equal numbers")
    if c is not None and not _broadcasts_to(c, (rows, columns)):
        fail(node, f"C has shape {c}, which does not broadcast to the shape of the product, [{rows},{columns}]")


@compares("Clip")
def _compare_bounds(node: Node) -> None:
    for index in (1, 2):
        shape = _shape(node, index)
        if shape is not None and not _is_single(shape):
            fail(node, f"input {index} has shape {shape}; expected a single value")


# -- vectors ----------------------------------------------------------------------------------------------

_VECTORS: Final = {
    "Squeeze": (1,), "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "CenterCropPad": (1,)
}  # fmt: skip
"""Inputs that must be vectors; elsewhere runtimes take one number for a vector."""


@compares(*_VECTORS)
def _compare_vectors(node: Node) -> None:
    from engine.ops.sample import CenterCropPadSpec

    for index in _VECTORS[node.op_type]:
        shape = _shape(node, index)
        if shape is not None and len(shape) != 1:
            fail(node, f"input {index} has shape {shape}; expected a vector")
    if node.op_type == "CenterCropPad":
        lengths, axes = _shape(node, 1), CenterCropPadSpec.of(node).axes
        if lengths is not None and axes is not None and not lengths[0].accepts(len(axes)):
            fail(node, f"shape has {lengths[0]} lengths; expected one for each of {len(axes)} axes")


@compares("Unsqueeze")
def _compare_new_axes(node: Node) -> None:
    shape = _shape(node, 1)
    if shape is not None and len(shape) > 1:
        fail(node, f"axes has shape {shape}; expected a vector")


@compares("RoiAlign")
def _compare_regions(node: Node) -> None:
    _compare_layouts(node, notation_of(node), {})
    data = _shape(node, 0)
    if data is not None and 0 in (data[2].max, data[3].max):
        fail(node, f"X has shape {data}; expected a height and width of 1 or more")


# -- gathering and scattering -----------------------------------------------------------------------------


@compares("GatherElements", "ScatterElements")
def _compare_elements(node: Node) -> None:
    data, indices, updates = (_shape(node, index) for index in range(3))
    if indices is not None and updates is not None and not indices.compatible(updates):
        fail(node, f"updates have shape {updates}, and indices {indices}; expected equal shapes")
    if data is None or indices is None:
        return
    if len(data) != len(indices):
        fail(node, f"indices of rank {len(indices)} do not fit data of rank {len(data)}; expected equal ranks")
    axis = normalize_axis(node, attribute(node, "axis"), len(data))
    for position, (length, wanted) in enumerate(zip(data, indices, strict=True)):
        if position != axis and length.max is not None and wanted.min > length.max:
            fail(node, f"indices have length {wanted} along axis {position}; data has {length}")


@compares("GatherND", "ScatterND")
def _compare_slices(node: Node) -> None:
    data, indices, updates = (_shape(node, index) for index in range(3))
    if indices is not None and not len(indices):
        fail(node, "indices have rank 0; expected 1 or more")
    if data is None or indices is None:
        return
    batch = attribute(node, "batch_dims") if node.op_type == "GatherND" else 0
    if not PartialShape(data.dims[:batch]).compatible(PartialShape(indices.dims[:batch])):
        fail(node, f"the first {batch} dimensions of data {data} and indices {indices} must be equal")
    depth = indices[-1]
    if depth.max == 0 and node.op_type == "GatherND":
        fail(node, f"indices {indices} address no axis; expected 1 or more in the last dimension")
    if depth.min > len(data) - batch:
        fail(node, f"indices address {depth} axes of data, which has {len(data) - batch}")
    if updates is None or depth.is_dynamic:
        return
    expected = PartialShape([*indices.dims[:-1], *data.dims[depth.min :]])
    if not updates.compatible(expected):
        fail(node, f"updates have shape {updates}; expected {expected}")


@compares("CumSum", "CumProd")
def _compare_axis(node: Node) -> None:
    data, axis, source = _shape(node, 0), _shape(node, 1), node.input_value(1).node
    if axis is not None and not _is_single(axis):
        fail(node, f"axis has shape {axis}; expected one number")
    if data is not None and isinstance(source, Constant) and source.data.size == 1:
        normalize_axis(node, int(source.data.reshape(-1)[0]), len(data))


@compares("SplitToSequence")
def _compare_lengths(node: Node) -> None:
    lengths = _shape(node, 1)
    if lengths is not None and len(lengths) > 1:
        fail(node, f"split has shape {lengths}; expected one number, or a vector")


@compares("TopK")
def _compare_count(node: Node) -> None:
    count = _shape(node, 1)
    if count is not None and not _is_single(count):
        fail(node, f"K has shape {count}; expected one number")


@compares("Compress")
def _compare_condition(node: Node) -> None:
    condition = _shape(node, 1)
    if condition is not None and len(condition) != 1:
        fail(node, f"condition has shape {condition}; expected rank 1")


@compares("ReverseSequence")
def _compare_sequences(node: Node) -> None:
    data, lengths = _shape(node, 0), _shape(node, 1)
    if data is None or lengths is None:
        return
    batch = normalize_axis(node, attribute(node, "batch_axis"), len(data), "batch_axis")
    normalize_axis(node, attribute(node, "time_axis"), len(data), "time_axis")
    if not lengths.compatible(PartialShape([data[batch]])):
        fail(node, f"sequence_lens has shape {lengths}; expected one length per sequence, [{data[batch]}]")


# -- blocks, quantization and convolutions ----------------------------------------------------------------


@compares("DepthToSpace", "SpaceToDepth")
def _compare_blocks(node: Node) -> None:
    data, size = _shape(node, 0), attribute(node, "blocksize")
    if data is None or len(data) != 4 or size < 1:
        return  # ONNX reports it
    divided = {1: size * size} if node.op_type == "DepthToSpace" else {2: size, 3: size}
    for axis, divisor in divided.items():
        if data[axis].is_static and data[axis].min % divisor:
            fail(node, f"blocksize {size}: dimension {axis} of {data} is not divisible by {divisor}")


@compares("QuantizeLinear", "DequantizeLinear")
def _compare_scales(node: Node) -> None:
    data, scale, zero_point = (_shape(node, index) for index in range(3))
    if scale is not None and zero_point is not None and not (zero_point.compatible(scale) or _is_single(zero_point)):
        fail(node, f"the zero point has shape {zero_point}, and the scale {scale}; expected equal shapes")
    if data is None or scale is None:
        return
    if _is_single(scale):
        if attribute(node, "block_size") and len(scale) != len(data):
            fail(node, f"the scale has shape {scale}; expected the rank of x, {len(data)}, as block_size is given")
        return
    axis = normalize_axis(node, attribute(node, "axis"), len(data))
    block = attribute(node, "block_size")
    expected = PartialShape([data[axis]])
    if block:
        length = as_dimension(-(-data[axis].min // block) if data[axis].is_static else None)
        expected = PartialShape([*data.dims[:axis], length, *data.dims[axis + 1 :]])
    if not scale.compatible(expected):
        fail(node, f"the scale has shape {scale}; expected one value, or {expected}")


@compares("ConvInteger", "QLinearConv")
def _compare_convolution(node: Node) -> None:
    """The checks of Conv, for operators whose windows ONNX infers."""
    data, weight = _shape(node, 0), _shape(node, 3 if node.op_type == "QLinearConv" else 1)
    if data is None or weight is None or len(data) < 2 or len(weight) != len(data):
        return
    group = attribute(node, "group")
    if group < 1 or (weight[0].is_static and weight[0].min % group):
        fail(node, f"group {group} does not divide the {weight[0]} output channels of w")
    if data[1].is_static and weight[1].is_static and data[1].min != weight[1].min * group:
        fail(node, f"x has {data[1]} channels; w takes {weight[1]} per group, and group is {group}")
    single, per_channel = ((2,), (3,)) if node.op_type == "ConvInteger" else ((1, 2, 6, 7), (4, 5, 8))
    for index in single:
        shape = _shape(node, index)
        if shape is not None and not _is_single(shape):
            fail(node, f"input {index} has shape {shape}; expected one value")
    for index in per_channel:
        shape = _shape(node, index)
        if shape is None or (index != 8 and _is_single(shape)):
            continue
        if not shape.compatible(PartialShape([weight[0]])):
            fail(node, f"input {index} has shape {shape}; expected one value per output channel, [{weight[0]}]")


@compares("MatMulInteger", "QLinearMatMul")
def _compare_product(node: Node) -> None:
    """Scales and zero points of a and of the result are one number, or one for each row; of b, for each column."""
    is_integer = node.op_type == "MatMulInteger"
    a, b = _shape(node, 0), _shape(node, 1 if is_integer else 3)
    if a is not None and len(a) > 1:
        for index in (2,) if is_integer else (1, 2, 6, 7):
            _compare_lines(node, index, a[-2], -2, "row")
    if b is not None and len(b) > 1:
        for index in (3,) if is_integer else (4, 5):
            _compare_lines(node, index, b[-1], -1, "column")


def _compare_lines(node: Node, index: int, count: Dimension, axis: int, line: str) -> None:
    """Input `index` has one element, or one along `axis` for each of `count` lines of a matrix, or of each matrix."""
    shape = _shape(node, index)
    if shape is None or _is_single(shape):
        return
    is_vector = len(shape) == 1
    other = as_dimension(1) if is_vector else shape[-3 - axis]
    if not shape[0 if is_vector else axis].compatible(count) or not other.accepts(1):
        fail(node, f"input {index} has shape {shape}; expected one value, or one for each {line}, [{count}]")


@compares("ConvTranspose")
def _compare_transposed(node: Node) -> None:
    data, weight, bias, group = _shape(node, 0), _shape(node, 1), _shape(node, 2), attribute(node, "group")
    if weight is None or len(weight) < 2:
        return
    if data is not None and len(data) > 1 and not data[1].compatible(weight[0]):
        fail(node, f"X has {data[1]} channels, W takes {weight[0]}; expected equal numbers")
    if group < 1 or (weight[0].is_static and weight[0].min % group):
        fail(node, f"group {group} does not divide the {weight[0]} channels of X")
    added = attribute(node, "output_padding") or ()
    steps = [attribute(node, name) or [1] * len(added) for name in ("strides", "dilations")]
    if any(not 0 <= count < max(each) for count, *each in zip(added, *steps, strict=False)):
        fail(node, f"output_padding is {list(added)}; expected less than the stride or the dilation of each axis")
    if bias is None:
        return
    count = as_dimension(weight[1].min * group if weight[1].is_static else None)
    if not bias.compatible(PartialShape([count])):
        fail(node, f"B has shape {bias}; expected one value per output channel, [{count}]")


@compares("DeformConv")
def _compare_offsets(node: Node) -> None:
    from engine.ops.conv import DeformConvSpec

    data, weight, offset, bias, mask = (_shape(node, index) for index in range(5))
    for shape, name in ((offset, "offset"), (mask, "mask")):
        if data is not None and shape is not None and len(shape) != len(data):
            fail(node, f"{name} has shape {shape}; expected the rank of X, {len(data)}")
    if data is None or weight is None or len(data) < 2 or len(weight) != len(data):
        return
    spec, dims = DeformConvSpec.of(node), weight.dims
    group, parts = spec.group, spec.offset_group
    if data[1].is_static and data[1].min % parts:
        fail(node, f"offset_group {parts} does not divide the {data[1]} channels of X")
    if dims[0].is_static and dims[0].min % group:
        fail(node, f"group {group} does not divide the {dims[0]} output channels of W")
    if bias is not None and not bias.compatible(PartialShape([dims[0]])):
        fail(node, f"B has shape {bias}; expected one value per output channel, [{dims[0]}]")
    if data[1].is_static and dims[1].is_static and data[1].min != dims[1].min * group:
        fail(node, f"X has {data[1]} channels; W takes {dims[1]} per group, and group is {group}")
    if any(dim.is_dynamic for dim in dims[2:]):
        return
    lengths: list[Dimension] = [as_dimension(None)] * (len(data) - 2)
    if data.is_static and weight.is_static:
        lengths = [as_dimension(n) for n in spec.at(data.get_shape(), weight.get_shape()).outputs]
    positions = parts * prod(dim.min for dim in dims[2:])
    for shape, name, count in ((offset, "offset", positions * (len(data) - 2)), (mask, "mask", positions)):
        expected = PartialShape([data[0], count, *lengths])
        if shape is not None and not shape.compatible(expected):
            fail(node, f"{name} has shape {shape}; expected {expected}")


@compares("Attention")
def _compare_heads(node: Node) -> None:
    """Compare batch sizes and heads; the type rule compares lengths and head sizes."""
    from engine.ops.attention import AttentionSpec

    query, key, value, mask = (_shape(node, index) for index in range(4))
    for shape, name in ((key, "K"), (value, "V")):
        if query is not None and shape is not None and not shape[0].compatible(query[0]):
            fail(node, f"Q {query} and {name} {shape} have different batch sizes")
    known = [_shape(node, index) for index in range(node.num_inputs)]
    if all(shape is None or shape.is_static for shape in known) and None not in known[:3]:
        AttentionSpec.of(node).at([None if shape is None else shape.get_shape() for shape in known])
    if key is not None and value is not None and len(key) == len(value) == 4 and not key[1].compatible(value[1]):
        fail(node, f"K {key} and V {value} have different numbers of heads")
    for shape, name in ((query, "q_num_heads"), (key, "kv_num_heads")):
        heads = attribute(node, name)
        if heads and shape is not None and len(shape) == 4 and not shape[1].accepts(heads):
            fail(node, f"{name} is {heads}, and the input has {shape[1]} heads; expected equal numbers")
    if mask is not None and not 1 <= len(mask) <= 4:
        fail(node, f"attn_mask has shape {mask}; expected [queries, keys], which 1 or 2 axes may precede")
    if query is not None and key is not None and len(query) == len(key) == 4:
        heads, groups = query[1], key[1]
        if heads.is_static and groups.is_static and groups.min and heads.min % groups.min:
            fail(node, f"{groups} heads of K do not divide the {heads} heads of Q")
    if (
        query is not None
        and mask is not None
        and len(mask) > 1
        and not (mask[-2].accepts(1) or mask[-2].compatible(query[-2]))
    ):
        fail(node, f"attn_mask {mask} has rows for {mask[-2]} queries; Q is {query}")


@compares("FlexAttention", domain="ai.onnx.preview")
def _compare_flexible_heads(node: Node) -> None:
    query, key, value = (_shape(node, index) for index in range(3))
    for shape, name in ((key, "K"), (value, "V")):
        if query is not None and shape is not None and not shape[0].compatible(query[0]):
            fail(node, f"Q {query} and {name} {shape} have different batch sizes")
    if key is not None and value is not None and not (key[1].compatible(value[1]) and key[2].compatible(value[2])):
        fail(node, f"K {key} and V {value} have different numbers of heads, or lengths")
    if query is None or key is None:
        return
    if not query[3].compatible(key[3]):
        fail(node, f"the heads of Q {query} and K {key} have different sizes")
    if query[1].is_static and key[1].is_static and key[1].min and query[1].min % key[1].min:
        fail(node, f"{key[1]} heads of K do not divide the {query[1]} heads of Q")


# -- others -----------------------------------------------------------------------------------------------


@compares("MaxUnpool")
def _compare_indices(node: Node) -> None:
    data, indices = _shape(node, 0), _shape(node, 1)
    if data is not None and indices is not None and not data.compatible(indices):
        fail(node, f"X has shape {data} and I {indices}; expected equal shapes")
    target = _shape(node, 2)
    if data is not None and target is not None and not target.compatible(PartialShape([len(data)])):
        fail(node, f"output_shape has shape {target}; expected {len(data)} lengths, the rank of X")


@compares("GridSample")
def _compare_sampled(node: Node) -> None:
    data, grid = _shape(node, 0), _shape(node, 1)
    if data is None or grid is None or not any(dim.max == 0 for dim in data.dims[2:]):
        return
    if all(dim.min for dim in (*data.dims[:2], *grid.dims[:-1])):
        fail(node, f"X has shape {data}; expected 1 element or more along each axis that is sampled")


@compares("RotaryEmbedding")
def _compare_caches(node: Node) -> None:
    from engine.ops.rotary import RotarySpec

    cosines, sines = _shape(node, 1), _shape(node, 2)
    if cosines is not None and sines is not None and not cosines.compatible(sines):
        fail(node, f"cos_cache has shape {cosines} and sin_cache {sines}; expected equal shapes")
    shapes = [_shape(node, index) for index in range(node.num_inputs)]
    if all(shape is None or shape.is_static for shape in shapes) and None not in shapes[:3]:
        RotarySpec.of(node).at([None if shape is None else shape.get_shape() for shape in shapes])


@compares("SoftmaxCrossEntropyLoss")
def _compare_labels(node: Node) -> None:
    scores, labels, weights = (_shape(node, index) for index in range(3))
    if scores is None:
        return
    if len(scores) < 2:
        fail(node, f"scores has shape {scores}; expected [N, C, ...]")
    if labels is not None and not labels.compatible(PartialShape([scores[0], *scores.dims[2:]])):
        fail(node, f"labels have shape {labels}; expected the shape of scores without its second axis, {scores}")
    if weights is not None and not weights.compatible(PartialShape([scores[1]])):
        fail(node, f"weights have shape {weights}; expected one value per class, [{scores[1]}]")
