"""Pairs of past and present values become variables: how they are found, and which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Output, Parameter, Result, Variable, f16, f32, i64
from engine.passes import MakeStateful, Manager


def appended(past: Parameter, new: Output | Node, axis: int = 2) -> Node:
    return ops.Concat(past, new, axis=axis)


def cache(past: str = "past_key_values.0.key", present: str = "present.0.key", **others: str) -> Model:
    """A model that appends its input to the past, under these names; and further pairs that do the same."""
    x = Parameter(f32, ["batch", 2, "new", 4], "x")
    results, parameters = [Result(ops.Relu(x), "y")], [x]
    for name, output in {past: present, **others}.items():
        parameter = Parameter(f32, ["batch", 2, "past", 4], name)
        parameters.insert(0, parameter)
        results.insert(0, Result(appended(parameter, x), output))
    return Model(results, parameters)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.3.value", "present_key_values.3.value"),
        ("past_key_values_0_key", "present_0_key"),
        ("past_key_values.0.decoder.key", "present.0.decoder.key"),
        ("past_key_self_0", "present_key_self_0"),
        ("past_0", "present_0"),
        ("past.0.k", "present.0.k"),
        ("past", "present"),
    ],
)
def test_names_of_exporters(past: str, present: str) -> None:
    model = cache(past, present)
    assert MakeStateful().run_on_model(model)
    (variable,) = model.variables
    assert (variable.name, variable.parameter, variable.result) == (past, past, present)
    assert (variable.axis, variable.batch_axis, variable.initial.shape) == (2, 0, (1, 2, 0, 4))
    assert [p.friendly_name for p in model.parameters] == ["x", past]
    assert [r.friendly_name for r in model.results] == ["y", present]


@pytest.mark.parametrize("name", ["paste", "x_past", "key", "present.0.key", "repast_0"])
def test_other_names_are_not_taken(name: str) -> None:
    model = cache(name, f"{name}_out")
    with pytest.raises(PassError, match=rf"no input .* has the name of a past value.*`{name}`"):
        MakeStateful().run_on_model(model)
    assert not model.variables
    assert MakeStateful({name: f"{name}_out"}).run_on_model(model)
    assert [variable.name for variable in model.variables] == [name]


def test_what_does_not_append_does_not_grow() -> None:
    """A sum that is replaced, a window that slides, and a new value in front of the past."""
    x = Parameter(f32, [1, 1, 4], "x")
    total, window, front = (Parameter(f32, [1, n, 4], f"past_{n}") for n in (1, 3, "any"))  # type: ignore[list-item]
    slid = ops.Slice(ops.Concat(window, x, axis=1), Constant(np.array([1])), Constant(np.array([4])),
                     Constant(np.array([1])))  # fmt: skip
    values = {"present_1": ops.Add(total, x), "present_3": slid, "present_any": ops.Concat(x, front, axis=1)}
    model = Model([Result(value, name) for name, value in values.items()], [x, total, window, front])
    MakeStateful().run_on_model(model)
    assert [(variable.axis, variable.initial.shape) for variable in model.variables] == [
        (None, (1, 1, 4)), (None, (1, 3, 4)), (None, (1, 0, 4)),
    ]  # fmt: skip


def _written(kind: str, past: Parameter, new: Parameter, places: Parameter) -> Output | Node:
    """`past`, [batch, heads, positions, size], with `new` at `places` of the positions."""
    columns = ops.Unsqueeze(places, Constant(np.array([-1])))
    if kind == "ScatterND":
        turned = ops.Transpose(past, perm=[2, 3, 0, 1])
        written = ops.ScatterND(turned, columns, ops.Transpose(new, perm=[2, 3, 0, 1]))
        return ops.Transpose(ops.Identity(written), perm=[2, 3, 0, 1])
    if kind == "ScatterElements":
        indices = ops.Expand(columns, ops.Shape(new))
        return ops.ScatterElements(past, indices, new, axis=-2)
    if kind == "wrong order":
        return ops.Transpose(ops.Transpose(_written("ScatterND", past, new, places), perm=[0, 1, 2, 3]),
                             perm=[1, 0, 2, 3])  # fmt: skip
    first = ops.Expand(ops.Slice(places, *(Constant(np.array([each])) for each in (0, 1))), ops.Shape(past, end=1))
    mode = "circular" if kind == "circular" else "linear"
    return ops.TensorScatter(past, new, first, axis=2, mode=mode)


def static_cache(kind: str, length: Any = 8, batch: Any = "batch") -> Model:
    new, places = Parameter(f32, ["batch", 2, "new", 2], "x"), Parameter(i64, ["new"], "places")
    past = Parameter(f32, [batch, 2, length, 2], "value_cache.1")
    written = _written(kind, past, new, places)
    return Model([Result(ops.Relu(new), "y"), Result(written, "updated_value_cache.1")], [new, places, past])


@pytest.mark.parametrize(
    ("kind", "written"),
    [("TensorScatter", 2), ("ScatterND", 2), ("ScatterElements", 2), ("circular", None), ("wrong order", None)],
)
def test_what_is_written_at_positions_keeps_its_length(kind: str, written: int | None) -> None:
    model = static_cache(kind)
    MakeStateful().run_on_model(model)
    (variable,) = model.variables
    assert (variable.axis, variable.written_axis, variable.bound, variable.batch_axis) == (None, written, None, 0)
    assert (variable.name, variable.result) == ("value_cache.1", "updated_value_cache.1")
    assert variable.initial.shape == (1, 2, 8, 2)


def test_a_bound_is_the_length_that_a_model_leaves_open() -> None:
    model = static_cache("TensorScatter", "room")
    MakeStateful(bound=7).run_on_model(model)
    (variable,) = model.variables
    assert (variable.written_axis, variable.bound, variable.initial.shape) == (2, None, (1, 2, 7, 2))
    for wrong, bound, said in (
        (static_cache("TensorScatter", "room"), None, "unknown length; pass it: MakeStateful"),
        (static_cache("TensorScatter", 8), 7, "fixed length of 8, into which the model writes; got bound=7"),
        (static_cache("TensorScatter", 8, "others"), None, "no other input determines the length of dimension 0"),
    ):
        with pytest.raises(PassError, match=said):
            MakeStateful(bound=bound).run_on_model(wrong)
        assert not wrong.variables


def test_the_past_of_attention() -> None:
    q, k, v = (Parameter(f32, [1, 2, "new", 4], name) for name in "qkv")
    past = [Parameter(f32, [1, 2, "past", 4], f"past_key_values.0.{name}") for name in ("key", "value")]
    attention = ops.create("Attention", [q, k, v, None, *past], {"is_causal": 1}, num_outputs=3)
    names = ("y", "present.0.key", "present.0.value")
    model = Model([Result(attention.output(i), name) for i, name in enumerate(names)], [*past, q, k, v])
    MakeStateful().run_on_model(model)
    assert [(variable.axis, variable.initial.shape) for variable in model.variables] == [(2, (1, 2, 0, 4))] * 2


def test_lengths_of_what_is_appended_are_those_of_the_past() -> None:
    """A past whose batch, heads and sizes have names of their own: what is appended has the batch of the inputs."""
    x = Parameter(f32, ["batch", 3, "new", 4], "x")
    past = Parameter(f32, ["b", "h", "past", "d"], "past_key_values.0.key")
    model = Model([Result(ops.Identity(appended(past, x)), "present.0.key")], [x, past])
    MakeStateful(bound=9).run_on_model(model)
    (variable,) = model.variables
    assert (variable.axis, variable.batch_axis, variable.bound, variable.initial.shape) == (2, 0, 9, (1, 3, 0, 4))
    assert [str(dim) for dim in past.output(0).shape] == ["batch", "3", "past", "4"]
    assert str(model.results[0].input_value(0).shape[3]) == "4"


def test_a_name_has_one_length_in_all_pasts() -> None:
    """A past whose length nothing tells has the length of another one, unless two others differ."""
    for sizes, expected in (((4,), 4), ((4, 6), None)):
        x, shape = Parameter(f32, [1, 2, "new", "?"], "x"), Parameter(i64, [4], "shape")
        pasts = {f"past_{i}": Parameter(f32, [1, 2, "past", "d"], f"past_{i}") for i in range(len(sizes) + 1)}
        news = [ops.Reshape(x, shape), *(Parameter(f32, [1, 2, "new", size], f"x{size}") for size in sizes)]
        results = [
            Result(appended(past, new), name.replace("past", "present"))
            for (name, past), new in zip(pasts.items(), news, strict=True)
        ]
        model = Model(results, [x, shape, *pasts.values(), *(new for new in news if isinstance(new, Parameter))])
        if expected is None:
            with pytest.raises(PassError, match=r"`past_0` is f32\[1,2,past,d\], and neither .* dimension 3; state it"):
                MakeStateful().run_on_model(model)
            assert not model.variables
            model.reshape({"past_0": [1, 2, "past", 8]})  # the way out
        MakeStateful().run_on_model(model)
        assert model.variables[0].initial.shape == (1, 2, 0, expected or 8)


def test_a_state_that_keeps_an_unknown_length_is_refused() -> None:
    past, x = Parameter(f32, [1, "width"], "past"), Parameter(f32, [1, 1], "x")
    model = Model([Result(ops.Add(past, ops.Mul(past, x)), "present")], [past, x])
    with pytest.raises(PassError, match=r"`past` is f32\[1,width\].* dimension 1; state it first: model.reshape"):
        MakeStateful().run_on_model(model)


@pytest.mark.parametrize("length", ["other", None])
def test_a_state_that_would_remain_empty_is_refused(length: str | None) -> None:
    def model() -> Model:
        past, second = Parameter(f32, [length, 2], "past_0"), Parameter(f32, [length, 2], "past_1")
        x = Parameter(f32, ["batch", 2], "x")
        half = ops.Mul(second, Constant(np.float32(0.5)))
        return Model([Result(ops.Add(half, x), "present_0"), Result(past, "present_1")], [past, second, x])

    with pytest.raises(PassError, match=r"`past_0` is f32\[.*,2\], and neither .* dimension 0; state it"):
        MakeStateful().run_on_model(model())
    told = model()
    told.reshape({"past_0": ["batch", 2], "past_1": ["batch", 2]})  # the way out
    MakeStateful().run_on_model(told)
    assert [variable.initial.shape for variable in told.variables] == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    "batches", [("B", "b", "c"), (None, "b", "c"), (None, None, None), (None, "x.1", "x.1")], ids=str
)
@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_states_have_the_batch_of_the_input_whatever_it_is_called(device: str, batches: tuple[str | None, ...]) -> None:
    """Exporters name the batch of each input, or of none; states of batch 0 failed in the first inference."""
    random = np.random.default_rng(2)
    weights = [random.uniform(-1, 1, shape).astype(np.float32) for shape in ((1, 12, 2), (1, 12, 3))]
    of_x, of_h, of_c = batches
    inputs = [Parameter(f32, ["S", of_x, 2], "x"), Parameter(f32, [1, of_h, 3], "h"), Parameter(f32, [1, of_c, 3], "c")]
    x, h, c = inputs
    lstm = ops.LSTM(x, *map(Constant, weights), None, None, h, c, hidden_size=3, num_outputs=3)
    names = zip(lstm.outputs, ("y", "h_next", "c_next"), strict=True)
    model = Model([Result(value, name) for value, name in names], inputs)
    step = Core().compile_model(model.clone(), device)
    MakeStateful({"h": "h_next", "c": "c_next"}).run_on_model(model)
    request = Core().compile_model(model, device).create_infer_request()
    state = [np.zeros((1, 4, 3), np.float32)] * 2
    for length in (2, 1, 3):
        data = random.uniform(-1, 1, (length, 4, 2)).astype(np.float32)
        wanted, *state = step({"x": data, "h": state[0], "c": state[1]}).values()
        np.testing.assert_array_equal(request.infer({"x": data})[0], wanted)


def test_a_window_of_an_open_length_begins_empty() -> None:
    past, x = Parameter(f32, ["batch", "window"], "past"), Parameter(f32, ["batch", "new"], "x")
    ends = (Constant(np.array([each])) for each in (-4, 2**62, 1))
    window = ops.Slice(ops.Concat(past, x, axis=1), *ends)
    model = Model([Result(ops.ReduceSum(window, keepdims=0), "y"), Result(window, "present")], [past, x])
    window.set_output_type(0, past.type)  # as a file declares it
    MakeStateful().run_on_model(model)
    request = Core().compile_model(model, "TEMPLATE").create_infer_request()
    assert [request.infer({"x": np.ones((1, 2), np.float32)})["y"].item() for _ in range(3)] == [2, 4, 4]


def test_a_bound_is_that_of_growing_variables() -> None:
    model = cache()
    MakeStateful(bound=7).run_on_model(model)
    assert [variable.bound for variable in model.variables] == [7]


def test_variables_as_told() -> None:
    model = cache("a", "b")
    initial = np.ones((1, 2, 3, 4), np.float32)
    MakeStateful([Variable("kept", "a", "b", initial, axis=2)]).run_on_model(model)
    (variable,) = model.variables
    assert variable.name == "kept"
    assert variable.initial is initial


def _of_types(before: Any, after: Any, shape: Any = (1, 2)) -> Model:
    x, past = Parameter(after, shape, "x"), Parameter(before, [1, 2], "past_0")
    return Model([Result(ops.Relu(x), "present_0"), Result(ops.Relu(past), "y")], [past, x])


@pytest.mark.parametrize(
    ("model", "pairs", "said"),
    [
        (lambda: _of_types(f16, f32), None, "same element type"),
        (lambda: _of_types(f32, f32, [1, 3]), None, "dimension 1 is 2 before an inference and 3 after it"),
        (lambda: _of_types(f32, f32, [1, 2, 1]), None, "different ranks"),
        (lambda: cache("past_key_values.0.key", "present.0.key", **{"past.0.key": "present_key_values.0.key"}),
         None, "matches the outputs `present.0.key` and `present_key_values.0.key`"),
        (cache, {"nothing": "y"}, "no input 'nothing'"),
        (cache, {"x": "nothing"}, "no output 'nothing'"),
        (lambda: cache("past_0", "present_0", past_1="present_1"), {"past_0": "present_0", "past_1": "present_0"},
         "already belongs to variable `past_0`"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(model: Any, pairs: Any, said: str) -> None:
    made = model()
    with pytest.raises(PassError, match=said):
        MakeStateful(pairs).run_on_model(made)


def test_in_a_manager() -> None:
    """It runs like any other pass, and leaves a model that already has variables."""
    model = cache()
    manager = Manager()
    manager.register_pass(MakeStateful())
    assert manager.run_passes(model)
    assert not MakeStateful().run_on_model(model)


@pytest.mark.parametrize("bound", [True, -1, 2.5, float("nan"), "8"])
def test_a_bound_is_a_length(bound: Any) -> None:
    """True would be a bound of one token."""
    with pytest.raises(PassError, match=r"bound is .*; expected a length of 0 or more, or None"):
        MakeStateful(bound=bound)
