"""Reference evaluation against onnxruntime, over random attributes and shapes. onnxruntime is the oracle.

Each generator draws one node of a family whose evaluation is ours, or whose corners the ONNX suite leaves out.
If it fails, TEMPLATE gives results that a user's other runtime does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Parameter
from engine.onnx import model_to_proto

_ROUNDS = 12


class Draw:
    """A source of random attributes, and the comparison of one node."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def f32(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape).astype(np.float32)

    def ints(self, low: int, high: int, shape: Sequence[int] | int = (), dtype: Any = np.int64) -> np.ndarray:
        return self.random.integers(low, high, shape).astype(dtype)

    def pick(self, *choices: Any) -> Any:
        return choices[self.random.integers(len(choices))]

    def lengths(self, count: int, low: int, high: int) -> list[int]:
        return [int(n) for n in self.random.integers(low, high, count)]

    def compare(
        self,
        op_type: str,
        arrays: Sequence[np.ndarray | None],
        outputs: int | None = None,
        constants: Sequence[int] = (),
        tolerance: float = 1e-5,
        **attributes: Any,
    ) -> None:
        """Evaluate one node here and in onnxruntime; inputs in `constants` are part of the model."""
        inputs: list[Any] = []
        for index, array in enumerate(arrays):
            if array is None or index in constants:
                inputs.append(None if array is None else Constant(array))
            else:
                element_type = ElementType.from_numpy(array.dtype)
                inputs.append(Parameter(element_type, array.shape, f"x{index}"))
        node = ops.create(op_type, inputs, attributes, num_outputs=outputs)
        parameters = [value for value in inputs if isinstance(value, Parameter)]
        model = Model(node.outputs, parameters)
        feeds = {p.friendly_name: arrays[int(p.friendly_name[1:])] for p in parameters}
        data = model_to_proto(model).SerializeToString()
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        for got, expected, output in zip(
            ops.evaluate_model(model, feeds), session.run(None, feeds), node.outputs, strict=True
        ):
            context = f"{op_type} {attributes} of {[None if a is None else a.shape for a in arrays]}"
            assert got.dtype == expected.dtype, context
            assert output.shape.accepts(got.shape), f"{context}: inferred {output.shape}, got {got.shape}"
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=tolerance, err_msg=context)


GENERATORS: dict[str, Callable[[Draw], None]] = {}


def generator(function: Callable[[Draw], None]) -> Callable[[Draw], None]:
    GENERATORS[function.__name__] = function
    return function


def _pads(draw: Draw, kernel: Sequence[int]) -> list[int]:
    return [int(draw.random.integers(0, k)) for k in (*kernel, *kernel)]


@generator
def conv(draw: Draw) -> None:
    rank, group = draw.pick(1, 2, 3), draw.pick(1, 2, 3)
    kernel = draw.lengths(rank, 1, 4)
    attributes: dict[str, Any] = {"strides": draw.lengths(rank, 1, 3), "group": group}
    if draw.pick(True, False):
        attributes |= {"pads": _pads(draw, kernel), "dilations": draw.lengths(rank, 1, 3)}
    else:
        attributes["auto_pad"] = draw.pick("VALID", "SAME_UPPER", "SAME_LOWER")
    x, w = draw.f32(2, 2 * group, *draw.lengths(rank, 5, 10)), draw.f32(3 * group, 2, *kernel)
    draw.compare("Conv", [x, w, draw.pick(None, draw.f32(3 * group))], tolerance=1e-4, **attributes)


@generator
def conv_transpose(draw: Draw) -> None:
    rank, group = draw.pick(1, 2), draw.pick(1, 2)
    kernel, strides = draw.lengths(rank, 1, 4), draw.lengths(rank, 1, 4)
    attributes: dict[str, Any] = {"strides": strides, "group": group}
    if draw.pick(True, False):
        attributes |= {"pads": _pads(draw, kernel), "output_padding": [int(draw.random.integers(s)) for s in strides]}
    else:
        attributes["auto_pad"] = draw.pick("VALID", "SAME_UPPER", "SAME_LOWER")
    x, w = draw.f32(2, 2 * group, *draw.lengths(rank, 4, 6)), draw.f32(2 * group, 3, *kernel)
    draw.compare("ConvTranspose", [x, w, draw.pick(None, draw.f32(3 * group))], tolerance=1e-4, **attributes)


def _pool_attributes(draw: Draw, rank: int) -> dict[str, Any]:
    kernel = draw.lengths(rank, 1, 4)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "ceil_mode": draw.pick(0, 1)}
    if draw.pick(True, True, False):
        attributes |= {"pads": _pads(draw, kernel), "dilations": draw.lengths(rank, 1, 3)}
        attributes["strides"] = draw.lengths(rank, 1, 4)
    else:  # with strides beyond the kernel, SAME padding is negative in onnxruntime
        attributes |= {"auto_pad": draw.pick("VALID", "SAME_UPPER", "SAME_LOWER"), "strides": kernel}
    return attributes


@generator
def max_pool(draw: Draw) -> None:
    rank = draw.pick(1, 2, 3)
    x = draw.f32(1, 2, *draw.lengths(rank, 5, 10))
    order = {"storage_order": draw.pick(0, 1)} if rank == 2 else {}
    x = draw.pick(x, (x * 50).astype(np.int8))
    draw.compare("MaxPool", [x], draw.pick(1, 2), **_pool_attributes(draw, rank), **order)


@generator
def average_pool(draw: Draw) -> None:
    rank = draw.pick(1, 2, 3)
    attributes = _pool_attributes(draw, rank) | {"count_include_pad": draw.pick(0, 1)}
    draw.compare("AveragePool", [draw.f32(1, 2, *draw.lengths(rank, 5, 10))], **attributes)


@generator
def lp_pool(draw: Draw) -> None:
    rank = draw.pick(1, 2)
    attributes = _pool_attributes(draw, rank) | {"p": draw.pick(1, 2, 3)}
    draw.compare("LpPool", [draw.f32(1, 2, *draw.lengths(rank, 5, 10))], **attributes)


@generator
def global_pool(draw: Draw) -> None:
    op_type = draw.pick("GlobalLpPool", "GlobalMaxPool", "GlobalAveragePool")
    draw.compare(op_type, [draw.f32(2, 3, *draw.lengths(draw.pick(1, 2, 3), 2, 6))])


@generator
def regions(draw: Draw) -> None:
    corners = np.sort(draw.ints(0, 9, (4, 2, 2), np.float32), axis=1).reshape(4, 4)
    rois = np.concatenate([draw.ints(0, 2, (4, 1), np.float32), corners], axis=1)
    scale = draw.pick(1.0, 0.5)
    draw.compare("MaxRoiPool", [draw.f32(2, 3, 10, 10), rois], pooled_shape=[2, 3], spatial_scale=scale)


@generator
def recurrent(draw: Draw) -> None:
    op_type, gates = draw.pick(("RNN", 1), ("GRU", 3), ("LSTM", 4))
    direction = draw.pick("forward", "reverse", "bidirectional")
    directions, length, batch, hidden = (2 if direction == "bidirectional" else 1), draw.pick(1, 3, 5), 3, 4
    state = (directions, batch, hidden)
    arrays = [
        draw.f32(length, batch, 3),
        draw.f32(directions, gates * hidden, 3),
        draw.f32(directions, gates * hidden, hidden),
        draw.pick(None, draw.f32(directions, 2 * gates * hidden)),
        draw.pick(None, draw.ints(1, length + 1, batch, np.int32)),
        draw.pick(None, draw.f32(*state)),
    ]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op_type == "LSTM":
        arrays += [draw.pick(None, draw.f32(*state)), draw.pick(None, draw.f32(directions, 3 * hidden))]
    if op_type == "GRU":
        attributes["linear_before_reset"] = draw.pick(0, 1)
    if draw.pick(True, False):
        attributes["clip"] = 0.5
    if draw.pick(True, False):
        functions = {"RNN": 1, "GRU": 2, "LSTM": 3}[op_type] * directions
        known = ("Tanh", "Sigmoid", "Relu", "Softsign", "HardSigmoid", "LeakyRelu", "Elu", "ScaledTanh")
        chosen = [draw.pick(*known) for _ in range(functions)]
        alphas = {"HardSigmoid": 0.3, "LeakyRelu": 0.02, "Elu": 0.9, "ScaledTanh": 0.8}
        betas = {"HardSigmoid": 0.4, "ScaledTanh": 0.6}
        attributes["activations"] = chosen
        attributes["activation_alpha"] = [alphas[name] for name in chosen if name in alphas]
        attributes["activation_beta"] = [betas[name] for name in chosen if name in betas]
    draw.compare(op_type, arrays, 3 if op_type == "LSTM" else 2, **attributes)


@generator
def resize(draw: Draw) -> None:
    mode = draw.pick("nearest", "linear", "cubic")
    transform = draw.pick("half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric", "pytorch_half_pixel")
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": transform}
    if mode == "nearest":
        attributes["nearest_mode"] = draw.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    x = draw.f32(1, 2, *draw.lengths(2, 3, 9))
    if draw.pick(True, False):
        sizes = np.array([1, 2, *draw.lengths(2, 1, 14)])
        draw.compare("Resize", [x, None, None, sizes], constants=[3], tolerance=1e-4, **attributes)
    else:  # whole lengths: for others onnxruntime differs from the ONNX suite in align_corners
        factors = (1, 2, 3) if transform == "align_corners" else (1, 2, 3, 0.5, 1.5)
        scales = np.array([1, 1, draw.pick(*factors), draw.pick(*factors)], np.float32)
        draw.compare("Resize", [x, None, scales], constants=[2], tolerance=1e-4, **attributes)


@generator
def pad(draw: Draw) -> None:
    rank, mode = draw.pick(1, 2, 3), draw.pick("constant", "reflect", "edge", "wrap")
    value = np.array(1.5, np.float32) if mode == "constant" else None
    pads = draw.ints(-1, 2 if mode == "reflect" else 3, 2 * rank)
    draw.compare("Pad", [draw.f32(*draw.lengths(rank, 3, 6)), pads, value], constants=[1], mode=mode)


@generator
def slices(draw: Draw) -> None:
    """Also bounds far outside, in both directions."""
    rank = int(draw.ints(1, 4))
    axes = draw.random.permutation(rank)[: int(draw.ints(1, rank + 1))]
    steps = draw.ints(1, 4, axes.size) * draw.random.choice([-1, 1], axes.size)
    bounds = [draw.ints(-9, 10, axes.size), draw.ints(-9, 10, axes.size), axes - rank * draw.ints(0, 2), steps]
    draw.compare("Slice", [draw.f32(*draw.lengths(rank, 1, 6)), *bounds], constants=[1, 2, 3, 4])


@generator
def gather(draw: Draw) -> None:
    rank = draw.pick(1, 2, 3)
    shape, axis = draw.lengths(rank, 3, 6), int(draw.random.integers(-rank, rank))
    picked = [int(draw.random.integers(1, n + 1)) for n in shape]
    picked[axis] = draw.pick(1, 4, 7)
    indices = draw.ints(-shape[axis], shape[axis], picked)
    draw.compare("GatherElements", [draw.f32(*shape), indices], axis=axis)
    batch = draw.pick(0, 1, 2)
    depth = int(draw.random.integers(1, 5 - batch))
    data, leading = draw.f32(2, 4, 5, 3), [2, 4][:batch]
    parts = [draw.ints(-data.shape[batch + i], data.shape[batch + i], [*leading, 3]) for i in range(depth)]
    draw.compare("GatherND", [data, np.stack(parts, axis=-1)], batch_dims=batch)


@generator
def scatter(draw: Draw) -> None:
    shape, reduction = draw.lengths(2, 3, 6), draw.pick("add", "mul", "min", "max")
    axis = draw.pick(0, 1, -1)
    picked = [int(draw.random.integers(1, n + 1)) for n in shape]
    indices = draw.ints(-shape[axis], shape[axis], picked)
    draw.compare("ScatterElements", [draw.f32(*shape), indices, draw.f32(*picked)], axis=axis, reduction=reduction)
    depth = draw.pick(1, 2, 3)
    data = draw.f32(4, 5, 3)
    places = np.stack([draw.ints(-data.shape[i], data.shape[i], 3) for i in range(depth)], axis=-1)
    updates = draw.f32(3, *data.shape[depth:])
    draw.compare("ScatterND", [data, places, updates], reduction=reduction)


@generator
def one_hot_and_running_sums(draw: Draw) -> None:
    values = draw.pick(np.array([0, 1], np.float32), np.array([2, 5]))
    draw.compare("OneHot", [draw.ints(-6, 6, (2, 3)), np.array(4), values], axis=draw.pick(-1, 0, 1, 2))
    axis = np.array(draw.pick(0, 1, -1))
    draw.compare("CumSum", [draw.f32(3, 4), axis], exclusive=draw.pick(0, 1), reverse=draw.pick(0, 1))
    attributes = draw.pick({}, {"axis": 0}, {"axis": 1})
    draw.compare("Unique", [draw.ints(0, 4, (3, 4), np.float32)], 4, sorted=draw.pick(0, 1), **attributes)


@generator
def quantize(draw: Draw) -> None:
    axis, dtype = draw.pick(0, 1, -1), draw.pick(np.uint8, np.int8, np.uint16, np.int16)
    x = draw.f32(3, 4, 5) * draw.pick(1, 1e3, 1e12)
    per_axis = draw.pick(True, False)
    shape = x.shape[axis] if per_axis else ()
    scale = (np.abs(draw.f32(x.shape[axis])) + 0.1) if per_axis else np.array(0.3, np.float32)
    zero_point = draw.ints(0, 100, shape, dtype)
    draw.compare("QuantizeLinear", [x, scale, zero_point], axis=axis)
    draw.compare("DequantizeLinear", [draw.ints(0, 100, x.shape, dtype), scale, zero_point], axis=axis)


@generator
def integer_products(draw: Draw) -> None:
    a, b = draw.ints(0, 255, (3, 4), np.uint8), draw.ints(0, 255, (4, 5), np.uint8)
    zero_a, zero_b = draw.ints(0, 9, (), np.uint8), draw.ints(0, 9, (), np.uint8)
    draw.compare("MatMulInteger", [a, b, draw.pick(None, zero_a), draw.pick(zero_b, draw.ints(0, 9, 5, np.uint8))])
    image, kernel = draw.ints(0, 255, (1, 2, 6, 6), np.uint8), draw.ints(0, 255, (4, 2, 3, 3), np.uint8)
    pads = draw.pick([0] * 4, [1, 0, 2, 1])
    draw.compare("ConvInteger", [image, kernel, draw.pick(None, zero_a), draw.pick(None, zero_b)], pads=pads)
    one = [np.array(0.1, np.float32), zero_a]
    # Both round to integers: one apart where the exact value is a half.
    scales = [a, *one, b, *one, np.array(3.0, np.float32), zero_b]
    draw.compare("QLinearMatMul", scales, tolerance=1.01)
    w_scale = draw.pick(np.array(0.03, np.float32), np.abs(draw.f32(4)) * 0.05 + 0.01)
    w_zero = np.zeros(w_scale.shape, np.uint8)
    out = [np.array(0.5, np.float32), zero_b, draw.pick(None, draw.ints(-500, 500, 4, np.int32))]
    inputs = [image, np.array(0.02, np.float32), zero_a, kernel, w_scale, w_zero, *out]
    draw.compare("QLinearConv", inputs, constants=range(1, 9), tolerance=1.01, pads=pads)


@generator
def normalization(draw: Draw) -> None:
    x, axis = draw.f32(2, 4, 3, 5), draw.pick(-1, 1, 2)
    shape = x.shape[axis:]
    draw.compare("LayerNormalization", [x, draw.f32(*shape), draw.pick(None, draw.f32(*shape))], 3, axis=axis)
    draw.compare("RMSNormalization", [x, draw.f32(*shape)], axis=axis)
    draw.compare("GroupNormalization", [x, draw.f32(4), draw.f32(4)], num_groups=draw.pick(1, 2, 4))
    draw.compare("InstanceNormalization", [x, draw.f32(4), draw.f32(4)])
    statistics = [draw.f32(4), np.abs(draw.f32(4))]
    draw.compare("BatchNormalization", [x, draw.f32(4), draw.f32(4), *statistics])
    draw.compare("LRN", [draw.f32(2, 7, 4, 4)], size=draw.pick(1, 3, 5), alpha=0.5, beta=0.7, bias=1.5)
    draw.compare("MeanVarianceNormalization", [x], tolerance=1e-3)
    draw.compare("LpNormalization", [x], axis=axis, p=draw.pick(1, 2))


@generator
def means(draw: Draw) -> None:
    shapes = [(4, 1), (3, 4, 5), (5,), ()]
    draw.random.shuffle(shapes)
    draw.compare("Mean", [draw.f32(*shape) for shape in shapes[: draw.pick(1, 2, 4)]])


@generator
def activations(draw: Draw) -> None:
    x = draw.f32(4, 4) * draw.pick(1, 10)
    x.flat[0] = draw.pick(np.nan, np.inf, -np.inf, 0.0)
    for op_type in ("Erf", "HardSwish", "Mish", "Celu", "Selu", "Softplus", "Sigmoid", "Round"):
        draw.compare(op_type, [x])
    draw.compare("Gelu", [x], approximate=draw.pick("none", "tanh"))


@generator
def grid_sample(draw: Draw) -> None:
    rank = draw.pick(2, 2, 3)
    x, grid = draw.f32(2, 2, *draw.lengths(rank, 2, 6)), draw.random.uniform(-1.6, 1.6, (2, *[3] * rank, rank))
    mode = draw.pick("nearest", "linear") if rank == 3 else draw.pick("nearest", "linear", "cubic")
    padding = draw.pick("zeros", "border", "reflection")
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": draw.pick(0, 1)}
    draw.compare("GridSample", [x, grid.astype(np.float32)], tolerance=1e-4, **attributes)


@generator
def deformable(draw: Draw) -> None:
    offset_group, group = draw.pick(1, 2), draw.pick(1, 2)
    x, w = draw.f32(1, 4, 6, 6), draw.f32(4, 4 // group, 3, 3)
    mask = draw.pick(None, np.abs(draw.f32(1, offset_group * 9, 6, 6)))
    inputs = [x, w, draw.f32(1, offset_group * 18, 6, 6), draw.pick(None, draw.f32(4)), mask]
    draw.compare("DeformConv", inputs, tolerance=1e-4, pads=[1] * 4, group=group, offset_group=offset_group)
    draw.compare("Col2Im", [draw.f32(2, 12, 9), np.array([4, 4]), np.array([2, 2])], constants=[1, 2])


@generator
def attention(draw: Draw) -> None:
    batch, heads, queries, keys, size = 2, 4, 3, 5, 8
    shared, past = draw.pick(4, 2, 1), draw.pick(0, 2)
    attributes: dict[str, Any] = {"is_causal": draw.pick(0, 1), "softcap": draw.pick(0.0, 2.0)}
    q, k, v = (draw.f32(batch, h, n, size) for h, n in ((heads, queries), (shared, keys), (shared, keys)))
    if draw.pick(True, False):
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], -1) for x in (q, k, v))
        attributes |= {"q_num_heads": heads, "kv_num_heads": shared}
    mask = draw.pick(None, draw.f32(queries, keys + past), draw.f32(queries, keys + past) > -1)
    cache = [draw.f32(batch, shared, past, size), draw.f32(batch, shared, past, size)] if past else []
    draw.compare("Attention", [q, k, v, mask, *cache], 3 if past else 1, **attributes)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_family(name: str) -> None:
    onnxruntime.set_default_logger_severity(4)
    for seed in range(_ROUNDS):
        GENERATORS[name](Draw(seed))
