"""Networks for `load` and `interrupts`, with samples whose right results are known."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import Core, ExecutableNetwork, ops
from engine.ir import Constant, Model, Parameter, Result, boolean, f32, i64
from engine.onnx import model_to_proto
from engine.passes import MakeStateful
from engine.testing.behaviour.states import history_model

from .finding import Finding
from .rounding import Array, Expected, difference, expected

LENGTHS = (1, 4, 7, 16)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model, and inputs with the right results."""

    name: str
    model: Model
    data: bytes
    samples: tuple[tuple[dict[str, Array], list[Expected]], ...]

    def check(self, sample: int, found: Any) -> None:
        """Raise `Finding` unless `found`, a result or a mapping of it, is the sample's."""
        for index, want in enumerate(self.samples[sample][1]):
            if wrong := difference(found[index], want):
                raise Finding("wrong result", f"{self.name}, sample {sample}, output {index} {wrong}")


@functools.cache
def subjects() -> tuple[Subject, ...]:
    """A perceptron, an image network, both over any number of rows, and a loop."""
    return tuple(
        _subject(name, model, feeds)
        for name, model, feeds in (("perceptron", *_perceptron()), ("image", *_image()), ("loop", *_loop()))
    )


def device_string(device: str) -> str:
    """The device string of a name that the command takes."""
    return "HETERO:CPU,TEMPLATE" if device == "HETERO" else device


def compiled(
    core: Core, subject: Subject, device: str, config: Mapping[str, object] | None = None
) -> ExecutableNetwork:
    """The network of a subject on a device; for HETERO, its nodes take turns."""
    model = subject.model.clone()
    if device == "HETERO":
        for index, node in enumerate(model.ordered_nodes()):
            if node.op_type in ("MatMul", "Softmax", "Conv", "Loop"):
                node.rt_info["affinity"] = ("CPU", "TEMPLATE")[index % 2]
    return core.compile_model(model, device_string(device), config)


def history(core: Core, device: str) -> ExecutableNetwork:
    """A network with variables, see `engine.testing.behaviour.states`."""
    model = core.read_model(history_model())
    MakeStateful().run_on_model(model)
    return core.compile_model(model, device_string(device))


def warm_up(network: ExecutableNetwork, inputs: Mapping[str, Any]) -> None:
    """Have a network start the threads that it keeps: of its stages, its callbacks and the deadlines."""
    requests = [network.create_infer_request() for _ in range(4)]
    for request in requests:
        request.set_callback(lambda done, error: None)
        request.start_async(inputs, deadline=60.0)
    for request in requests:
        request.wait()


def _subject(name: str, model: Model, feeds: list[dict[str, Array]]) -> Subject:
    data = model_to_proto(model).SerializeToString()
    return Subject(name, model, data, tuple((each, expected(model, each)) for each in feeds))


def _draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def _perceptron() -> tuple[Model, list[dict[str, Array]]]:
    x = Parameter(f32, ["n", 24], "x")
    hidden = ops.Gelu(ops.Add(ops.MatMul(x, Constant(_draw(24, 64))), Constant(_draw(64))))
    out = ops.Softmax(ops.MatMul(hidden, Constant(_draw(64, 10))), axis=-1)
    model = Model([Result(out, "y"), Result(ops.Tanh(hidden), "h")], [x], name="perceptron")
    return model, [{"x": _draw(n, 24, seed=1)} for n in LENGTHS]


def _image() -> tuple[Model, list[dict[str, Array]]]:
    x = Parameter(f32, ["n", 3, 12, 12], "x")
    value: Any = x
    for index, (wide, stride) in enumerate(((8, 1), (16, 2), (16, 1))):
        before = (3, 8, 16)[index]
        weights = Constant(_draw(wide, before, 3, 3, seed=index))
        value = ops.Relu(ops.Conv(value, weights, Constant(_draw(wide)), pads=[1, 1, 1, 1], strides=[stride, stride]))
    flat = ops.Flatten(ops.GlobalAveragePool(value))
    model = Model([Result(ops.MatMul(flat, Constant(_draw(16, 5))), "y")], [x], name="image")
    return model, [{"x": _draw(n, 3, 12, 12, seed=2)} for n in LENGTHS]


def _loop() -> tuple[Model, list[dict[str, Array]]]:
    x, trips = Parameter(f32, ["n", 8], "x"), Parameter(i64, [], "trips")
    iteration, go_on, state = Parameter(i64, [], "i"), Parameter(boolean, [], "go"), Parameter(f32, ["n", 8], "s")
    body = Model(
        [ops.Identity(go_on), ops.Tanh(ops.Add(state, Constant(np.float32(0.25))))], [iteration, go_on, state], name="b"
    )
    made = ops.create("Loop", [trips, None, x], {"body": body})
    model = Model([Result(ops.MatMul(made, Constant(_draw(8, 8))), "y")], [x, trips], name="loop")
    return model, [{"x": _draw(n, 8, seed=3), "trips": np.array(n + 2)} for n in LENGTHS]
