"""Operators that exporters wrote under this domain before ONNX had them, and small ones that ONNX composes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from engine import ops
from engine.ir import Constant, Output, f32, f64, i32, i64, u8
from engine.onnx.contrib.call import BYTES, REALS, ContribCall, contrib
from engine.onnx.upgrades.emit import cast, emit, i64_scalar, i64s, rank_of, scalar_like

_INDICES: Final = frozenset({i32, i64})
_MODES: Final = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
_PADDINGS: Final = ("constant", "reflect", "edge")


@contrib("Trilu", "X k?", "upper", outputs="Y")
def _trilu(call: ContribCall) -> list[Output]:
    k = None
    if call.has_input(1):
        call.single(1)
        k = emit("Reshape", call.typed(1, {i64}), i64s([]))
    return [emit("Trilu", call.input(0), k, upper=call.choice("upper", 1, (0, 1)))]


@contrib("GridSample", "X Grid", "align_corners mode padding_mode", outputs="Y")
def _grid_sample(call: ContribCall) -> list[Output]:
    call.ranked(0, 4)
    mode = call.text("mode", "bilinear")
    if mode not in _MODES:
        call.invalid(f"attribute `mode` is {mode!r}; expected {' or '.join(map(repr, _MODES))}")
    attributes = {
        "mode": _MODES[mode],
        "padding_mode": call.text("padding_mode", "zeros"),
        "align_corners": call.choice("align_corners", 0, (0, 1)),
    }
    return [emit("GridSample", call.typed(0, REALS), call.real(1), **attributes)]


@contrib("ExpandDims", "X axis", outputs="Y")
def _expand_dims(call: ContribCall) -> list[Output]:
    call.single(1)
    return [emit("Unsqueeze", call.input(0), emit("Reshape", cast(call.typed(1, {i32}), i64), i64s([1])))]


@contrib("GatherND", "data indices")
def _gather_nd(call: ContribCall) -> list[Output]:
    return [emit("GatherND", call.input(0), cast(call.typed(1, _INDICES), i64))]


@contrib("Pad", "data pads value?", "mode")
def _pad(call: ContribCall) -> list[Output]:
    mode = call.text("mode", "constant")
    if mode not in _PADDINGS:
        call.invalid(f"attribute `mode` is {mode!r}; expected {' or '.join(map(repr, _PADDINGS))}")
    pads = emit("Reshape", call.typed(1, {i64}), i64s([-1]))
    value = None
    if call.has_input(2):
        call.single(2)
        value = emit("Reshape", call.real(2), i64s([]))
    return [emit("Pad", call.typed(0, REALS), pads, value, mode=mode)]


@contrib("Range", "start limit delta?", outputs="Y")
def _range(call: ContribCall) -> list[Output]:
    numbers: list[Output] = []
    for index in range(3):
        if not call.has_input(index):
            numbers.append(scalar_like(1.0, numbers[0]))
            continue
        call.single(index)
        numbers.append(emit("Reshape", call.input(index), i64s([])))
    return [emit("Range", *numbers)]


@contrib("Unique", "x", outputs="y idx counts")
def _unique(call: ContribCall) -> list[Output]:
    """In the order in which they occur."""
    call.ranked(0, 1)
    values, _, inverse, counts = ops.create("Unique", [call.input(0)], {"sorted": 0}, num_outputs=4).outputs
    return [values, inverse, counts]


@contrib("UnfoldTensor", "input", "dim size step")
def _unfold(call: ContribCall) -> list[Output]:
    """Windows along one axis, as a further axis at the end."""
    size, step = call.integer("size"), call.integer("step", 1)
    for name, value in (("size", size), ("step", step)):
        if value < 1:
            call.invalid(f"attribute `{name}` is {value}; expected 1 or more")
    x, rank = call.input(0), rank_of(call.input(0))
    if rank is None:
        call.unsupported(f"the rank of {call.described(0)} is unknown", "state its shape in the model's value_info")
    axis = call.integer("dim", -1)
    if not -rank <= axis < rank:
        call.invalid(f"attribute `dim` is {axis}; expected {-rank} to {rank - 1}")
    axis %= rank
    longest = x.shape[axis].max
    if longest is not None and longest < size:
        call.invalid(f"attribute `size` is {size}; expected at most the length of axis {axis} of {x.shape}")
    length = emit("Squeeze", emit("Shape", x, start=axis, end=axis + 1), i64s([0]))
    end = emit("Sub", length, i64_scalar(size - 1))
    starts = emit("Unsqueeze", emit("Range", i64_scalar(0), end, i64_scalar(step)), i64s([1]))
    windows = emit("Gather", x, emit("Add", starts, i64s(range(size))), axis=axis)
    order = [i for i in range(rank + 1) if i != axis + 1]
    return [emit("Transpose", windows, perm=(*order, axis + 1))]


@contrib("CDist", "A B", "metric", outputs="C")
def _distances(call: ContribCall) -> list[Output]:
    """Between each row of A and each row of B: from the product of both, as onnxruntime computes them."""
    metric = call.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        call.unsupported(f"attribute `metric` is {metric!r}", "known ones are 'euclidean' and 'sqeuclidean'")
    call.typed(0, {f32, f64})
    call.ranked(0, 2)
    call.ranked(1, 2)
    a, b = call.input(0), call.real(1)
    rows = emit("ReduceSumSquare", a, i64s([1]), keepdims=1)
    columns = emit("ReduceSumSquare", b, i64s([1]), keepdims=0)
    product = emit("MatMul", a, emit("Transpose", b, perm=(1, 0)))
    squares = emit("Sub", emit("Add", rows, columns), emit("Mul", product, scalar_like(2.0, a)))
    squares = emit("Max", squares, scalar_like(0.0, a))  # rounding may have made it negative
    return [emit("Sqrt", squares) if metric == "euclidean" else squares]


@contrib("NhwcMaxPool", "x", "auto_pad ceil_mode dilations kernel_shape pads strides", outputs="y")
def _max_pool(call: ContribCall) -> list[Output]:
    """The operator of ONNX, whose channels are the second axis."""
    rank = rank_of(call.input(0))
    if rank is None or rank < 3:
        call.invalid(f"{call.described(0)} has shape {call.input(0).shape}; expected [batch, ..., channels]")
    attributes: dict[str, Any] = dict(call.attributes)
    if len(call.integers("kernel_shape")) != rank - 2:
        call.invalid(f"attribute `kernel_shape` is {list(call.integers('kernel_shape'))}; expected {rank - 2} lengths")
    first = emit("Transpose", call.typed(0, BYTES), perm=(0, rank - 1, *range(1, rank - 1)))
    return [emit("Transpose", emit("MaxPool", first, **attributes), perm=(0, *range(2, rank), 1))]


_FP4: Final = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""The positive values of bitsandbytes' 4-bit floats; the others are their negatives."""
_NF4: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The values of NF4 (QLoRA, appendix E)."""
_BLOCKS: Final = (16, 32, 64, 128, 256)


@contrib("MatMulBnb4", "A B absmax", "K N block_size quant_type training_mode transB", outputs="Y")
def _product_of_floats(call: ContribCall) -> list[Output]:
    """MatMul with the table's values of the codes, two in a byte, times a number for each block.

    `transB` 0, for the backward pass, is refused: onnxruntime 1.32 multiplies by other weights than its documentation.
    """
    call.without_attributes(transB=1)
    rows, columns = (call.heads(name) for name in ("N", "K"))
    size = call.choice("block_size", 0, _BLOCKS)
    table = np.array(_NF4 if call.choice("quant_type", -1, (0, 1)) else (*_FP4, *(-x for x in _FP4)), np.float32)
    count = rows * columns
    for index, expected in ((1, -(-count // 2)), (2, -(-count // size))):
        shape = call.ranked(index, 1).shape
        if shape.rank.is_static and not shape[0].accepts(expected):
            call.invalid(f"{call.described(index)} has shape {shape}; expected [{expected}] for {count} weights")
    codes = cast(call.typed(1, {u8}), i32)
    sixteen = cast(i64_scalar(16), i32)
    pairs = [emit("Unsqueeze", emit(op_type, codes, sixteen), i64s([1])) for op_type in ("Div", "Mod")]
    flat = emit("Reshape", emit("Concat", *pairs, axis=1), i64s([-1]))
    values = emit("Gather", Constant(table).output(0), flat, axis=0)
    scale = cast(call.real(2), f32)
    missing = -count % size
    if missing or count % 2:
        values = emit("Slice", values, i64s([0]), i64s([count]), i64s([0]))
        values = emit("Pad", values, i64s([0, missing]))
    scaled = emit("Mul", emit("Reshape", values, i64s([-1, size])), emit("Unsqueeze", scale, i64s([1])))
    weights = emit("Reshape", scaled, i64s([-1]))
    if missing:
        weights = emit("Slice", weights, i64s([0]), i64s([count]), i64s([0]))
    weights = emit("CastLike", emit("Reshape", weights, i64s([rows, columns])), call.typed(0, REALS))
    return [emit("MatMul", call.input(0), emit("Transpose", weights, perm=(1, 0)))]
