"""Recurrent layers on the device against the reference evaluator, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import EngineError
from engine.ir import Constant, Model, Parameter, PartialShape, f32, i32

Array = np.ndarray[Any, np.dtype[Any]]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
STEPS, BATCH, INPUTS = 7, 3, 10


def values(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def layer(
    op_type: str, hidden: int, *, full: bool, fixed: bool = True, **attributes: Any
) -> tuple[Model, dict[str, Array]]:
    """A layer and its inputs; `full`: with all that is optional."""
    directions, gates = DIRECTIONS[attributes.get("direction", "forward")], GATES[op_type]
    batch_first = attributes.get("layout", 0)
    feeds = {"x": values(*((BATCH, STEPS) if batch_first else (STEPS, BATCH)), INPUTS)}
    state = (BATCH, directions, hidden) if batch_first else (directions, BATCH, hidden)
    weights = [
        values(directions, gates * hidden, INPUTS, seed=1),
        values(directions, gates * hidden, hidden, seed=2),
    ]
    if full:
        weights.append(values(directions, 2 * gates * hidden, seed=3))
        feeds |= {"lengths": np.array([STEPS, 0, 3], np.int32), "h": values(*state, seed=4)}
    if full and op_type == "LSTM":
        feeds["c"] = values(*state, seed=5)
    parameters = {
        name: Parameter(
            i32 if name == "lengths" else f32, PartialShape(array.shape if fixed else [-1] * array.ndim), name
        )
        for name, array in feeds.items()
    }
    inputs = [parameters["x"], *map(Constant, weights), *list(parameters.values())[1:]]
    if full and op_type == "LSTM":
        inputs.append(Constant(values(directions, 3 * hidden, seed=6)))
    outputs = 3 if op_type == "LSTM" else 2
    node = ops.create(op_type, inputs, {"hidden_size": hidden, **attributes}, num_outputs=outputs)
    return Model(node.outputs, list(parameters.values()), name="layer"), feeds


def run(model: Model, feeds: dict[str, Array], **config: Any) -> list[Array]:
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False, **config})
    return list(network(feeds).values())


def expected(model: Model, feeds: dict[str, Array]) -> list[Array]:
    network = Core().compile_model(model, "TEMPLATE")
    return list(network(feeds).values())


def assert_equal(model: Model, feeds: dict[str, Array], hidden: int, **config: Any) -> None:
    # Each step adds the rounding of a dot product of INPUTS + hidden terms at most.
    tolerance = 4 * 1.2e-7 * STEPS * np.sqrt(INPUTS + hidden)
    for got, want in zip(run(model, feeds, **config), expected(model, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op_type", GATES)
def test_equals_the_reference(op_type: str, direction: str, layout: int, full: bool) -> None:
    for hidden in (16, 21):
        model, feeds = layer(op_type, hidden, full=full, direction=direction, layout=layout)
        assert_equal(model, feeds, hidden)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("LSTM", {"clip": 0.4}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"direction": "bidirectional", "activations": ["sigmoid", "TANH", "Tanh"] * 2}),
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"linear_before_reset": 1, "clip": 0.3, "direction": "bidirectional", "layout": 1}),
        ("GRU", {"clip": 0.3}),
        ("RNN", {"activations": ["Relu"], "direction": "reverse"}),
        ("RNN", {"activations": ["Sigmoid", "Sigmoid"], "direction": "bidirectional", "clip": 0.2}),
        ("RNN", {"activations": ["Relu"], "clip": 0.1}),
    ],
)
def test_attributes(op_type: str, attributes: dict[str, Any]) -> None:
    for full in (False, True):
        model, feeds = layer(op_type, 18, full=full, **attributes)
        assert_equal(model, feeds, 18)


@pytest.mark.parametrize("op_type", GATES)
def test_many_units_in_one_direction(op_type: str) -> None:
    """All threads share each time step."""
    model, feeds = layer(op_type, 200, full=True)
    assert_equal(model, feeds, 200, INFERENCE_NUM_THREADS=2)


def test_lengths_that_come_with_the_input() -> None:
    model, feeds = layer("LSTM", 16, full=True, fixed=False)
    assert_equal(model, feeds, 16)
    shorter = feeds | {"x": feeds["x"][:2], "lengths": np.array([2, 1, 0], np.int32)}
    assert_equal(model, shorter, 16)


def test_only_the_last_state_is_asked_for() -> None:
    model, feeds = layer("GRU", 16, full=False)
    node = model.results[0].input_value(0).node
    last = Model([node.output(1)], model.parameters, name="last")
    np.testing.assert_array_equal(run(last, feeds)[0], run(model, feeds)[1])


def refused(op_type: str, **changes: Any) -> None:
    model, feeds = layer(op_type, 16, full=False, **changes)
    with pytest.raises(EngineError, match="ALLOW_REFERENCE"):
        run(model, feeds)


def test_other_activations_are_left_to_the_reference() -> None:
    refused("LSTM", activations=["HardSigmoid", "Tanh", "Tanh"])
    refused("RNN", activations=["Tanh", "Relu"], direction="bidirectional")


def test_weights_that_are_computed_are_left_to_the_reference() -> None:
    x, w = Parameter(f32, PartialShape([4, 2, 3]), "x"), Parameter(f32, PartialShape([1, 8, 3]), "w")
    node = ops.create("RNN", [x, w, Constant(values(1, 8, 8))], {"hidden_size": 8}, num_outputs=2)
    with pytest.raises(EngineError, match="constant"):
        Core().compile_model(Model(node.outputs, [x, w], name="layer"), "CPU", {"ALLOW_REFERENCE": False})
