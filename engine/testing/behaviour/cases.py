"""Small models with inputs and answers computed with numpy, which the behaviour suite runs on every device.

A case is a function that returns a `Case`; `@_case` adds it to `CASES`, over which checks iterate. Answers are computed
with numpy and plain Python, never with an ONNX evaluator, so that a device is not compared with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engine.startup import dataclass

Array = NDArray[Any]
Values = Mapping[str, Any]

# An opset that devices and onnxruntime both support, and its IR version.
OPSET: Final = 20
_IR_VERSION: Final = 9

_FLOAT = onnx.TensorProto.FLOAT
_INT64 = onnx.TensorProto.INT64
_BOOL = onnx.TensorProto.BOOL


@dataclass(frozen=True, slots=True)
class Sample:
    """One inference: inputs by name, and expected outputs by name."""

    inputs: Values
    outputs: Values


@dataclass(frozen=True, slots=True)
class Case:
    """A model and samples, which one request infers in order."""

    name: str
    model: onnx.ModelProto
    samples: tuple[Sample, ...]

    def __str__(self) -> str:
        return self.name


CASES: Final[list[Case]] = []

_Built: TypeAlias = tuple[onnx.ModelProto, Sequence[Sample]]


def _case(build: Callable[[], _Built]) -> Callable[[], object]:
    model, samples = build()
    CASES.append(Case(build.__name__, model, tuple(samples)))
    return build


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Array] | None = None,
    *,
    name: str = "model",
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Return a model at `OPSET`; `domains` are further operator sets."""
    initializers = [numpy_helper.from_array(value, key) for key, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), initializers)
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": OPSET, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def tensor(name: str, shape: Sequence[int | str] | None, element_type: int = _FLOAT) -> onnx.ValueInfoProto:
    """Return the declaration of an input or output, float32 unless stated."""
    return helper.make_tensor_value_info(name, element_type, shape)


def values(shape: tuple[int, ...], start: float = -1.0, step: float = 0.25) -> Array:
    """Return distinct float32 numbers that binary floating point holds exactly."""
    count = int(np.prod(shape, dtype=np.int64))
    return (start + step * np.arange(count, dtype=np.float32)).reshape(shape).astype(np.float32)


@_case
def elementwise() -> _Built:
    """Arithmetic with a constant, and one value read twice."""
    nodes = [
        helper.make_node("Add", ["x", "two"], ["sum"]),
        helper.make_node("Mul", ["sum", "x"], ["y"]),
    ]
    model = make_model(nodes, [tensor("x", [2, 3, 4])], [tensor("y", [2, 3, 4])], {"two": np.array([2.0], np.float32)})
    x = values((2, 3, 4))
    return model, [Sample({"x": x}, {"y": (x + np.float32(2)) * x})]


@_case
def broadcast() -> _Built:
    """Two inputs broadcast to a common shape that differs from both."""
    node = helper.make_node("Sub", ["x", "z"], ["y"])
    model = make_model([node], [tensor("x", [2, 1, 4]), tensor("z", [3, 1])], [tensor("y", [2, 3, 4])])
    x, z = values((2, 1, 4)), values((3, 1), start=5.0)
    return model, [Sample({"x": x, "z": z}, {"y": x - z})]


@_case
def convolution() -> _Built:
    """Convolution with padding, stride and bias, and the ReLU that devices fuse with it."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "bias"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    w, bias = values((4, 3, 3, 3), start=-3.0, step=0.0625), np.array([0.5, -0.5, 1.0, -60.0], np.float32)
    model = make_model(nodes, [tensor("x", [1, 3, 7, 7])], [tensor("y", [1, 4, 4, 4])], {"w": w, "bias": bias})
    x = values((1, 3, 7, 7), start=-4.0, step=0.0625)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    y = np.einsum("nchwij,ocij->nohw", windows, w, dtype=np.float64) + bias[:, None, None]
    return model, [Sample({"x": x}, {"y": np.maximum(y, 0).astype(np.float32)})]


@_case
def pooling() -> _Built:
    """Max pooling with windows that do not overlap."""
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    model = make_model([node], [tensor("x", [1, 2, 4, 6])], [tensor("y", [1, 2, 2, 3])])
    x = np.sin(values((1, 2, 4, 6), step=1.0))
    return model, [Sample({"x": x}, {"y": x.reshape(1, 2, 2, 2, 3, 2).max(axis=(3, 5))})]


@_case
def matrix_product() -> _Built:
    """A product with constant weights, and a bias."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
    ]
    w, bias = values((5, 3), step=0.125), values((3,))
    model = make_model(nodes, [tensor("x", [2, 5])], [tensor("y", [2, 3])], {"w": w, "bias": bias})
    x = values((2, 5))
    return model, [Sample({"x": x}, {"y": x @ w + bias})]


@_case
def softmax() -> _Built:
    """Softmax, also of large numbers, whose exponentials overflow."""
    model = make_model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=1)], [tensor("x", [2, 4])], [tensor("y", [2, 4])]
    )
    x = values((2, 4))
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    # The second would overflow without the subtraction of the maximum.
    return model, [
        Sample({"x": x}, {"y": exponentials / exponentials.sum(axis=1, keepdims=True)}),
        Sample({"x": x * 0 + np.float32(200)}, {"y": np.full((2, 4), 0.25, np.float32)}),
    ]


@_case
def several_ports() -> _Built:
    """Ports not in alphabetical order, one unused input, one value that two nodes read."""
    nodes = [
        helper.make_node("Mul", ["c", "a"], ["shared"]),
        helper.make_node("Neg", ["shared"], ["z"]),
        helper.make_node("Abs", ["shared"], ["y"]),
    ]
    inputs = [tensor("c", [2]), tensor("unused", [3]), tensor("a", [2])]
    model = make_model(nodes, inputs, [tensor("z", [2]), tensor("y", [2])])
    c, a = values((2,)), values((2,), start=3.0)
    return model, [Sample({"c": c, "unused": values((3,)), "a": a}, {"z": -(c * a), "y": np.abs(c * a)})]


@_case
def dynamic_batch() -> _Built:
    """A symbolic dimension with several lengths in turn."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    w = values((3, 2))
    model = make_model(nodes, [tensor("x", ["N", 3])], [tensor("y", ["N", 2])], {"w": w})
    batches = [values((n, 3), start=float(n)) for n in (1, 4, 2, 4)]
    return model, [Sample({"x": x}, {"y": np.maximum(x @ w, 0)}) for x in batches]


@_case
def computed_lengths() -> _Built:
    """Pads computed from the lengths of a value, whose lengths depend on other computed pads: two steps."""
    nodes = [
        helper.make_node("Shape", ["x"], ["lengths"]),
        helper.make_node("Mod", ["lengths", "divisors"], ["ends"]),
        helper.make_node("Concat", ["zeros", "ends"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["longer"]),
        helper.make_node("Shape", ["longer"], ["longer_lengths"]),
        helper.make_node("Mod", ["longer_lengths", "divisors"], ["begins"]),
        helper.make_node("Concat", ["begins", "zeros"], ["more_pads"], axis=0),
        helper.make_node("Pad", ["longer", "more_pads"], ["y"]),
    ]
    constants = {"divisors": np.array([3, 2], np.int64), "zeros": np.zeros(2, np.int64)}
    model = make_model(nodes, [tensor("x", ["N", 3])], [tensor("y", ["M", "L"])], constants)

    def answer(x: Array) -> Array:
        longer = np.pad(x, [(0, x.shape[0] % 3), (0, x.shape[1] % 2)])
        return np.pad(longer, [(longer.shape[0] % 3, 0), (longer.shape[1] % 2, 0)])

    return model, [Sample({"x": x}, {"y": answer(x)}) for x in (values((n, 3), start=float(n)) for n in (5, 1, 3))]


@_case
def computed_constant() -> _Built:
    """An operand that the model computes only from constants."""
    nodes = [helper.make_node("Neg", ["c"], ["n"]), helper.make_node("Add", ["x", "n"], ["y"])]
    c, x = values((2, 3)), values((2, 3), start=3.0)
    model = make_model(nodes, [tensor("x", [2, 3])], [tensor("y", [2, 3])], {"c": c})
    return model, [Sample({"x": x}, {"y": x - c})]


@_case
def data_dependent_shape() -> _Built:
    """An output whose shape depends on values; it may be empty."""
    model = make_model(
        [helper.make_node("NonZero", ["x"], ["y"])], [tensor("x", [4])], [tensor("y", [1, "count"], _INT64)]
    )
    given = [np.array([0, 1, 0, 2], np.float32), np.array([1, 1, 1, 1], np.float32), np.zeros(4, np.float32)]
    return model, [Sample({"x": x}, {"y": np.array(np.nonzero(x), np.int64)}) for x in given]


@_case
def scalar() -> _Built:
    """Inputs and outputs of rank 0, without axes."""
    nodes = [
        helper.make_node("Mul", ["x", "three"], ["y"]),
        helper.make_node("ReduceMax", ["row"], ["top"], keepdims=0),
    ]
    inputs, outputs = [tensor("x", []), tensor("row", [4])], [tensor("y", []), tensor("top", [])]
    model = make_model(nodes, inputs, outputs, {"three": np.array(3, np.float32)})
    row = np.array([1, 4, 2, 3], np.float32)
    given = {"x": np.array(1.5, np.float32), "row": row}
    return model, [Sample(given, {"y": np.array(4.5, np.float32), "top": np.array(4, np.float32)})]


@_case
def empty() -> _Built:
    """Tensors with an axis of length 0."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Concat", ["x", "more"], ["joined"], axis=0),
    ]
    inputs, outputs = [tensor("x", [0, 3]), tensor("more", [2, 3])], [tensor("y", [0, 3]), tensor("joined", [2, 3])]
    x, more = np.zeros((0, 3), np.float32), values((2, 3))
    return make_model(nodes, inputs, outputs), [Sample({"x": x, "more": more}, {"y": x, "joined": more})]


@_case
def integers() -> _Built:
    """64-bit integers that float64 cannot represent."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["y"]),
        helper.make_node("Cast", ["x"], ["f"], to=_FLOAT),
    ]
    outputs = [tensor("y", [4], _INT64), tensor("f", [4])]
    model = make_model(nodes, [tensor("x", [4], _INT64)], outputs, {"factor": np.array([3], np.int64)})
    # 2**53 + 1 is the first integer that float64 cannot represent.
    x = np.array([-7, 0, 2**53 + 1, 5], np.int64)
    return model, [Sample({"x": x}, {"y": x * 3, "f": x.astype(np.float32)})]


@_case
def booleans() -> _Built:
    """Boolean inputs and outputs, and a selection by them."""
    nodes = [
        helper.make_node("Less", ["x", "z"], ["less"]),
        helper.make_node("And", ["less", "mask"], ["both"]),
        helper.make_node("Where", ["both", "x", "z"], ["y"]),
    ]
    inputs = [tensor("x", [4]), tensor("z", [4]), tensor("mask", [4], _BOOL)]
    model = make_model(nodes, inputs, [tensor("both", [4], _BOOL), tensor("y", [4])])
    x, z, mask = (
        np.array([1, 2, 3, 4], np.float32),
        np.array([4, 3, 2, 1], np.float32),
        np.array([True, False, True, False]),
    )
    both = (x < z) & mask
    return model, [Sample({"x": x, "z": z, "mask": mask}, {"both": both, "y": np.where(both, x, z)})]


@_case
def half_precision() -> _Built:
    """Inputs and outputs of f16."""
    kind = onnx.TensorProto.FLOAT16
    model = make_model([helper.make_node("Add", ["x", "x"], ["y"])], [tensor("x", [6], kind)], [tensor("y", [6], kind)])
    x = values((6,)).astype(np.float16)
    return model, [Sample({"x": x}, {"y": x + x})]


@_case
def double_precision() -> _Built:
    """float64, with precision and range beyond float32."""
    kind = onnx.TensorProto.DOUBLE
    model = make_model([helper.make_node("Mul", ["x", "x"], ["y"])], [tensor("x", [3], kind)], [tensor("y", [3], kind)])
    x = np.array([1 + 2.0**-40, -3.0, 1e200])
    return model, [Sample({"x": x}, {"y": np.array([1 + 2.0**-39 + 2.0**-80, 9.0, np.inf])})]


@_case
def constant_output() -> _Built:
    """An output that depends on no input."""
    table = values((2, 2))
    nodes = [
        helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(table, "table")),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    model = make_model(nodes, [tensor("x", [2])], [tensor("table", [2, 2]), tensor("y", [2])])
    x = np.array([-1, 1], np.float32)
    return model, [Sample({"x": x}, {"table": table, "y": np.array([0, 1], np.float32)})]


@_case
def no_inputs() -> _Built:
    """A network without inputs, which computes from constants alone."""
    row = values((3,))
    model = make_model([helper.make_node("Neg", ["row"], ["y"])], [], [tensor("y", [3])], {"row": row})
    return model, [Sample({}, {"y": -row})]


@_case
def passed_through() -> _Built:
    """An input that is also an output under its own name, and one under another name."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = make_model(nodes, [tensor("x", [2, 2])], [tensor("x", [2, 2]), tensor("y", [2, 2])])
    x = values((2, 2))
    return model, [Sample({"x": x}, {"x": x, "y": x})]


@_case
def one_value_twice() -> _Built:
    """Two outputs that become one value when a device removes Identity."""
    nodes = [
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node("Identity", ["negative"], ["first"]),
        helper.make_node("Identity", ["negative"], ["second"]),
    ]
    model = make_model(nodes, [tensor("x", [3])], [tensor("first", [3]), tensor("second", [3])])
    x = values((3,))
    return model, [Sample({"x": x}, {"first": -x, "second": -x})]


@_case
def unusual_names() -> _Built:
    """Names that are neither identifiers nor file names."""
    node = helper.make_node("Relu", ["a/b:0"], ["größe 1"], name="../node")
    model = make_model([node], [tensor("a/b:0", [2])], [tensor("größe 1", [2])], name="a model/of: ünusual name")
    return model, [Sample({"a/b:0": np.array([-1, 2], np.float32)}, {"größe 1": np.array([0, 2], np.float32)})]


@_case
def branches() -> _Built:
    """If, whose branches read a value of the outer graph."""
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "then", [], [tensor("t", [2])])
    other = helper.make_graph([helper.make_node("Add", ["x", "x"], ["e"])], "else", [], [tensor("e", [2])])
    node = helper.make_node("If", ["condition"], ["y"], then_branch=then, else_branch=other)
    model = make_model([node], [tensor("condition", [], _BOOL), tensor("x", [2])], [tensor("y", [2])])
    x = np.array([1, -2], np.float32)
    return model, [
        Sample({"condition": np.array(True), "x": x}, {"y": -x}),
        Sample({"condition": np.array(False), "x": x}, {"y": x + x}),
    ]


@_case
def loop() -> _Built:
    """Loop with a carried value, a scan output, and an iteration count from an input."""
    body_nodes = [
        helper.make_node("Mul", ["carried", "two"], ["doubled"]),
        helper.make_node("Identity", ["going"], ["still"]),
        helper.make_node("Identity", ["doubled"], ["seen"]),
    ]
    body = helper.make_graph(
        body_nodes,
        "body",
        [tensor("i", [], _INT64), tensor("going", [], _BOOL), tensor("carried", [2])],
        [tensor("still", [], _BOOL), tensor("doubled", [2]), tensor("seen", [2])],
    )
    node = helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=body)
    inputs, outputs = [tensor("trips", [], _INT64), tensor("x", [2])], [tensor("last", [2]), tensor("all", ["n", 2])]
    x = np.array([1, -3], np.float32)
    samples = []
    for trips in (3, 1):
        steps = [x * np.float32(2**i) for i in range(1, trips + 1)]
        given = {"trips": np.array(trips, np.int64), "x": x}
        samples.append(Sample(given, {"last": steps[-1], "all": np.stack(steps)}))
    return make_model([node], inputs, outputs, {"two": np.array([2], np.float32)}), samples


def counting_case() -> Case:
    """A loop that counts to its input in steps of 1, so it can run arbitrarily long."""
    body = helper.make_graph(
        [helper.make_node("Add", ["before", "one"], ["after"]), helper.make_node("Identity", ["going"], ["still"])],
        "body",
        [tensor("i", [], _INT64), tensor("going", [], _BOOL), tensor("before", [], _INT64)],
        [tensor("still", [], _BOOL), tensor("after", [], _INT64)],
    )
    node = helper.make_node("Loop", ["trips", "", "zero"], ["count"], body=body)
    constants = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    model = make_model([node], [tensor("trips", [], _INT64)], [tensor("count", [], _INT64)], constants)
    number = np.array(7, np.int64)
    return Case("counting", model, (Sample({"trips": number}, {"count": number}),))


@_case
def strings() -> _Built:
    """String tensors, with empty and non-ASCII strings."""
    kind = onnx.TensorProto.STRING
    node = helper.make_node("StringConcat", ["x", "z"], ["y"])
    model = make_model([node], [tensor("x", [2], kind), tensor("z", [2], kind)], [tensor("y", [2], kind)])
    x, z = np.array(["a", ""], object), np.array(["ü", "b c"], object)
    return model, [Sample({"x": x, "z": z}, {"y": np.array(["aü", "b c"], object)})]


@_case
def sequence() -> _Built:
    """An output that is a list of tensors of different shapes."""
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "z"], ["pair"]),
        helper.make_node("ConcatFromSequence", ["pair"], ["joined"], axis=0),
    ]
    pair = helper.make_tensor_sequence_value_info("pair", _FLOAT, None)
    model = make_model(nodes, [tensor("x", [1, 2]), tensor("z", [3, 2])], [pair, tensor("joined", [4, 2])])
    x, z = values((1, 2)), values((3, 2), start=7.0)
    return model, [Sample({"x": x, "z": z}, {"pair": [x, z], "joined": np.concatenate([x, z])})]
