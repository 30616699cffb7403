"""The meaning of a model by the text of the specification: a small interpreter of protos, for the operators used here.

Names, scopes, functions and attributes are as IR.md says, and the table of Loop decides when it ends. It shares no code
with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Env = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """The function whose nodes are run: its attributes with values, and its opset."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0


@dataclass(frozen=True)
class Closure:
    """A graph attribute with the values that were visible where it is written."""

    graph: onnx.GraphProto
    env: Env
    frame: Frame


def results(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """The outputs of a model for these inputs, in which initializers may be omitted."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    return _Text(functions).graph(model.graph, {}, dict(feeds), Frame({}, opset))


class _Text:
    def __init__(self, functions: Mapping[tuple[str, str, str], onnx.FunctionProto]) -> None:
        self.functions = functions

    def graph(self, graph: onnx.GraphProto, outer: Env, given: Env, frame: Frame) -> list[Any]:
        env = {**outer, **{tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}, **given}
        self.nodes(graph.node, env, frame)
        return [env[value.name] for value in graph.output]

    def nodes(self, nodes: Sequence[onnx.NodeProto], env: Env, frame: Frame) -> None:
        for node in nodes:
            inputs = [env[name] if name else None for name in node.input]
            attributes = self.attributes(node, env, frame)
            function = self.functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                outputs = self.call(function, inputs, attributes)
            else:
                outputs = list(self.run(node, inputs, attributes, frame))
            env.update((name, value) for name, value in zip(node.output, outputs, strict=False) if name)

    def attributes(self, node: onnx.NodeProto, env: Env, frame: Frame) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                found[attribute.name] = _value(attribute, env, frame)
            elif attribute.ref_attr_name in frame.attributes:
                value = frame.attributes[attribute.ref_attr_name]
                # A default is written in the function, and so reads the function's values.
                found[attribute.name] = Closure(value, env, frame) if isinstance(value, onnx.GraphProto) else value
        return found

    def call(self, function: onnx.FunctionProto, inputs: Sequence[Any], given: dict[str, Any]) -> list[Any]:
        opset = next(entry.version for entry in function.opset_import if not entry.domain)
        defaults = {d.name: d.g if d.HasField("g") else _value(d, {}, Frame()) for d in function.attribute_proto}
        values = [*inputs, *[None] * (len(function.input) - len(inputs))]
        env = dict(zip(function.input, values, strict=True))
        env = {name: value for name, value in env.items() if value is not None} | {"": None}
        omitted = set(function.input) - env.keys()
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in function.node]
        for node in nodes:
            node.input[:] = ["" if name in omitted else name for name in node.input]
        self.nodes(nodes, env, Frame({**defaults, **given}, opset))
        return [env[name] for name in function.output]

    def run(self, node: onnx.NodeProto, inputs: list[Any], a: dict[str, Any], frame: Frame) -> Sequence[Any]:
        match node.op_type:
            case "If":
                return self.body(a["then_branch" if inputs[0].item() else "else_branch"], [])
            case "Loop":
                return self.loop(node, inputs, a["body"])
            case "Scan":
                states = inputs[: len(inputs) - a["num_scan_inputs"]]
                stacks: list[list[Any]] = []
                for row in zip(*inputs[len(states) :], strict=True):
                    made = self.body(a["body"], [*states, *row])
                    states = made[: len(states)]
                    stacks.append(made[len(states) :])
                return [*states, *(np.stack(column) for column in zip(*stacks, strict=True))]
        return [_SIMPLE[node.op_type](inputs, a, frame.opset)]

    def body(self, closure: Closure, values: Sequence[Any]) -> list[Any]:
        given = {info.name: np.asarray(value) for info, value in zip(closure.graph.input, values, strict=True)}
        return self.graph(closure.graph, closure.env, given, closure.frame)

    def loop(self, node: onnx.NodeProto, inputs: list[Any], closure: Closure) -> list[Any]:
        count, condition, *carried = inputs
        goes_on, trip, stacks = condition is None or bool(condition), 0, []
        while goes_on and (count is None or trip < count):
            still, *made = self.body(closure, [np.int64(trip), np.array(goes_on), *carried])
            carried, stacked = made[: len(carried)], made[len(carried) :]
            goes_on = condition is None or bool(still)  # without a condition, the body's is ignored
            stacks.append(stacked)
            trip += 1
        return [*carried, *(np.stack(column) for column in zip(*stacks, strict=True))]


def _value(attribute: onnx.AttributeProto, env: Env, frame: Frame) -> Any:
    if attribute.HasField("g"):
        return Closure(attribute.g, env, frame)
    if attribute.HasField("t"):
        return numpy_helper.to_array(attribute.t)
    return onnx.helper.get_attribute_value(attribute)


def _softmax(inputs: list[Any], a: dict[str, Any], opset: int) -> Any:
    x = inputs[0]
    axis = a.get("axis", -1 if opset >= 13 else 1) % x.ndim
    axes: Any = axis if opset >= 13 else tuple(range(axis, x.ndim))
    e = np.exp(x - x.max(axes, keepdims=True))
    return e / e.sum(axes, keepdims=True)


def _sum_of(inputs: list[Any], a: dict[str, Any], opset: int) -> Any:
    axes = a.get("axes") if opset < 13 else (inputs[1].tolist() if len(inputs) > 1 and inputs[1] is not None else None)
    return inputs[0].sum(None if axes is None else tuple(axes), keepdims=bool(a.get("keepdims", 1)), dtype=np.float32)


def _clip(inputs: list[Any], a: dict[str, Any], opset: int) -> Any:
    low, high = (inputs[i] if len(inputs) > i else None for i in (1, 2))
    x = inputs[0] if low is None else np.maximum(inputs[0], low)
    return x if high is None else np.minimum(x, high)


def _constant(inputs: list[Any], a: dict[str, Any], opset: int) -> Any:
    ((name, value),) = a.items()
    return np.asarray(value, {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64}.get(name))


_F = np.float32
_SIMPLE: dict[str, Callable[[list[Any], dict[str, Any], int], Any]] = {
    "Neg": lambda i, a, o: -i[0],
    "Abs": lambda i, a, o: np.abs(i[0]),
    "Tanh": lambda i, a, o: np.tanh(i[0]),
    "Identity": lambda i, a, o: i[0],
    "Add": lambda i, a, o: i[0] + i[1],
    "Sub": lambda i, a, o: i[0] - i[1],
    "Max": lambda i, a, o: np.maximum(i[0], i[1]),
    "LeakyRelu": lambda i, a, o: np.where(i[0] < 0, i[0] * _F(a.get("alpha", 0.01)), i[0]),
    "ThresholdedRelu": lambda i, a, o: np.where(i[0] > _F(a.get("alpha", 1.0)), i[0], _F(0)),
    "Softmax": _softmax,
    "ReduceSum": _sum_of,
    "Clip": _clip,
    "Constant": _constant,
    "Less": lambda i, a, o: np.asarray(i[0] < i[1]),
    "Greater": lambda i, a, o: np.asarray(i[0] > i[1]),
    "Not": lambda i, a, o: np.asarray(~i[0]),
    "And": lambda i, a, o: np.asarray(i[0] & i[1]),
    "Cast": lambda i, a, o: np.asarray(i[0], _F),
}
