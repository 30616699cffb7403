"""The basic model, on which most checks run: two inputs, two outputs, of operators that the device claims.

A device need not have any particular operator. The model is made of the first two of `OPERATORS`, or otherwise of
`FURTHER_OPERATORS`, that its query supports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from engine.startup import dataclass
from engine.testing.behaviour.cases import Array, Sample, make_model, tensor, values

_MATRIX: Final = (2, 3)
_MAPS: Final = (1, 2, 3, 3)
_POINTS: Final = (3, 2, 1, 1)


@dataclass(frozen=True, slots=True)
class BasicOperator:
    """An operator that maps float32 tensors of `shape` to one of the same shape.

    Attributes:
        op_type: the operator.
        answer: its result, from as many inputs as `arity` says and the constants.
        arity: how many of its inputs are not constant: 1 or 2.
        constants: its other inputs.
        attributes: its attributes.
        shape: the shape of its inputs and its output.
    """

    op_type: str
    answer: Callable[..., Array]
    arity: int = 1
    constants: tuple[Array, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = _MATRIX

    def compute(self, inputs: Sequence[Array], constants: Sequence[Array] | None = None) -> Array:
        """Its result in float32, for the first of `inputs`, with its own constants or others."""
        given = (*inputs[: self.arity], *(self.constants if constants is None else constants))
        return np.asarray(self.answer(*given), np.float32)

    def node(self, inputs: list[str], output: str, name: str) -> onnx.NodeProto:
        """The operator, applied to the first of `inputs`; constants are named after the node."""
        constants = [f"{name}_{index}" for index in range(len(self.constants))]
        return helper.make_node(
            self.op_type, [*inputs[: self.arity], *constants], [output], name=name, **self.attributes
        )


def _convolved(x: Array, w: Array) -> Array:
    return np.asarray(np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]))


def _pooled(x: Array) -> Array:
    full = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-np.inf)
    return np.asarray(np.lib.stride_tricks.sliding_window_view(full, (3, 3), axis=(2, 3)).max(axis=(4, 5)))


def _averaged(x: Array) -> Array:
    full = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    return np.asarray(np.lib.stride_tricks.sliding_window_view(full, (3, 3), axis=(2, 3)).mean(axis=(4, 5)))


def _normalized(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(1e-5))
    return np.asarray(scaled * scale + bias)


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


_SQUARE: Final = values((3, 3), start=-0.5, step=0.25)
_ROW: Final = values((3,), start=0.5)
_CHANNELS: Final = values((2, 2), start=-0.5, step=0.5)
_WINDOW: Final = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}

OPERATORS: Final = (
    BasicOperator("Add", np.add, 2),
    BasicOperator("Mul", np.multiply, 2),
    BasicOperator("Sub", np.subtract, 2),
    BasicOperator("Max", np.maximum, 2),
    BasicOperator("Min", np.minimum, 2),
    BasicOperator("MatMul", lambda x, w: x @ w, constants=(_SQUARE,)),
    BasicOperator("Gemm", lambda x, w, c: x @ w + c, constants=(_SQUARE, _ROW)),
    BasicOperator("Relu", lambda x: np.maximum(x, 0)),
    BasicOperator("Neg", np.negative),
    BasicOperator("Abs", np.abs),
    BasicOperator("Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    BasicOperator("Tanh", np.tanh),
    BasicOperator("Softmax", _softmax, attributes={"axis": -1}),
    BasicOperator("Concat", lambda x: x, attributes={"axis": 0}),
    BasicOperator("Identity", lambda x: x),
    BasicOperator("Conv", _convolved, constants=(_CHANNELS.reshape(2, 2, 1, 1),), shape=_MAPS),
    BasicOperator("MaxPool", _pooled, attributes=_WINDOW, shape=_MAPS),
    BasicOperator("Relu", lambda x: np.maximum(x, 0), shape=_MAPS),
)
"""In order of preference: those that depend on both inputs first. Any of them can follow any other."""

FURTHER_OPERATORS: Final = (
    BasicOperator("Exp", np.exp),
    BasicOperator("Erf", lambda x: np.vectorize(math.erf)(x)),
    BasicOperator("LeakyRelu", lambda x: np.where(x < 0, 0.25 * x, x), attributes={"alpha": 0.25}),
    BasicOperator("Clip", np.clip, constants=(np.array(-1, np.float32), np.array(1, np.float32))),
    BasicOperator("LayerNormalization", _normalized, constants=(_ROW, _ROW), attributes={"axis": -1}),
    BasicOperator("Transpose", lambda x: x, attributes={"perm": [0, 1]}),
    BasicOperator("Reshape", lambda x, _: x, constants=(np.array(_MATRIX, np.int64),)),
    BasicOperator("Flatten", lambda x: x),
    BasicOperator("AveragePool", _averaged, attributes={**_WINDOW, "count_include_pad": 1}, shape=_MAPS),
    *(BasicOperator(name, lambda x: x, shape=_POINTS) for name in ("GlobalAveragePool", "GlobalMaxPool")),
    *(
        BasicOperator(name, lambda x, _: x, constants=(np.array([2], np.int64),), shape=_POINTS)
        for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
    ),
)
"""For devices without any of `OPERATORS`; operators that compute nothing come last."""


@dataclass(frozen=True, slots=True)
class BasicModel:
    """`total = first(a, b); product = second(b, a)`, all float32 of one shape."""

    first: BasicOperator
    second: BasicOperator

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all inputs and outputs."""
        return self.first.shape

    def model(self) -> onnx.ModelProto:
        """The ONNX model, named `basic`, with inputs `a` and `b` and outputs `total` and `product`."""
        nodes = [self.first.node(["a", "b"], "total", "first"), self.second.node(["b", "a"], "product", "second")]
        ports = [tensor(name, list(self.shape)) for name in ("a", "b", "total", "product")]
        constants = {
            f"{name}_{index}": value
            for name, operator in (("first", self.first), ("second", self.second))
            for index, value in enumerate(operator.constants)
        }
        return make_model(nodes, ports[:2], ports[2:], constants, name="basic")

    def answer(self, a: Array, b: Array) -> dict[str, Array]:
        """The expected outputs for these inputs, computed by numpy."""
        return {"total": self.first.compute((a, b)), "product": self.second.compute((b, a))}

    def sample(self, seed: int = 0) -> Sample:
        """Inputs, which depend on the seed, and the answer."""
        a, b = values(self.shape, start=seed - 1.0), values(self.shape, start=0.5 * seed + 2.0, step=-0.5)
        return Sample({"a": a, "b": b}, self.answer(a, b))


BASIC: Final = BasicModel(OPERATORS[0], OPERATORS[1])
"""`total = a + b; product = b * a`, for devices that have both."""


def find_basic(is_supported: Callable[[onnx.ModelProto], bool]) -> BasicModel | None:
    """The first model that a device supports; None if it supports no operator of the two lists.

    A device with one of them gets it twice.
    """
    usable = [each for each in (*OPERATORS, *FURTHER_OPERATORS) if is_supported(BasicModel(each, each).model())]
    if not usable:
        return None
    first = usable[0]
    second = next((each for each in usable[1:] if each.shape == first.shape), first)
    return BasicModel(first, second)
