"""A model cut into parts computes what the whole model does; no part has more weights than a machine should hold."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import PassError
from engine.ir import Constant, Model, Parameter, Result, Variable, f32, i64
from engine.ops.evaluator import ModelEvaluator
from engine.passes import DividedModel, LengthsOf, MakeStateful, divide_model
from tests.fuzz.graphs import make

DECODERS = Path(__file__).parents[1] / "fixtures" / "decoders"
NAMES = sorted(path.name.removesuffix(".onnx") for path in DECODERS.glob("*.onnx"))
ROOM = 16  # of caches of a fixed length
TOLERANCE = 1e-6  # as in tests/test_decoders.py


def decoder(name: str) -> Model:
    model = Core().read_model(DECODERS / f"{name}.onnx")
    MakeStateful().run_on_model(model)
    return model


class Chain:
    """The parts as requests of one device, each of which keeps its variables; exported and imported before."""

    def __init__(self, divided: DividedModel, device: str) -> None:
        self.parts = divided.parts
        self.requests = []
        for part in divided.parts:
            blob = io.BytesIO()
            Core().compile_model(part.model, device).export_model(blob)
            self.requests.append(Core().import_model(blob.getvalue(), device).create_infer_request())

    def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        states = {name: state for request in self.requests for name, state in request.query_state().items()}
        values = dict(inputs)
        for part, request in zip(self.parts, self.requests, strict=True):
            for name, lengths in part.lengths.items():
                values[name] = np.array(states[lengths.variable].shape[lengths.start : lengths.end])
            found = request.infer({port.name: values[port.name] for port in request.network.inputs})
            values |= {port.name: found[port.name] for port in request.network.outputs}
        return values


def step(model: Model, rng: Any, past: int, new: int) -> dict[str, Any]:
    is_static = any(variable.written_axis is not None for variable in model.variables)
    width, positions = ROOM if is_static else past + new, np.arange(past, past + new)
    values = {
        "input_ids": rng.integers(0, 32, (2, new)),
        "attention_mask": np.repeat((np.arange(width) < past + new).astype(np.int64)[None], 2, axis=0),
        "position_ids": positions[None].repeat(2, 0),
        "cache_position": positions,
        "write_indices": np.full(2, past),
        "nonpad_kv_seqlen": np.full(2, past + new),
    }
    return {each.friendly_name: values[each.friendly_name] for each in model.parameters if each.friendly_name in values}


def cases() -> list[Any]:
    """By default, all models in two parts on CPU, and one of them in three, on TEMPLATE, too."""
    found = [(name, parts, device) for name in NAMES for parts in (2, 3) for device in ("CPU", "TEMPLATE")]
    defaults = [case for case in found if case[1:] == (2, "CPU") or case[:2] == ("llama.dynamo23", 3)]
    return [pytest.param(*case, marks=[] if case in defaults else [pytest.mark.repeated]) for case in found]


@pytest.mark.parametrize(("name", "parts", "device"), cases())
def test_parts_compute_what_the_whole_does(name: str, parts: int, device: str) -> None:
    """Sequence by sequence, in a batch, each part with variables of its own, also after an export and an import."""
    model = decoder(name)
    divided = divide_model(model, parts, largest=0.6)
    assert [v.name for part in divided.parts for v in part.model.variables] == [v.name for v in model.variables]
    chain, whole = Chain(divided, device), Core().compile_model(model, device).create_infer_request()
    rng, past = np.random.default_rng(3), 0
    for new in (4, 1, 3, 1):
        inputs = step(model, rng, past, new)
        past += new
        expected = whole.infer(inputs)["logits"]
        np.testing.assert_allclose(chain.infer(inputs)["logits"], expected, rtol=0, atol=TOLERANCE)


def stack(sizes: list[int], *, is_tied: bool = False) -> Model:
    """Matrices that are multiplied one after another, of `sizes` rows and columns."""
    rng = np.random.default_rng(0)
    x = Parameter(f32, ["n", sizes[0]], "x")
    first = last = Constant(rng.normal(size=(sizes[0], sizes[1])).astype(np.float32), friendly_name="first")
    value: Any = ops.MatMul(x, first)
    for rows, columns in itertools.pairwise(sizes[1:]):
        last = Constant(rng.normal(size=(rows, columns)).astype(np.float32), friendly_name=f"w{rows}x{columns}")
        value = ops.Relu(ops.MatMul(value, last))
    if is_tied:
        value = ops.MatMul(value, ops.Transpose(first, perm=[1, 0]))
    return Model([Result(value, "y")], [x], name="stack")


def run(models: list[Model], x: Any) -> Any:
    values = {"x": x}
    for model in models:
        found = ModelEvaluator(model).run([values[each.friendly_name] for each in model.parameters])
        values |= {each.friendly_name: value for each, value in zip(model.results, found, strict=True)}
    return values["y"]


def test_parts_are_as_even_as_the_weights_allow() -> None:
    divided = divide_model(stack([8, 8, 8, 8, 8, 8, 8, 8, 8]), 4)
    assert [part.weight_bytes for part in divided.parts] == [512] * 4
    assert (divided.weight_bytes, divided.largest_share) == (2048, 0.25)


def test_the_fewest_bytes_cross_where_parts_are_about_even() -> None:
    """The narrow value between the second and the third matrix, though the cut after the first one is as even."""
    divided = divide_model(stack([32, 40, 2, 40, 32]), 2)
    assert [part.weight_bytes for part in divided.parts] == [4 * (32 * 40 + 40 * 2)] * 2
    crossing = divided.parts[1].model.parameters
    assert [each.output(0).shape[1].get_length() for each in crossing] == [2]


def test_a_weight_at_both_ends_is_in_both_parts() -> None:
    """As tied embeddings are: each part counts it, and what is computed from the weight alone does not cross."""
    model = stack([16] * 13, is_tied=True)
    divided = divide_model(model, 2)
    assert [part.weight_bytes for part in divided.parts] == [1024 * 6, 1024 * 7]
    assert divided.weight_bytes == 1024 * 12
    x = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32) / 16
    np.testing.assert_array_equal(run([part.model for part in divided.parts], x), run([model], x))
    # The model is as it was, and can be divided again.
    assert divide_model(model, 1).parts[0].weight_bytes == divided.weight_bytes


def test_parts_larger_than_the_limit_are_refused_with_the_reason() -> None:
    tied = stack([64, 8, 8], is_tied=True)  # 2 kB in both parts, and 256 bytes
    with pytest.raises(PassError, match=r"would have 100.0%; expected 60.0% at most: weights that several parts read "):
        divide_model(tied, 2)
    with pytest.raises(PassError, match=r"cannot be divided further; its largest weight is `first` \(4.1 kB\)"):
        divide_model(stack([32, 32, 4, 4]), 2)
    with pytest.raises(PassError, match=r"pass largest=0.88"):
        divide_model(stack([32, 32, 4, 4]), 2)
    assert divide_model(stack([32, 32, 4, 4]), 2, largest=0.88).largest_share < 0.88


@pytest.mark.parametrize(("parts", "largest"), [(0, None), (True, None), (2.0, None), (2, 0), (2, 1.1), (2, math.nan)])
def test_wrong_arguments(parts: Any, largest: Any) -> None:
    with pytest.raises(PassError, match="expected"):
        divide_model(stack([8, 8, 8]), parts, largest=largest)


def test_a_variable_stays_in_one_part() -> None:
    """Although the even cut would be between the operation that reads it and the one that computes the next value."""
    x, past = Parameter(f32, ["n", 8], "x"), Parameter(f32, [8], "past")
    weight = lambda: Constant(np.eye(8, dtype=np.float32))  # noqa: E731
    first = ops.MatMul(ops.Add(x, past), weight())
    second = ops.MatMul(first, weight())
    following = ops.ReduceSum(second, Constant(np.array([0])), keepdims=0)
    third = ops.MatMul(second, weight())
    model = Model([Result(third, "y"), Result(following, "next")], [x, past], name="looped")
    model.add_variable(Variable("sum", "past", "next", np.zeros(8, np.float32)))
    divided = divide_model(model, 2, largest=0.7)
    assert [part.weight_bytes for part in divided.parts] == [520, 256]  # with the axis of the sum
    assert [[v.name for v in part.model.variables] for part in divided.parts] == [["sum"], []]
    with pytest.raises(PassError, match="places to divide it"):
        divide_model(model, 9, largest=1)


def test_lengths_of_a_later_variable_are_those_of_an_own_one() -> None:
    """An exporter takes the number of past tokens from any layer's past, also from a later one's."""
    model = decoder("llama.dynamo23")
    read = [node.input_value(0).name for node in model.ordered_nodes() if node.op_type == "Shape"]
    assert "past_key_values.1.key" in read
    divided = divide_model(model, 2)
    assert [dict(part.lengths) for part in divided.parts] == [{}, {}]
    assert [each.name for each in divided.parts[1].model.inputs[:4]] == [
        *("input_ids", "attention_mask", "position_ids"),
        "add_11",
    ]


def test_lengths_of_a_variable_are_an_input_of_a_part_without_one() -> None:
    x, past = Parameter(f32, ["n", 8], "x"), Parameter(f32, ["p", 8], "past")
    length = ops.Shape(past, start=0, end=1)
    weight = lambda: Constant(np.eye(8, dtype=np.float32) / 2)  # noqa: E731
    first = ops.Tanh(ops.MatMul(ops.Add(x, ops.Cast(length, to=f32.onnx)), weight()))
    second = ops.MatMul(first, weight())
    model = Model([Result(second, "y"), Result(ops.Concat(past, second, axis=0), "rows")], [x, past], name="counting")
    model.add_variable(Variable("past", "past", "rows", np.zeros((0, 8), np.float32), axis=0))
    divided = divide_model(model, 2)
    ((name, lengths),) = divided.parts[0].lengths.items()
    assert lengths == LengthsOf("past", 0, 1)
    assert divided.parts[0].model.parameter(name).type == Parameter(i64, [1], "n").type
    chain, whole = Chain(divided, "CPU"), Core().compile_model(model, "CPU").create_infer_request()
    for count in (2, 1, 3):
        given = {"x": np.full((count, 8), 0.1, np.float32)}
        np.testing.assert_array_equal(chain.infer(given)["y"], whole.infer(given)["y"])


def test_outputs_are_given_by_the_parts_that_compute_them() -> None:
    model = stack([8, 8, 8, 8, 8])
    middle = next(node for node in model.ordered_nodes() if node.op_type == "Relu")
    model.add_result(middle.output(0), "middle")
    model.add_result(model.parameter("x").output(0), "same")
    divided = divide_model(model, 2)
    first, last = (part.model for part in divided.parts)
    assert ([each.friendly_name for each in first.results], first.parameters[0].friendly_name) == (
        ["middle", "same"],
        "x",
    )
    assert ([each.friendly_name for each in last.parameters], last.results[0].friendly_name) == (["middle"], "y")


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs_compute_the_same_in_parts(seed: int) -> None:
    """The same bits, whatever the operations, types, results and lengths are."""
    model, feeds, chooser = make(seed)
    try:
        divided = divide_model(model, chooser.choice((2, 3, 5)), largest=1)
    except PassError:  # it has too few operations
        return
    values: dict[str, Any] = dict(feeds)
    for part in divided.parts:
        found = ModelEvaluator(part.model).run([values[each.friendly_name] for each in part.model.parameters])
        values |= {each.friendly_name: value for each, value in zip(part.model.results, found, strict=True)}
    expected = ModelEvaluator(model).run([feeds[each.friendly_name] for each in model.parameters])
    for result, value in zip(model.results, expected, strict=True):
        assert getattr(values[result.friendly_name], "dtype", None) == getattr(value, "dtype", None)
        np.testing.assert_equal(values[result.friendly_name], value)
