"""`Graph`: a model that grows node by node, each evaluated as it is made, so that every value's range is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from engine.errors import EngineError
from engine.ir import Constant, ElementType, Model, Node, Output, Parameter, Result, TensorType
from engine.ir.element_type import boolean, f16, f32, f64, i8, i16, i32, i64, u8
from engine.ops import create
from engine.ops.reference import evaluate

Array = np.ndarray[Any, np.dtype[Any]]

# Above this, a product of a few values overflows f16, and sums of f32 lose what the devices are compared by.
LARGEST = 1e3
MAX_ELEMENTS = 20_000
REALS = (f32, f32, f32, f32, f16, f64)
INTEGERS = (i64, i64, i32, i8, u8, i16)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the graph, and its array for the first inputs."""

    output: Output
    array: Array

    @property
    def type(self) -> ElementType:
        """The element type."""
        return self.output.element_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape for the first inputs."""
        return self.array.shape


class Graph:
    """Values that nodes can read; `random` makes every choice."""

    def __init__(self, chooser: random.Random, *, is_dynamic: bool = False) -> None:
        self.random = chooser
        self.numbers = np.random.default_rng(chooser.getrandbits(63))
        self.is_dynamic = is_dynamic
        self.values: list[Value] = []
        self.parameters: list[Parameter] = []
        self.feeds: dict[str, Array] = {}
        self.nodes = 0
        self._arrays: dict[Output, Array] = {}

    # -- leaves -------------------------------------------------------------------------------------------

    def parameter(self, array: Array, element_type: ElementType | None = None) -> Value:
        """A new input of the model with this value; in a dynamic graph, some of its lengths are not stated."""
        element_type = element_type or ElementType.from_numpy(array.dtype)
        shape: list[Any] = list(array.shape)
        if self.is_dynamic:
            # A symbol stands for one length, and `?` for any.
            shape = [self.random.choice((n, f"n{n}", None)) for n in shape]
        name = f"x{len(self.parameters)}"
        made = Parameter(element_type, shape, name)
        self.parameters.append(made)
        self.feeds[name] = array
        return self.add(made.output(0), array)

    def leaf(self, array: Array, element_type: ElementType | None = None) -> Value:
        """A parameter or a constant."""
        if self.random.random() < 0.5:
            return self.parameter(array, element_type)
        return Value(self.constant(array, element_type), array)

    def constant(self, array: Any, element_type: ElementType | None = None) -> Output:
        """A constant, which is not among the values that nodes choose from."""
        return Constant(np.asarray(array), element_type).output(0)

    def draw(self, shape: Sequence[int], element_type: ElementType, low: float = -2.0, high: float = 2.0) -> Array:
        """Random elements within [low, high); for integers between the nearest ones that the type has."""
        if element_type is boolean:
            return self.numbers.integers(0, 2, shape).astype(np.bool_)
        if element_type.is_real:
            return self.numbers.uniform(low, high, shape).astype(element_type.numpy)
        bounds = ml_dtypes.iinfo(element_type.numpy)
        least, most = max(math.ceil(low), int(bounds.min)), min(math.floor(high), int(bounds.max))
        return self.numbers.integers(least, max(most, least) + 1, shape).astype(element_type.numpy)

    def shape(self, most: int = 4) -> tuple[int, ...]:
        """A random small shape; now and then with a length of 0 or 1, or one that exceeds a vector's width."""
        lengths = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17) if self.random.random() < 0.97 else (0, 1, 3)
        rank = self.random.choice((0, 1, 2, 2, 3, 3, 4, 4, 5))
        found = [self.random.choice(lengths) for _ in range(min(rank, most))]
        while math.prod(found) > 4096:
            found[found.index(max(found))] //= 2
        return tuple(found)

    # -- nodes --------------------------------------------------------------------------------------------

    def node(self, op_type: str, *inputs: Output | Value | None, **attributes: Any) -> Value:
        """Add a node; returns its first output. Raises `EngineError` if the operator does not accept the inputs."""
        return self.outputs(op_type, *inputs, **attributes)[0]

    def outputs(self, op_type: str, *inputs: Output | Value | None, **attributes: Any) -> list[Value]:
        """Add a node; returns all of its outputs."""
        sources = [each.output if isinstance(each, Value) else each for each in inputs]
        return self.evaluated(create(op_type, sources, attributes))

    def evaluated(self, made: Node) -> list[Value]:
        """The outputs of a node, evaluated. Raises `EngineError`."""
        arrays = [None if source is None else self._array(source) for source in made.input_values]
        results = evaluate(made, arrays)
        self.nodes += 1
        return [
            self.add(output, array) for output, array in zip(made.outputs, results, strict=True) if _is_tensor(array)
        ]

    def add(self, output: Output, array: Any) -> Value:
        """Remember a value; nodes choose from those that are small, finite and not text."""
        value = Value(output, np.asarray(array))
        self._arrays[output] = value.array
        if _is_tame(value):
            self.values.append(value)
        return value

    def _array(self, output: Output) -> Array:
        if isinstance(output.node, Constant):
            return output.node.data
        return self._arrays[output]

    # -- choices ------------------------------------------------------------------------------------------

    def pick(self, accept: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """One of the values, preferably a recent one; None if none is accepted."""
        recent = [value for value in self.values[-8:] if accept(value)]
        found = recent if recent and self.random.random() < 0.7 else [v for v in self.values if accept(v)]
        return self.random.choice(found) if found else None

    def real(self, *, rank: int = 0) -> Value:
        """A value of real numbers with at least `rank` dimensions; a new one if there is none."""
        found = self.pick(lambda value: value.type in REALS and value.array.ndim >= rank)
        if found is not None and self.random.random() < 0.95:
            return found
        shape = self.shape()
        shape += tuple(self.random.randint(1, 6) for _ in range(rank - len(shape)))
        element_type = self.random.choice(REALS)
        return self.leaf(self.draw(shape, element_type), element_type)

    def model(self) -> tuple[Model, dict[str, Array]]:
        """The model: its results are the values that nothing reads, and some others."""
        made = [v for v in self._arrays if not isinstance(v.node, (Parameter, Constant))]
        ends = [value for value in made if not value.target_inputs] or [p.output(0) for p in self.parameters[:1]]
        inner = [value for value in made if value.target_inputs and isinstance(value.type, TensorType)]
        ends += self.random.sample(inner, min(len(inner), self.random.choice((0, 0, 1, 2))))
        self.random.shuffle(ends)
        results = [Result(value, f"y{index}") for index, value in enumerate(ends)]
        model = Model(results, self.parameters, name="fuzz")
        return model, dict(self.feeds)


def _is_tensor(array: Any) -> bool:
    return isinstance(array, (np.ndarray, np.generic))


def _is_tame(value: Value) -> bool:
    array = value.array
    if array.dtype == object or array.size > MAX_ELEMENTS or not isinstance(value.output.type, TensorType):
        return False
    if not value.type.is_real:
        return value.type is boolean or (value.type.is_integral and value.type.numpy.isbuiltin == 1)
    numbers = array.astype(np.float64)
    return bool(np.isfinite(numbers).all() and np.abs(numbers).max(initial=0.0) <= LARGEST)


def grow(seed: int, makers: Sequence[tuple[float, Callable[[Graph], object]]], most_nodes: int = 24) -> Graph:
    """A graph of the seed; a maker whose node is refused leaves the graph as it is."""
    chooser = random.Random(f"graph {seed}")
    graph = Graph(chooser, is_dynamic=chooser.random() < 0.3)
    for _ in range(chooser.randint(1, 3)):
        element_type = chooser.choice(REALS) if chooser.random() < 0.8 else chooser.choice((*INTEGERS, boolean))
        graph.parameter(graph.draw(graph.shape(), element_type), element_type)
    wanted = chooser.choice((2, 4, 8, 12, most_nodes))
    weights, calls = [weight for weight, _ in makers], [maker for _, maker in makers]
    for _ in range(2 * wanted):
        if graph.nodes >= wanted:
            break
        try:
            chooser.choices(calls, weights)[0](graph)
        except EngineError:
            continue  # no such node for these inputs
    return graph
