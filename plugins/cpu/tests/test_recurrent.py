"""Recurrent layers on the device against the reference evaluator in double precision, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from engine import Core, ops
from engine.blob import BlobReader
from engine.errors import EngineError, InputError
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape, f32, f64, i32
from engine.testing.values import values as random_values

Array = np.ndarray[Any, np.dtype[Any]]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
STEPS, BATCH, INPUTS = 7, 3, 10


values = functools.partial(random_values, scale=0.5)


Layer: TypeAlias = "tuple[Model, dict[str, Array]]"


def layer(
    op_type: str, hidden: int, element_type: ElementType = f32, *, full: bool, fixed: bool = True, **attributes: Any
) -> Layer:
    """A layer and its inputs; `full`: with all that is optional. In any element type, the numbers are the same.

    The recurrent weights are a matrix of norm 1/2, so that a step adds its own rounding to half of what came before.
    """
    directions, gates = DIRECTIONS[attributes.get("direction", "forward")], GATES[op_type]
    batch_first = attributes.get("layout", 0)
    feeds = {"x": values(*((BATCH, STEPS) if batch_first else (STEPS, BATCH)), INPUTS)}
    state = (BATCH, directions, hidden) if batch_first else (directions, BATCH, hidden)
    weights = [
        values(directions, gates * hidden, INPUTS, seed=1),
        values(directions, gates * hidden, hidden, seed=2) / np.float32(2 * np.sqrt(hidden)),
    ]
    if full:
        weights.append(values(directions, 2 * gates * hidden, seed=3))
        feeds |= {"lengths": np.array([STEPS, 0, 3], np.int32), "h": values(*state, seed=4)}
    if full and op_type == "LSTM":
        feeds["c"] = values(*state, seed=5)
    feeds = {
        name: array.astype(array.dtype if name == "lengths" else element_type.numpy) for name, array in feeds.items()
    }
    parameters = {
        name: Parameter(
            i32 if name == "lengths" else element_type, PartialShape(array.shape if fixed else [-1] * array.ndim), name
        )
        for name, array in feeds.items()
    }
    inputs = [
        parameters["x"],
        *(Constant(array.astype(element_type.numpy)) for array in weights),
        *list(parameters.values())[1:],
    ]
    if full and op_type == "LSTM":
        inputs.append(Constant(values(directions, 3 * hidden, seed=6).astype(element_type.numpy)))
    outputs = 3 if op_type == "LSTM" else 2
    node = ops.create(op_type, inputs, {"hidden_size": hidden, **attributes}, num_outputs=outputs)
    return Model(node.outputs, list(parameters.values()), name="layer"), feeds


def run(model: Model, feeds: dict[str, Array], **config: Any) -> list[Array]:
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False, **config})
    return list(network(feeds).values())


def expected(model: Model, feeds: dict[str, Array]) -> list[Array]:
    network = Core().compile_model(model, "TEMPLATE")
    return list(network(feeds).values())


def assert_right(
    made: Callable[[ElementType], Layer], hidden: int, changed: Mapping[str, Array] | None = None, **config: Any
) -> None:
    """Compare the layer with itself in double precision; `changed` replaces some of its inputs."""
    model, feeds = made(f32)
    wide, wide_feeds = made(f64)
    wide_feeds |= {name: array.astype(wide_feeds[name].dtype) for name, array in (changed or {}).items()}
    # Each step adds the rounding of a dot product of INPUTS + hidden terms at most.
    tolerance = 4 * 1.2e-7 * STEPS * np.sqrt(INPUTS + hidden)
    for got, want in zip(run(model, feeds | dict(changed or {}), **config), expected(wide, wide_feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_lengths_that_come_with_the_input() -> None:
    made = partial(layer, "LSTM", 16, full=True, fixed=False)
    assert_right(made, 16)
    assert_right(made, 16, {"x": made()[1]["x"][:2], "lengths": np.array([2, 1, 0], np.int32)})


@pytest.mark.parametrize("length", [STEPS + 1, -1])
@pytest.mark.parametrize(("op_type", "hidden"), [("RNN", 16), ("GRU", 16), ("LSTM", 16), ("LSTM", 256)])
def test_a_length_out_of_range_fails_by_name(op_type: str, hidden: int, length: int) -> None:
    """It gave the results of all steps, or of none. The network stays usable."""
    model, feeds = layer(op_type, hidden, full=True)
    node = model.results[0].input_value(0).node
    node.friendly_name = "culprit"
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    good = network(feeds)[0]
    message = (
        f"`culprit`, input `sequence_lens`: a sequence length {length} is out of range for sequences of {STEPS} steps"
    )
    with pytest.raises(InputError, match=message):
        network({**feeds, "lengths": np.array([1, length, 3], np.int32)})
    np.testing.assert_array_equal(network(feeds)[0], good)


@pytest.mark.parametrize(
    ("op_type", "attributes"), [("RNN", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {"layout": 1})]
)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_a_blob_for_any_lengths_has_the_packed_weights_only(
    op_type: str, attributes: dict[str, int], direction: str, tmp_path: Path
) -> None:
    """Otherwise, each process that maps it packs weights of its own."""
    model, feeds = layer(op_type, 40, full=True, fixed=False, direction=direction, **attributes)
    constants = [node for node in model.ordered_nodes() if isinstance(node, Constant)]
    network = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    network.export_model(tmp_path / "network.blob")
    wanted = [*network(feeds).values()]
    reader = BlobReader(tmp_path / "network.blob", mmap=True)
    packed = [name for name in reader.section_names if name.startswith("packed/")]
    assert len(packed) == len(constants) + (attributes.get("linear_before_reset", 0))  # of which B has two forms
    assert not [name for name in reader.section_names if name.startswith("weights/")]
    imported: Any = Core().import_model(tmp_path / "network.blob", config={"ENABLE_MMAP": True})
    for got, want in zip(imported(feeds).values(), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    assert sorted(imported.weights.packed) == sorted(name.removeprefix("packed/") for name in packed)
    assert not any(array.flags.owndata or array.flags.writeable for array in imported.weights.packed.values())


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


COMPUTED = [
    *(("RNN", {"direction": direction}) for direction in DIRECTIONS),
    *(("LSTM", {"direction": direction, "layout": layout}) for direction in DIRECTIONS for layout in (0, 1)),
    *(
        ("GRU", {"direction": direction, "linear_before_reset": linear})
        for direction in DIRECTIONS
        for linear in (0, 1)
    ),
    ("LSTM", {"input_forget": 1, "clip": 0.4}),
]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("hidden", [1, 7, 16, 40])
@pytest.mark.parametrize(("op_type", "attributes"), COMPUTED)
def test_weights_that_are_computed(op_type: str, attributes: dict[str, Any], hidden: int, full: bool) -> None:
    """The same numbers as for constants, from a network whose weights are inputs; other weights follow."""
    model, feeds = layer(op_type, hidden, full=full, **attributes)
    node = model.results[0].input_value(0).node
    sources: list[Any] = []
    parameters, given = list(model.parameters), dict(feeds)
    for index, value in enumerate(node.input_values):
        if value is not None and isinstance(value.node, Constant):
            parameters.append(Parameter(f32, value.shape, f"weight{index}"))
            given[f"weight{index}"] = value.node.data
            sources.append(parameters[-1])
        else:
            sources.append(value)
    copy = ops.create(op_type, sources, node.attributes, num_outputs=node.num_outputs)
    computed = Model(copy.outputs, parameters, name="computed")
    network = Core().compile_model(computed, "CPU", {"ALLOW_REFERENCE": False})
    tolerance = 4 * 1.2e-7 * STEPS * np.sqrt(INPUTS + hidden)
    for got, want in zip(network(given).values(), run(model, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    halved = {name: array / np.float32(2) if name.startswith("weight") else array for name, array in given.items()}
    for got, want in zip(network(halved).values(), expected(computed, halved), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
