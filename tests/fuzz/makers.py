"""The kinds of nodes that random graphs grow by."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from engine.errors import ModelError
from engine.ir import Constant, ElementType, Model, Parameter
from engine.ir.element_type import boolean, f16, f32, i8, i32, i64, u8
from engine.ops import cases, create
from engine.ops.cases.data import Data

from .growing import INTEGERS, REALS, Graph, Value

SMOOTH = ("Tanh", "Sigmoid", "Erf", "Softplus", "Sin", "Cos", "Gelu", "Mish", "Elu", "Atan", "Softsign", "Swish")
BENT = ("Relu", "Abs", "Neg", "LeakyRelu", "HardSigmoid", "HardSwish", "Identity", "Sign", "Floor", "Ceil", "Round")
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Add", "Mul", "PRelu")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp")
# Results of these are random, or depend on names that differ between runs.
LEFT_OUT = frozenset({"RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "Dropout"})


def unary(g: Graph) -> None:
    """A function of one value."""
    g.node(g.random.choice(SMOOTH + BENT), g.real())


def binary(g: Graph) -> None:
    """A function of two values, one of which is broadcast now and then."""
    a = g.real()
    b = g.pick(lambda v: v.type is a.type and v.shape == a.shape)
    if b is None or g.random.random() < 0.4:
        b = g.pick(lambda v: v.type is a.type and _broadcasts(v.shape, a.shape))
    if b is None or g.random.random() < 0.3:
        shape = [n if g.random.random() < 0.6 else 1 for n in a.shape][g.random.randint(0, a.array.ndim) :]
        b = g.leaf(g.draw(shape, a.type, 0.5, 2.0), a.type)
    op_type = g.random.choice(BINARY)
    pair = (a, b) if g.random.random() < 0.5 or op_type == "PRelu" else (b, a)
    g.node(op_type, *pair)


def quotient(g: Graph) -> None:
    """A division by values that are not near 0."""
    a, b = g.real(), None
    b = g.pick(lambda v: v.type is a.type and v.shape == a.shape) or a
    positive = g.node("Add", g.node("Abs", b), g.constant(np.asarray(0.5, a.type.numpy)))
    g.node(g.random.choice(("Div", "Div", "Mul")), a, positive)


def integers(g: Graph) -> None:
    """Arithmetic of integers, which wraps in the same way everywhere."""
    a = g.pick(lambda v: v.type.is_integral)
    if a is None:
        element_type = g.random.choice(INTEGERS)
        a = g.leaf(g.draw(g.shape(), element_type, -100, 100), element_type)
    b = g.pick(lambda v: v.type is a.type and _broadcasts(v.shape, a.shape)) or a
    g.node(g.random.choice(("Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseXor")), a, b)


def comparison(g: Graph) -> None:
    """A choice between two values."""
    a = g.pick(lambda v: v.type in (f32, i64, i32)) or g.real()
    b = g.pick(lambda v: v.type is a.type and _broadcasts(v.shape, a.shape)) or a
    condition = g.node(g.random.choice(("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")), a, b)
    if g.random.random() < 0.3:
        condition = g.node("Not", condition)
    g.node("Where", condition, a, b)


def cast(g: Graph) -> None:
    """A conversion to a type that can represent the values."""
    a = g.pick(lambda v: v.type is not boolean or g.random.random() < 0.3) or g.real()
    largest = float(np.abs(a.array.astype(np.float64)).max(initial=0.0)) + 1
    targets = [t for t in (*REALS, *INTEGERS, boolean) if t.is_real or t is boolean or _fits(a, t, largest)]
    g.node("Cast", a, to=g.random.choice(targets).onnx)


def reduction(g: Graph) -> None:
    """A reduction over some axes."""
    a = g.real(rank=1)
    axes = sorted(g.random.sample(range(a.array.ndim), g.random.randint(1, a.array.ndim)))
    if 0 in (a.shape[axis] for axis in axes):
        raise ModelError("the extreme of nothing")
    signed = [axis - a.array.ndim if g.random.random() < 0.3 else axis for axis in axes]
    g.node(g.random.choice(REDUCTIONS), a, g.constant(np.array(signed, np.int64)), keepdims=g.random.randint(0, 1))


def movement(g: Graph) -> None:
    """The same elements in another order or shape, or some of them."""
    a = g.pick(lambda v: v.array.ndim >= 1) or g.real(rank=1)
    rank, axis = a.array.ndim, g.random.randrange(a.array.ndim)
    match g.random.randrange(9):
        case 0:
            g.node("Transpose", a, perm=g.random.sample(range(rank), rank))
        case 1:
            g.node("Reshape", a, g.constant(np.array(_factored(g, a.array.size), np.int64)))
        case 2:
            g.node("Unsqueeze", a, g.constant(np.array([g.random.randint(0, rank)], np.int64)))
        case 3:
            step = g.random.choice((1, 1, 2, 3, -1, -2))
            start, end = (0, 2**31) if step > 0 else (-1, -(2**31))
            start = g.random.choice((start, g.random.randint(-a.shape[axis] - 1, a.shape[axis] + 1)))
            bounds = (np.array([n], np.int64) for n in (start, end, axis, step))
            g.node("Slice", a, *map(g.constant, bounds))
        case 4:
            others = [v for v in (a, a, g.pick(lambda v: v.type is a.type and _joins(v.shape, a.shape, axis))) if v]
            g.node("Concat", *others, axis=axis)
        case 5:
            index = g.draw(g.shape(2), i64, 0, max(0, a.shape[axis] - 1))
            if a.shape[axis]:
                g.node("Gather", a, g.leaf(index) if g.random.random() < 0.3 else g.constant(index), axis=axis)
        case 6:
            pads = [g.random.randint(0, 2) for _ in range(2 * rank)]
            mode = g.random.choice(("constant", "edge", "reflect")) if min(a.shape) > 2 else "constant"
            g.node("Pad", a, g.constant(np.array(pads, np.int64)), mode=mode)
        case 7:
            g.node("Tile", a, g.constant(np.array([g.random.randint(1, 2) for _ in range(rank)], np.int64)))
        case 8:
            count = min(g.random.randint(1, 3), max(1, a.shape[axis]))
            g.outputs("Split", a, axis=axis, num_outputs=count)


def shape_arithmetic(g: Graph) -> None:
    """A shape that is computed from another value's."""
    a, b = g.real(rank=1), g.real(rank=1)
    lengths = g.node("Shape", b)
    match g.random.randrange(3):
        case 0:
            g.node(
                "Reshape",
                a,
                g.node("Concat", g.node("Slice", g.node("Shape", a), *_bounds(g, 0, 1)), g.constant([-1]), axis=0),
            )
        case 1 if b.array.size <= 2000:
            g.node("ConstantOfShape", lengths, value=np.array([0.5], np.float32))
        case _ if _broadcasts(a.shape, b.shape):
            g.node("Expand", a, lengths)


def product(g: Graph) -> None:
    """A product of matrices, with what usually follows it."""
    a = g.real(rank=2)
    depth, width = a.shape[-1], g.random.choice((1, 3, 8, 16, 17))
    b = g.pick(
        lambda v: v.type is a.type and v.array.ndim >= 2 and v.shape[-2] == depth and v.array.ndim <= a.array.ndim
    )
    if b is None or not _broadcasts(b.shape[:-2], a.shape[:-2]) or g.random.random() < 0.5:
        b = g.leaf(g.draw((depth, width), a.type, -1, 1), a.type)
    made = g.node("MatMul", a, b)
    if g.random.random() < 0.6:
        made = g.node("Add", made, g.leaf(g.draw(made.shape[-1:], a.type), a.type))
    if g.random.random() < 0.6:
        g.node(g.random.choice(SMOOTH + BENT[:4]), made)


def gemm(g: Graph) -> None:
    """A Gemm."""
    a = g.pick(lambda v: v.array.ndim == 2 and v.type in (f32, f16)) or g.leaf(g.draw((5, 9), f32), f32)
    width, is_transposed = g.random.choice((1, 4, 17)), g.random.randint(0, 1)
    b = g.draw((width, a.shape[1]) if is_transposed else (a.shape[1], width), a.type, -1, 1)
    bias = g.leaf(g.draw(g.random.choice(((width,), (1,), (), (a.shape[0], 1))), a.type), a.type)
    alpha = g.random.choice((1.0, 0.5))
    g.node("Gemm", a, g.leaf(b, a.type), g.random.choice((None, bias)), alpha=alpha, transB=is_transposed)


def normalization(g: Graph) -> None:
    """Softmax and normalizations."""
    a = g.real(rank=1)
    axis = g.random.randrange(-a.array.ndim, a.array.ndim)
    if not a.array.size:
        raise ModelError("the mean of nothing")
    scale = g.draw(a.shape[axis:] if axis < 0 else a.shape[axis - a.array.ndim :], a.type, 0.5, 1.5)
    match g.random.randrange(4):
        case 0:
            g.node("Softmax", a, axis=axis)
        case 1:
            g.node("LogSoftmax", a, axis=axis)
        case 2:
            g.node("LayerNormalization", a, g.leaf(scale, a.type), axis=axis, epsilon=0.1)
        case 3:
            g.node("RMSNormalization", a, g.leaf(scale, a.type), axis=axis, epsilon=0.1)


def convolution(g: Graph) -> None:
    """A convolution with what usually follows it."""
    a = g.pick(lambda v: v.array.ndim == 4 and v.type is f32 and min(v.shape) >= 1)
    if a is None or g.random.random() < 0.2:
        channels = g.random.choice((1, 3, 4, 8, 16))
        a = g.leaf(g.draw((g.random.randint(1, 2), channels, g.random.randint(3, 9), g.random.randint(3, 9)), f32), f32)
    channels = a.shape[1]
    groups = g.random.choice((1, 1, channels))
    width = channels if groups > 1 else g.random.choice((1, 4, 8, 17))
    kernel = (min(a.shape[2], g.random.choice((1, 3, 3))), min(a.shape[3], g.random.choice((1, 3, 3, 5))))
    weights = g.draw((width, channels // groups, *kernel), f32, -0.5, 0.5)
    attributes = {"group": groups, "strides": g.random.choice(([1, 1], [2, 2], [1, 2]))}
    attributes["pads"] = [g.random.randint(0, k // 2) for k in kernel] * 2
    bias = g.constant(g.draw((width,), f32)) if g.random.random() < 0.6 else None
    made = g.node("Conv", a, g.constant(weights), bias, **attributes)
    match g.random.randrange(5):
        case 0:
            made = g.node("Relu", made)
        case 1:
            made = g.node("Clip", made, g.constant(np.float32(0)), g.constant(np.float32(6)))
        case 2:
            made = g.node("Mul", made, g.node("Sigmoid", made))
        case 3:
            facts = [g.constant(g.draw((width,), f32, low, 1.5)) for low in (0.5, -1, -1, 0.5)]
            made = g.node("BatchNormalization", made, *facts)
    if made.shape == a.shape and g.random.random() < 0.5:
        made = g.node("Add", made, a)
    if g.random.random() < 0.3 and min(made.shape[2:]) >= 2:
        g.node(g.random.choice(("MaxPool", "AveragePool")), made, kernel_shape=[2, 2], strides=[2, 2])


def quantized(g: Graph) -> None:
    """Nodes as a quantizer writes them: values rounded to 8 bits around a product, a sum or nothing."""
    a = g.pick(lambda v: v.type is f32) or g.leaf(g.draw(g.shape(), f32), f32)
    element_type = g.random.choice((u8, i8))
    made = _rounded(g, a, element_type)
    if a.array.ndim >= 2 and g.random.random() < 0.6 and a.shape[-1]:
        scales, width = np.float32(g.random.uniform(0.01, 0.05)), g.random.choice((4, 16, 17))
        weights = g.constant(g.draw((a.shape[-1], width), i8, -127, 127))
        made = g.node("MatMul", made, g.node("DequantizeLinear", weights, g.constant(scales), g.constant(np.int8(0))))
        if g.random.random() < 0.5:
            made = g.node("Relu", made)
        _rounded(g, made, element_type)
    elif g.random.random() < 0.5:
        _rounded(g, g.node("Add", made, _rounded(g, a, element_type)), element_type)


def integer_product(g: Graph) -> None:
    """A product of 8-bit integers."""
    a = g.pick(lambda v: v.type in (u8, i8) and v.array.ndim == 2) or g.leaf(g.draw((5, 9), u8, 0, 255), u8)
    b = g.draw((a.shape[1], g.random.choice((1, 8, 17))), i8, -127, 127)
    zero = g.constant(g.draw((), a.type, 0, 100), a.type)
    g.node("MatMulInteger", a, g.constant(b), zero)


def conditional(g: Graph) -> None:
    """An If whose branches capture values."""
    a = g.real()
    condition = g.pick(lambda v: v.type is boolean and v.array.size == 1) or g.leaf(np.array(g.random.random() < 0.5))
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = Parameter(a.type, None, f"c{name[0]}")
        body = create(g.random.choice(SMOOTH + BENT), [inner])
        if g.random.random() < 0.4:
            body = create(g.random.choice(("Add", "Mul", "Max")), [body, inner])
        branches[name] = Model([body], captures=[inner], name=name)
    g.outputs("If", g.node("Reshape", condition, g.constant(np.array([], np.int64))), a, a, **branches)


def loop(g: Graph) -> None:
    """A Loop that carries one value and scans out another."""
    a = g.pick(lambda v: v.type is f32) or g.leaf(g.draw(g.shape(), f32), f32)
    iteration, go_on = Parameter(i64, [], "i"), Parameter(boolean, [], "go")
    carried, captured = Parameter(f32, a.output.shape, "s"), Parameter(f32, a.output.shape, "k")
    kept = create(g.random.choice(("Tanh", "Sin", "Sigmoid")), [create("Add", [carried, captured])])
    scanned = create("ReduceMax", [kept], {"keepdims": 0}) if a.array.size else create("Identity", [iteration])
    go = create("Less", [iteration, Constant(np.int64(g.random.randint(0, 4)))])
    body = Model(
        [create("And", [go, go_on]), kept, scanned], [iteration, go_on, carried], captures=[captured], name="b"
    )
    trips = g.leaf(np.array(g.random.randint(0, 4), np.int64))
    g.outputs("Loop", trips, g.constant(np.array(True)), a, a, body=body)


def scan(g: Graph) -> None:
    """A Scan over the rows of a value."""
    a = g.pick(lambda v: v.type is f32 and v.array.ndim >= 2) or g.leaf(g.draw((4, 5), f32), f32)
    state, row = Parameter(f32, a.shape[1:], "s"), Parameter(f32, a.shape[1:], "r")
    kept = create("Tanh", [create(g.random.choice(("Add", "Sub", "Max")), [state, row])])
    body = Model([kept, create("Mul", [kept, row])], [state, row], name="b")
    initial = g.leaf(g.draw(a.shape[1:], f32), f32)
    direction = [g.random.randint(0, 1)]
    g.outputs("Scan", initial, a, body=body, num_scan_inputs=1, scan_input_directions=direction)


def operator_case(g: Graph) -> None:
    """A node of the operator suite, whose inputs come from the graph as far as they may be anything."""
    case = g.random.choice(_cases())
    inputs: list[Value | None] = []
    for data, array in zip(case.inputs, case.arrays(), strict=True):
        if data is None or array is None:
            inputs.append(None)
        elif data.is_constant:
            inputs.append(Value(g.constant(array, data.type), array))
        else:
            found = adapted(g, data) if data.values is None and g.random.random() < 0.7 else None
            inputs.append(found or g.leaf(array, data.type))
    attributes = {k: v.onnx if isinstance(v, ElementType) else v for k, v in case.attributes.items()}
    sources = [None if value is None else value.output for value in inputs]
    made = create(case.op_type, sources, attributes, domain=case.domain, num_outputs=case.num_outputs)
    g.evaluated(made)


def adapted(g: Graph, data: Data) -> Value | None:
    """A value of the graph, converted to the shape, type and range that an operator requires; None if there is none."""
    count = math.prod(data.shape)
    value = g.pick(lambda v: v.shape == data.shape and v.type is data.type) or g.pick(lambda v: v.array.size > 0)
    if value is None or (value.array.size == 0 and count):
        return None
    if value.shape != data.shape:
        value = g.node("Reshape", value, g.constant(np.array([-1])))
        if value.array.size != count:
            value = g.node("Gather", value, g.constant(np.arange(count) % value.array.size))
        value = g.node("Reshape", value, g.constant(np.array(data.shape, np.int64)))
    if data.type is boolean or value.type is boolean:
        if value.type is not data.type:
            value = g.node("Cast", value, to=data.type.onnx)
    elif data.type.is_real:
        value = value if value.type is data.type else g.node("Cast", value, to=data.type.onnx)
    elif value.type is not data.type:
        value = g.node(
            "Clip", value, *(g.constant(np.asarray(n, value.type.numpy)) for n in _common(data.type, value.type))
        )
        value = g.node("Cast", value, to=data.type.onnx)
    return _within(g, value, data)


def _within(g: Graph, value: Value, data: Data) -> Value:
    """`value` with its elements between the bounds of `data`."""
    if data.type is boolean or not value.array.size:
        return value
    low, high = float(value.array.min()), float(value.array.max())
    if data.type.is_real:
        if data.low <= low and high <= data.high:
            return value
        half, middle = (data.high - data.low) / 2.1, (data.high + data.low) / 2
        value = g.node("Mul", g.node("Tanh", value), g.constant(np.asarray(half, data.type.numpy)))
        return g.node("Add", value, g.constant(np.asarray(middle, data.type.numpy)))
    if data.low <= low and high < data.high:
        return value
    bounds = (
        g.constant(np.asarray(n, data.type.numpy)) for n in (int(data.low), max(int(data.low), int(data.high) - 1))
    )
    return g.node("Clip", value, *bounds)


MAKERS: tuple[tuple[float, Callable[[Graph], object]], ...] = (
    (10, operator_case), (4, unary), (4, binary), (1, quotient), (1, integers), (2, comparison), (1, cast),
    (2, reduction), (4, movement), (1, shape_arithmetic), (2, product), (0.5, gemm), (2, normalization),
    (2, convolution), (1.5, quantized), (0.5, integer_product), (0.5, conditional), (0.4, loop), (0.4, scan),
)  # fmt: skip
"""Weights and kinds."""


@functools.cache
def _cases() -> list[cases.OperatorCase]:
    """The cases of the operator suite that are small, and whose values are not at the edges of their types."""
    found = []
    for case in cases.all_cases().values():
        given = [data for data in case.inputs if data is not None]
        is_small = all(math.prod(data.shape) <= 4096 for data in given)
        is_tame = all(data.magnitude <= 1000 and not _has_special(data) for data in given)
        if is_small and is_tame and case.op_type not in LEFT_OUT and "edges" not in case.name:
            found.append(case)
    return found


def _has_special(data: Data) -> bool:
    return any(isinstance(v, float) and not math.isfinite(v) for v in data.values or ())


def _rounded(g: Graph, value: Value, element_type: ElementType) -> Value:
    scale = g.constant(np.float32(g.random.choice((0.02, 0.05, 0.11))))
    zero = g.constant(np.asarray(g.random.choice((0, 3, 100)), element_type.numpy))
    return g.node("DequantizeLinear", g.node("QuantizeLinear", value, scale, zero), scale, zero)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m in (n, 1) for m, n in zip(reversed(a), reversed(b), strict=False)) and len(a) <= len(b)


def _joins(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> bool:
    return len(a) == len(b) and all(m == n for i, (m, n) in enumerate(zip(a, b, strict=True)) if i != axis)


def _factored(g: Graph, size: int) -> list[int]:
    """A shape of `size` elements; one length may be -1."""
    if size == 0:
        return [0]
    lengths, rest = [], size
    for divisor in g.random.sample((2, 3, 4, 5, 7, 8), 3):
        if rest % divisor == 0:
            lengths.append(divisor)
            rest //= divisor
    lengths.insert(g.random.randint(0, len(lengths)), g.random.choice((rest, -1)))
    return lengths


def _bounds(g: Graph, start: int, end: int) -> list[object]:
    return [g.constant(np.array([n], np.int64)) for n in (start, end)]


def _fits(value: Value, target: ElementType, largest: float) -> bool:
    if value.type.is_integral or value.type is boolean:
        return True
    bounds = np.iinfo(target.numpy)
    return largest < bounds.max and (bounds.min < 0 or float(value.array.min(initial=0)) >= 0)


def _common(a: ElementType, b: ElementType) -> tuple[int, int]:
    """The bounds of what both types have."""
    limits = [np.iinfo(t.numpy) for t in (a, b) if not t.is_real]
    return max(max(int(t.min) for t in limits), -1000), min(min(int(t.max) for t in limits), 1000)
