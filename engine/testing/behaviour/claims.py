"""Models made of what a device claims: operators of the basic model, with weights, with symbolic lengths, at random."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from engine.startup import dataclass
from engine.testing.behaviour.basic import OPERATORS, BasicOperator
from engine.testing.behaviour.cases import Array, Sample, make_model, tensor

_LENGTH: Final = 6
"""The number of operations of a random model."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A graph of operators of the basic model, its inputs and its results; nodes are named n0, n1...."""

    model: onnx.ModelProto
    names: tuple[str, ...]
    sample: Sample
    scale: float
    """The largest absolute value that the model computes."""

    def check(self, results: Mapping[str, Any], rtol: float, where: str) -> None:
        """Fail unless these are the results: rounding of each operation is passed on by all later ones."""
        for name, expected in self.sample.outputs.items():
            actual = results[name]
            assert actual.dtype == expected.dtype, f"{where}: `{name}` is {actual.dtype}, expected {expected.dtype}"
            assert actual.shape == expected.shape, f"{where}: `{name}` has shape {actual.shape}"
            error = float(np.abs(actual.astype(np.float64) - expected).max(initial=0.0))
            allowed = 10 * len(self.names) * rtol * self.scale
            assert error <= allowed, f"{where}: `{name}` is wrong by {error:.3g}; allowed is {allowed:.3g}"


def claimed(supports: Callable[[onnx.ModelProto], bool]) -> list[BasicOperator]:
    """The operators of the basic model that a device claims, in the shape for which it claims most."""
    found = [each for each in OPERATORS if supports(_chain([each], each.shape, 0).model)]
    shapes = [each.shape for each in found]
    return [each for each in found if each.shape == max(shapes, key=shapes.count)]


def random_model(operators: Sequence[BasicOperator], seed: int) -> RandomModel:
    """A random graph of these operators, all of one shape; equal seeds give equal graphs.

    Those with weights are few, but more can go wrong with them: they are drawn more often.
    """
    weights = [3 if each.constants else 1 for each in operators]
    return _chain(Random(seed).choices(operators, weights, k=_LENGTH), operators[0].shape, seed)


def _chain(operators: Sequence[BasicOperator], shape: tuple[int, ...], seed: int) -> RandomModel:
    random, draw = Random(seed), np.random.default_rng(seed)
    values: dict[str, Array] = {name: draw.uniform(-1, 1, shape).astype(np.float32) for name in ("a", "b")}
    inputs, nodes, read = dict(values), [], set[str]()
    constants: dict[str, Array] = {}
    for index, operator in enumerate(operators):
        name, recent = f"n{index}", list(values)[-4:]
        given = [recent[-1], *random.choices(recent, k=operator.arity - 1)]
        random.shuffle(given)
        nodes.append(operator.node(given, f"v{index}", name))
        own = [draw.uniform(-1, 1, value.shape).astype(np.float32) for value in operator.constants]
        constants |= {f"{name}_{number}": value for number, value in enumerate(own)}
        values[f"v{index}"] = operator.compute([values[each] for each in given], own)
        read.update(given)
    # The results are the values that no other operation reads, and one value from the middle.
    results = [name for name in values if name not in inputs and name not in read]
    results += [name for name in (f"v{len(operators) // 2}",) if name in values and name not in results]
    declared = [[tensor(name, list(shape)) for name in names] for names in (inputs, results)]
    model = make_model(nodes, declared[0], declared[1], constants, name=f"random{seed}")
    scale = max(float(np.abs(value).max()) for value in values.values())
    sample = Sample(inputs, {name: values[name] for name in results})
    return RandomModel(model, tuple(node.name for node in nodes), sample, max(1.0, scale))


@dataclass(frozen=True, slots=True)
class WeightedModel:
    """One operator with constants of `nbytes` in all; each of them changes the result."""

    op_type: str
    model: onnx.ModelProto
    x: Array
    expected: Array
    magnitude: Array
    nbytes: int

    def __str__(self) -> str:
        return f"{self.op_type} with {self.nbytes} bytes of weights"


WEIGHTED: Final = ("MatMul", "Gemm", "Conv", "Add", "Mul", "Sub", "Max")
"""The operators for which `weighted_model` makes models, the ones with the most weights for a result first."""


def weighted_model(op_type: str, width: int) -> WeightedModel:
    """An operator whose weights are a matrix of `width` * `width` float32."""
    draw = np.random.default_rng(width)
    w = draw.standard_normal((width, width)).astype(np.float32)
    constants, attributes = {"w": w}, dict[str, Any]()
    x = draw.standard_normal((2, width)).astype(np.float32)
    wide = x.astype(np.float64)
    if op_type == "Conv":
        constants["w"], x = w.reshape(width, width, 1, 1), x.reshape(2, width, 1, 1)
        expected, size = (wide @ w.T)[:, :, None, None], (abs(wide) @ abs(w.T))[:, :, None, None]
    elif op_type == "Gemm":
        attributes, constants["c"] = {"transB": 1}, draw.standard_normal(width).astype(np.float32)
        expected, size = wide @ w.T + constants["c"], abs(wide) @ abs(w.T) + abs(constants["c"])
    elif op_type == "MatMul":
        expected, size = wide @ w, abs(wide) @ abs(w)
    else:
        # With Max, only every other weight is seen; a matrix of very small inputs shows all.
        x = np.asarray(w[::-1] if op_type != "Max" else np.full_like(w, -9), np.float32)
        function = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "Max": np.maximum}[op_type]
        expected = function(x, w).astype(np.float64)
        size = np.abs(x.astype(np.float64)) + np.abs(w)
    node = helper.make_node(op_type, ["x", *constants], ["y"], name="node", **attributes)
    shape = [int(n) for n in np.shape(expected)]
    model = make_model([node], [tensor("x", list(x.shape))], [tensor("y", shape)], constants, name="weighted")
    nbytes = sum(value.nbytes for value in constants.values())
    return WeightedModel(op_type, model, x, np.asarray(expected, np.float32), size, nbytes)


def lengths_model(operators: Sequence[BasicOperator], symbols: Sequence[str]) -> onnx.ModelProto:
    """All of the operators in a row, on an input `x` whose first lengths are `symbols`; the result is `y`."""
    shape: list[int | str] = [*symbols, *operators[0].shape[len(symbols) :]]
    nodes, constants, last = [], dict[str, Array](), "x"
    for index, operator in enumerate(operators):
        name = f"n{index}"
        output = "y" if index == len(operators) - 1 else f"v{index}"
        nodes.append(operator.node([last, "x"][: operator.arity], output, name))
        constants |= {f"{name}_{number}": value for number, value in enumerate(operator.constants)}
        last = output
    return make_model(nodes, [tensor("x", shape)], [tensor("y", shape)], constants, name="lengths")


def lengths_answer(operators: Sequence[BasicOperator], x: Array) -> Array:
    """The expected output of `lengths_model` for `x`: the operators applied in turn."""
    value = x
    for operator in operators:
        value = operator.compute((value, x))
    return value
