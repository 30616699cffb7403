"""Random valid nodes of the operators whose results' shapes depend on attributes or on values of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeAlias

from engine.ir.element_type import boolean, f32, i32, i64
from engine.ops.cases import OperatorCase
from engine.ops.cases.data import Data, bools, filled, real, whole

Maker: TypeAlias = Callable[[Random], OperatorCase]

MAKERS: Final[dict[str, Maker]] = {}
"""For each operator, the function that makes a node of it."""


def random_node(op_type: str, seed: int) -> OperatorCase:
    """A node of an operator in `MAKERS` with inputs that it accepts. Equal seeds give equal nodes."""
    return MAKERS[op_type](Random(f"{op_type} {seed}"))


def _makes(*op_types: str) -> Callable[[Callable[[Random, str], OperatorCase]], Callable[[Random, str], OperatorCase]]:
    def register(make: Callable[[Random, str], OperatorCase]) -> Callable[[Random, str], OperatorCase]:
        for op_type in op_types:
            MAKERS[op_type] = lambda random, op_type=op_type: make(random, op_type)  # type: ignore[misc]
        return make

    return register


def _node(op_type: str, inputs: Sequence[Data | None], **attributes: Any) -> OperatorCase:
    num_outputs = attributes.pop("outputs", None)
    return OperatorCase(f"{op_type}/random", op_type, tuple(inputs), attributes, num_outputs=num_outputs)


def _shape(random: Random, low: int = 1, high: int = 4, least: int = 1) -> list[int]:
    return [random.randint(least, 5) for _ in range(random.randint(low, high))]


def _ints(values: Sequence[int], random: Random | None = None) -> Data:
    element_type = i32 if random is not None and random.random() < 0.3 else i64
    return Data((len(values),), element_type, values=tuple(values) or (0,))


def _axes(random: Random, rank: int, least: int = 0) -> list[int]:
    """Different axes in any order, some counted from the end."""
    chosen = random.sample(range(rank), random.randint(min(least, rank), rank))
    return [axis - random.choice((0, rank)) for axis in chosen]


def _axis(random: Random, rank: int) -> int:
    return random.randrange(-rank, rank)


def _maybe(random: Random, data: Data | None) -> Data | None:
    return data if random.random() < 0.5 else None


# -- movement -----------------------------------------------------------------------------------------------


@_makes("Slice")
def _slice(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random, least=0)
    axes = _axes(random, len(shape))
    is_plain = random.random() < 0.3
    if is_plain:
        axes = list(range(random.randint(1, len(shape))))
    bounds = [[random.randint(-7, 7) for _ in axes] for _ in range(2)]
    steps = None if random.random() < 0.4 else _ints([random.choice((-3, -2, -1, 1, 2, 3)) for _ in axes])
    return _node(op_type, [real(*shape), *map(_ints, bounds), None if is_plain else _ints(axes), steps])


@_makes("Pad")
def _pad(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random, least=2)
    axes = None if random.random() < 0.4 else _axes(random, len(shape), least=1)
    mode = random.choice(("constant", "edge", "reflect", "wrap"))
    count = len(shape) if axes is None else len(axes)
    pads = [random.randint(-1 if mode == "constant" else 0, 1) for _ in range(2 * count)]
    value = _maybe(random, real()) if mode == "constant" else None
    return _node(op_type, [real(*shape), _ints(pads), value, None if axes is None else _ints(axes)], mode=mode)


@_makes("Reshape")
def _reshape(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random, least=random.choice((0, 1, 1)))
    target, allowzero = random.sample(shape, len(shape)), int(0 in shape)
    if 0 not in shape:
        target = [0 if random.random() < 0.3 and shape[i] == n else n for i, n in enumerate(target)]
        target[random.randrange(len(target))] = -1
        if random.random() < 0.3:
            target.insert(0, 1)
    # A 0 copies the length at its own place.
    if any(n == 0 and (i >= len(shape) or shape[i] != 1) for i, n in enumerate(target)) and not allowzero:
        target = [-1]
    return _node(op_type, [real(*shape), _ints(target)], allowzero=allowzero)


@_makes("Squeeze")
def _squeeze(random: Random, op_type: str) -> OperatorCase:
    shape = [random.choice((1, 1, 2, 3)) for _ in range(random.randint(1, 4))]
    ones = [axis - random.choice((0, len(shape))) for axis, n in enumerate(shape) if n == 1]
    axes = random.sample(ones, random.randint(0, len(ones)))
    return _node(op_type, [real(*shape), _ints(axes) if axes else None])


@_makes("Unsqueeze")
def _unsqueeze(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random, low=0, high=3)
    count = random.randint(1, 3)
    rank = len(shape) + count
    return _node(
        op_type, [real(*shape), _ints([a - random.choice((0, rank)) for a in random.sample(range(rank), count)])]
    )


@_makes("Expand", "Tile", "CenterCropPad")
def _resized(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random)
    if op_type == "Tile":
        return _node(op_type, [real(*shape), _ints([random.randint(0, 3) for _ in shape])])
    if op_type == "CenterCropPad":
        axes = _axes(random, len(shape), least=1)
        return _node(op_type, [real(*shape), _ints([random.randint(1, 6) for _ in axes])], axes=axes)
    target = [random.choice((1, n)) if n > 1 else random.randint(0, 4) for n in shape]
    return _node(op_type, [real(*shape), _ints([*_shape(random, 0, 2), *target][random.choice((0, 0, -1)) :])])


@_makes("Concat", "Split", "SplitToSequence", "Flatten", "Transpose", "Shape", "Size", "NonZero", "Trilu")
def _moved(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random, low=2 if op_type == "Trilu" else 1)
    rank, x = len(shape), real(*shape)
    axis = _axis(random, rank)
    if op_type == "Concat":
        others = [[random.randint(0, 4) if a == axis % rank else n for a, n in enumerate(shape)] for _ in range(2)]
        return _node(op_type, [x, *(real(*other) for other in others[: random.randint(0, 2)])], axis=axis)
    if op_type in ("Split", "SplitToSequence"):
        length = shape[axis]
        cut = random.randint(0, length)
        if op_type == "SplitToSequence":
            split = random.choice([None, _ints([cut, length - cut]), filled((), [random.randint(1, 3)], i64)])
            return _node(op_type, [x, split], axis=axis, keepdims=random.randint(0, 1))
        if random.random() < 0.5:
            return _node(op_type, [x, _ints([cut, length - cut])], axis=axis, outputs=2)
        return _node(op_type, [x], axis=axis, outputs=2, num_outputs=2)
    attributes: dict[str, dict[str, Any]] = {
        "Flatten": {"axis": random.randint(-rank, rank)},
        "Transpose": {"perm": random.sample(range(rank), rank)},
        "Shape": {"start": random.randint(-5, 5), "end": random.randint(-5, 5)},
    }
    inputs: list[Data | None] = [x]
    if op_type == "Trilu":
        inputs.append(_maybe(random, filled((), [random.randint(-2, 2)], i64)))
    return _node(op_type, inputs, **attributes.get(op_type, {}))


@_makes("DepthToSpace", "SpaceToDepth")
def _blocks(random: Random, op_type: str) -> OperatorCase:
    size, (n, c, h, w) = random.randint(1, 3), _shape(random, 4, 4)
    shape = (n, c * size * size, h, w) if op_type == "DepthToSpace" else (n, c, h * size, w * size)
    return _node(op_type, [real(*shape)], blocksize=size)


# -- indices and selection ----------------------------------------------------------------------------------


@_makes("Gather", "GatherElements", "ScatterElements", "GatherND", "ScatterND")
def _indexed(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random)
    axis, x = _axis(random, len(shape)), real(*shape)
    if op_type == "Gather":
        return _node(op_type, [x, whole(*_shape(random, 0, 2), low=-shape[axis], high=shape[axis])], axis=axis)
    if op_type.endswith("Elements"):
        lengths = [random.randint(1, n) for n in shape]
        inputs = [x, whole(*lengths, low=0, high=shape[axis])]
        return _node(op_type, inputs if op_type[0] == "G" else [*inputs, real(*lengths)], axis=axis)
    batch = random.randint(0, len(shape) - 1) if op_type == "GatherND" else 0
    depth = random.randint(1, len(shape) - batch)
    index_shape = [*shape[:batch], *_shape(random, 0 if batch else 1, 2), depth]
    inputs = [x, whole(*index_shape, low=0, high=min(shape[batch : batch + depth]))]
    if op_type == "GatherND":
        return _node(op_type, inputs, batch_dims=batch)
    return _node(op_type, [*inputs, real(*index_shape[:-1], *shape[depth:])])


@_makes("TopK", "OneHot", "Range", "ConstantOfShape", "Compress", "Unique", "EyeLike", "NonMaxSuppression")
def _selected(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random, 2, 2) if op_type == "EyeLike" else _shape(random)
    axis, x = _axis(random, len(shape)), real(*shape)
    if op_type == "TopK":
        return _node(op_type, [x, _ints([random.randint(0, shape[axis])])], axis=axis)
    if op_type == "OneHot":
        depth = filled(random.choice([(), (1,)]), [random.randint(1, 5)], random.choice([i64, f32]))
        return _node(op_type, [whole(*shape), depth, real(2)], axis=random.randint(-len(shape) - 1, len(shape)))
    if op_type == "Range":
        element_type = random.choice([i64, i32, f32])
        bounds = [random.randint(-5, 5), random.randint(-5, 5), random.choice((-3, -2, -1, 1, 2, 3))]
        return _node(op_type, [filled((), [bound], element_type) for bound in bounds])
    if op_type == "ConstantOfShape":
        return _node(op_type, [_ints(_shape(random, 0, 3, least=0))])
    if op_type == "NonMaxSuppression":
        batch, classes, boxes = _shape(random, 3, 3)
        limits: list[Data | None] = [
            _maybe(random, filled(random.choice([(), (1,)]), [value], element_type))
            for value, element_type in ((2, i64), (0.5, f32), (0.1, f32))
        ]
        return _node(op_type, [real(batch, boxes, 4, low=0), real(batch, classes, boxes, low=0), *limits])
    given = {} if random.random() < 0.3 else {"axis": axis}
    if op_type == "Compress":
        return _node(op_type, [x, bools(random.randint(1, shape[axis]) if given else 3)], **given)
    return _node(op_type, [x], **(given if op_type == "Unique" else {"k": random.randint(-2, 2)}))


# -- reductions and products --------------------------------------------------------------------------------


@_makes("ReduceSum", "ReduceMax", "ReduceLogSumExp", "ArgMax", "CumSum", "Softmax", "LayerNormalization")
def _reduced(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random)
    axis, x = _axis(random, len(shape)), real(*shape)
    if op_type.startswith("Reduce"):
        axes = None if random.random() < 0.3 else _ints(_axes(random, len(shape)))
        keep = {"keepdims": random.randint(0, 1), "noop_with_empty_axes": random.randint(0, 1)}
        return _node(op_type, [x, axes], **keep)
    if op_type == "ArgMax":
        return _node(op_type, [x], axis=axis, keepdims=random.randint(0, 1))
    if op_type == "LayerNormalization":
        return _node(op_type, [x, real(*shape[axis % len(shape) :])], axis=axis, outputs=random.randint(1, 3))
    if op_type == "CumSum":
        return _node(op_type, [x, filled((), [axis], i64)])
    return _node(op_type, [x], axis=axis)


@_makes("MatMul", "Gemm", "Einsum")
def _product(random: Random, op_type: str) -> OperatorCase:
    m, k, n = _shape(random, 3, 3)
    if op_type == "MatMul":
        stack = _shape(random, 0, 2)
        other = [random.choice((1, d)) for d in stack][random.randint(0, len(stack)) :]
        left, right = random.choice([([*stack, m, k], [*other, k, n]), ([k], [*stack, k, n]), ([*stack, m, k], [k])])
        return _node(op_type, [real(*left), real(*right)])
    if op_type == "Gemm":
        trans_a, trans_b = random.randint(0, 1), random.randint(0, 1)
        c = _maybe(random, real(*random.choice([(), (n,), (m, n), (1, n), (m, 1)])))
        inputs = [real(*((k, m) if trans_a else (m, k))), real(*((n, k) if trans_b else (k, n))), c]
        return _node(op_type, inputs, transA=trans_a, transB=trans_b)
    lengths = dict(zip("ijk", (m, k, n), strict=True))
    equation, *stacks = random.choice(
        [("ij,jk->ik", 0), ("...ij,...jk->...ik", 1), ("...ij,...jk", 1), ("ii->i", 0), ("ij,kj", 0), ("...i->...", 2)]
    )
    batch, terms = _shape(random, stacks[0], stacks[0]), equation.split("->")[0].split(",")
    shapes = [
        [*([random.choice((1, d)) for d in batch] if "..." in term else []), *(lengths[c] for c in term.strip("."))]
        for term in terms
    ]
    return _node(op_type, [real(*shape) for shape in shapes], equation=equation)


@_makes("Add", "Where", "PRelu", "Max")
def _broadcast(random: Random, op_type: str) -> OperatorCase:
    shape = _shape(random, 0)
    shapes = [[random.choice((1, n, n)) for n in shape][random.choice((0, 0, -1, -2)) :] for _ in range(3)]
    if op_type == "PRelu":
        return _node(op_type, [real(*shape), real(*shapes[0])])
    if op_type == "Where":
        return _node(op_type, [Data(tuple(shapes[0]), boolean), *(real(*each) for each in shapes[1:])])
    return _node(op_type, [real(*each) for each in shapes[: 2 if op_type == "Add" else 3]])


# -- windows and images -------------------------------------------------------------------------------------


def _window(random: Random, axes: int) -> dict[str, Any]:
    """Attributes of a window for images of length 7 or more."""
    given: dict[str, Any] = {}
    if random.random() < 0.5:
        given["strides"] = [random.randint(1, 3) for _ in range(axes)]
    if random.random() < 0.4:
        given["dilations"] = [random.randint(1, 2) for _ in range(axes)]
    padding = random.choice(("none", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if padding == "pads":
        given["pads"] = [random.randint(0, 1) for _ in range(2 * axes)]
    elif padding != "none":
        given["auto_pad"] = padding
    return given


@_makes("Conv", "AveragePool", "MaxPool", "LpPool", "ConvTranspose")
def _windowed(random: Random, op_type: str) -> OperatorCase:
    axes = random.randint(1, 2)
    image, kernel = [random.randint(7, 10) for _ in range(axes)], [random.randint(2, 3) for _ in range(axes)]
    batch, group = random.randint(1, 3), random.randint(1, 2)
    given = _window(random, axes)
    if op_type.endswith("Pool"):
        ceil = {"ceil_mode": random.randint(0, 1)} if "auto_pad" not in given else {}
        return _node(op_type, [real(batch, 3, *image)], kernel_shape=kernel, **given, **ceil)
    channels, out = 2 * group, 3 * group
    if random.random() < 0.5:
        given["kernel_shape"] = kernel
    if op_type == "Conv":
        return _node(op_type, [real(batch, channels, *image), real(out, 2, *kernel)], group=group, **given)
    image = [random.randint(3, 5) for _ in range(axes)]
    given.pop("pads", None)
    choice = random.random()
    if choice < 0.3:
        given["output_shape"] = [n + random.randint(-1, 4) for n in image]
    elif choice < 0.6:
        strides = given.setdefault("strides", [2] * axes)
        given["output_padding"] = [random.randrange(stride) for stride in strides]
    return _node(op_type, [real(batch, channels, *image), real(channels, 3, *kernel)], group=group, **given)


@_makes("DeformConv")
def _deformed(random: Random, op_type: str) -> OperatorCase:
    """Offsets of less than two pixels."""
    image, kernel = [random.randint(7, 9) for _ in range(2)], [random.randint(1, 3) for _ in range(2)]
    strides, dilations, pads = ([random.randint(low, 2) for _ in range(4)] for low in (1, 1, 0))
    outs = [(image[i] + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(2)]
    batch, group, offset_group = (random.randint(1, 2) for _ in range(3))
    channels, taps = group * offset_group * random.randint(1, 2), offset_group * kernel[0] * kernel[1]
    inputs: list[Data | None] = [
        real(batch, channels, *image), real(3 * group, channels // group, *kernel), real(batch, 2 * taps, *outs)
    ]  # fmt: skip
    extra = [_maybe(random, real(3 * group)), _maybe(random, real(batch, taps, *outs))]
    given = {"strides": strides[:2], "dilations": dilations[:2], "pads": pads}
    return _node(op_type, [*inputs, *extra], group=group, offset_group=offset_group, **given)


@_makes("RoiAlign")
def _regions(random: Random, op_type: str) -> OperatorCase:
    """Random regions, some reversed or beyond the map."""
    batch, channels, height, width = _shape(random, 4, 4, least=2)
    count = random.randint(1, 4)
    images = whole(count, low=0, high=batch)
    given = {
        "mode": random.choice(("avg", "max")),
        "coordinate_transformation_mode": random.choice(("half_pixel", "output_half_pixel")),
        "output_height": random.randint(1, 3),
        "output_width": random.randint(1, 3),
        "sampling_ratio": random.randint(0, 2),
        "spatial_scale": random.choice((0.5, 0.7, 1.0)),
    }
    return _node(op_type, [real(batch, channels, height, width), real(count, 4, low=-3.0, high=9.0), images], **given)


@_makes("Resize", "AffineGrid", "Col2Im", "GridSample")
def _image(random: Random, op_type: str) -> OperatorCase:
    batch, channels, height, width = _shape(random, 4, 4, least=2)
    x = real(batch, channels, height, width)
    if op_type == "AffineGrid":
        return _node(op_type, [real(batch, 2, 3), _ints([batch, channels, height, width])])
    if op_type == "GridSample":
        return _node(op_type, [x, real(batch, *_shape(random, 2, 2), 2)])
    if op_type == "Col2Im":
        return _node(
            op_type, [real(batch, channels * 4, height * width), _ints([height + 1, width + 1]), _ints([2, 2])]
        )
    axes = [2, 3] if random.random() < 0.5 else _axes(random, 4, least=1)
    given = {} if random.random() < 0.3 else {"axes": axes}
    count = len(given.get("axes", range(4)))
    if random.random() < 0.5:
        scales = [random.choice((0.5, 1.0, 1.5, 2.0)) for _ in range(count)]
        return _node(op_type, [x, None, filled((count,), scales)], **given)
    policy = random.choice(("stretch", "not_larger", "not_smaller"))
    sizes = _ints([random.randint(2, 6) for _ in range(count)])
    return _node(op_type, [x, None, None, sizes], keep_aspect_ratio_policy=policy, **given)


# -- sequence models ----------------------------------------------------------------------------------------


@_makes("Attention")
def _attention(random: Random, op_type: str) -> OperatorCase:
    batch, queries, keys, size, width = _shape(random, 5, 5)
    groups = random.randint(1, 2)
    kv = random.randint(1, 2)
    heads, past = kv * groups, random.randint(1, 3)
    given: dict[str, Any] = {"outputs": random.randint(1, 4), "is_causal": random.randint(0, 1)}
    if random.random() < 0.5:
        given |= {"q_num_heads": heads, "kv_num_heads": kv}
        data = [real(batch, queries, heads * size), real(batch, keys, kv * size), real(batch, keys, kv * width)]
    else:
        data = [real(batch, heads, queries, size), real(batch, kv, keys, size), real(batch, kv, keys, width)]
    cache: list[Data | None] = [None, None]
    if random.random() < 0.4 or given["outputs"] > 1:
        cache = [real(batch, kv, past, size), real(batch, kv, past, width)]
        keys += past
    mask = _maybe(random, real(queries, keys))
    return _node(op_type, [*data, mask, *cache], **given)


@_makes("RNN", "GRU", "LSTM")
def _recurrent(random: Random, op_type: str) -> OperatorCase:
    steps, batch, size, hidden = _shape(random, 4, 4)
    direction, layout = random.choice(("forward", "reverse", "bidirectional")), random.randint(0, 1)
    count, gates = 1 + (direction == "bidirectional"), {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    x = real(*((batch, steps) if layout else (steps, batch)), size)
    inputs = [x, real(count, gates * hidden, size), real(count, gates * hidden, hidden)]
    given = {"hidden_size": hidden} if random.random() < 0.5 else {}
    outputs = random.randint(1, 3 if op_type == "LSTM" else 2)
    return _node(op_type, inputs, direction=direction, layout=layout, outputs=outputs, **given)
