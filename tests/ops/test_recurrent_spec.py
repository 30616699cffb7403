"""The spec of RNN, GRU and LSTM.

If a case fails here, a layer has other activations, or other lengths, on a device than for the reference.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine import ops
from engine.errors import OperatorSpecError
from engine.ir import Node, Parameter, PartialShape, f32
from engine.ops.create import create
from engine.ops.recurrent import RecurrentActivation, RecurrentSpec

A = RecurrentActivation


def node(op_type: str, *, is_open: bool = False, **attributes: Any) -> Node:
    """A layer of 4 units over [7, 3, 5], or [3, 7, 5] for batches that come first; `is_open` leaves lengths open."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    x = [3, 7, 5] if attributes.get("layout") == 1 else [7, 3, 5]
    shapes = [x, [directions, gates * 4, 5], [directions, gates * 4, 4]]
    inputs = [Parameter(f32, PartialShape([None] * 3 if is_open else shape)) for shape in shapes]
    return ops.create(op_type, inputs, attributes)


def test_defaults() -> None:
    spec = RecurrentSpec.of(node("LSTM"))
    assert spec.activations == ((A("sigmoid"), A("tanh"), A("tanh")),)
    assert (spec.direction, spec.is_reversed, spec.layout, spec.clip) == ("forward", (False,), 0, None)
    assert spec.gates == ("i", "o", "f", "c")
    assert (spec.input_forget, spec.linear_before_reset, spec.hidden_size) == (False, False, None)
    assert (spec.b, spec.sequence_lens, spec.initial_h, spec.initial_c, spec.p) == (None,) * 5
    assert RecurrentSpec.of(node("GRU", linear_before_reset=1)).linear_before_reset is True


@pytest.mark.parametrize(
    ("op_type", "attributes", "expected"),
    [
        ("RNN", {}, ((A("tanh"),),)),
        ("RNN", {"direction": "bidirectional"}, ((A("tanh"),), (A("tanh"),))),
        ("RNN", {"activations": ["RELU"], "clip": 2.0}, ((A("relu", clip=2.0),),)),
        (
            "GRU",
            {
                "direction": "bidirectional",
                "activations": ["HardSigmoid", "Tanh", "LeakyRelu", "ScaledTanh"],
                "activation_alpha": [0.5, 0.25],
                "activation_beta": [0.75],
            },
            ((A("hardsigmoid", 0.5, 0.75), A("tanh")), (A("leakyrelu", 0.25), A("scaledtanh", 1.0, 1.0))),
        ),
        ("LSTM", {"clip": 3.0}, ((A("sigmoid", clip=3.0), A("tanh", clip=3.0), A("tanh")),)),
    ],
)
def test_activations(op_type: str, attributes: dict[str, Any], expected: Any) -> None:
    assert RecurrentSpec.of(node(op_type, **attributes)).activations == expected


def test_lengths() -> None:
    spec = RecurrentSpec.of(node("GRU", direction="bidirectional", hidden_size=4))
    lengths = spec.at(spec.input_shapes())
    assert (lengths.steps, lengths.batch, lengths.inputs) == (7, 3, 5)
    assert (lengths.directions, lengths.gates, lengths.hidden) == (2, 3, 4)
    assert lengths.state_strides == (12, 4, 1)
    spec = RecurrentSpec.of(node("GRU", direction="bidirectional", layout=1))
    lengths = spec.at(spec.input_shapes())
    assert (lengths.steps, lengths.batch, lengths.state_strides) == (7, 3, (4, 8, 1))


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("RNN", {"direction": "both"}, "direction is 'both'; allowed: forward, reverse, bidirectional"),
        ("GRU", {"layout": 2}, "layout is 2; allowed: 0 or 1"),
        ("LSTM", {"clip": -1.0}, "clip is -1"),
        ("LSTM", {"hidden_size": 0}, "hidden_size is 0; allowed: 1 or more"),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Swish"]}, "activations is .*'Swish'.*; allowed: sigmoid, tanh"),
        ("GRU", {"activations": ["Tanh"]}, "allowed: 2 for each of 1 directions"),
    ],
)
def test_bad_attributes(op_type: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=message):
        node(op_type, **attributes)


def test_an_input_of_another_rank() -> None:
    x, w = Parameter(f32, [7, 3]), Parameter(f32, [1, 4, 5])
    with pytest.raises(OperatorSpecError, match="input 0 has rank 2; allowed: 3"):
        ops.create("RNN", [x, w, w], {})


def test_lengths_that_do_not_fit() -> None:
    spec = RecurrentSpec.of(node("LSTM", is_open=True, hidden_size=4))
    spec.at([(7, 3, 5), (1, 16, 5), (1, 16, 4)])
    for shapes in (
        [(7, 3, 6), (1, 16, 5), (1, 16, 4)],
        [(7, 3, 5), (2, 16, 5), (2, 16, 4)],
        [(7, 3, 5), (1, 32, 5), (1, 32, 8)],
    ):
        with pytest.raises(OperatorSpecError, match="hidden_size 4 and direction forward"):
            spec.at(shapes)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(("op_type", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_the_length_of_the_states_is_that_of_r(op_type: str, gates: int, layout: int) -> None:
    x = Parameter(f32, ["S", 2, 3] if not layout else [2, "S", 3], "x")
    w, r = Parameter(f32, [2, gates * 5, 3], "w"), Parameter(f32, [2, gates * 5, 5], "r")
    attributes = {"direction": "bidirectional", "layout": layout}
    node = create(op_type, [x, w, r], attributes, num_outputs=2)
    expected = (["S", 2, 2, 5], [2, 2, 5]) if not layout else ([2, "S", 2, 5], [2, 2, 5])
    assert [output.shape for output in node.outputs] == [PartialShape(shape) for shape in expected]
    unknown = create(op_type, [x, w, Parameter(f32, PartialShape.dynamic(), "r")], attributes, num_outputs=2)
    assert unknown.output(1).shape == PartialShape([2, 2, -1])
