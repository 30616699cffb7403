"""Variables of a model: pairs of an input and an output whose value requests keep."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import ops
from engine.errors import GraphError, ModelError, ModelReadError
from engine.ir import Model, Parameter, Result, Variable, f32, i64
from engine.ir.checkpoint import Checkpoint
from engine.onnx import join_model, model_to_proto, read_model, split_model
from engine.onnx.variables import METADATA_KEY
from engine.passes import compare_models

VARIABLE = Variable(
    "kept", "past", "present", np.zeros((1, 0, 4), np.float32), axis=1, bound=9, batch_axis=0, is_placed=True
)


def appending() -> Model:
    """`present = past ++ x` and `y = x`, the pair in front of the other ports."""
    past, x = Parameter(f32, ["batch", "past", 4], "past"), Parameter(f32, ["batch", "new", 4], "x")
    return Model([Result(ops.Concat(past, x, axis=1), "present"), Result(ops.Relu(x), "y")], [past, x], name="m")


def with_variable() -> Model:
    model = appending()
    model.add_variable(VARIABLE)
    return model


def names(model: Model) -> tuple[list[str], list[str]]:
    return [p.friendly_name for p in model.parameters], [r.friendly_name for r in model.results]


def test_ports_of_variables_are_the_last() -> None:
    model = with_variable()
    assert names(model) == (["x", "past"], ["y", "present"])
    model.add_parameter(Parameter(f32, [1], "later"))
    model.add_result(ops.Neg(model.parameter("x")), "last")
    assert names(model) == (["x", "later", "past"], ["y", "last", "present"])
    model.validate()
    model.remove_variable("kept")
    assert not model.variables
    assert names(model) == (["x", "later", "past"], ["y", "last", "present"])


def test_ports_of_variables_cannot_be_removed() -> None:
    model = with_variable()
    with pytest.raises(GraphError, match="belongs to a variable"):
        model.remove_result(model.result("present"))
    model.result("present").input_value(0).replace(ops.Relu(model.parameter("x")).output(0))
    with pytest.raises(GraphError, match="belongs to a variable"):
        model.remove_parameter(model.parameter("past"))
    with pytest.raises(GraphError, match=r"no variable `other`; it has `kept`"):
        model.remove_variable("other")


def test_validation_finds_renamed_ports() -> None:
    model = with_variable()
    model.parameter("past").friendly_name = "renamed"
    with pytest.raises(GraphError, match=r"pairs input `past`.*but `renamed`"):
        model.validate()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parameter": "absent"}, "no input 'absent'"),
        ({"result": "absent"}, "no output 'absent'"),
        ({"axis": 3}, "axis is 3; expected 0 to 2"),
        ({"axis": 2, "bound": None}, "dimension 2 grows, but the input has a fixed length"),
        ({"axis": 0}, "axis and batch_axis are both 0"),
        ({"written_axis": 1}, "it has axis and written_axis"),
        ({"written_axis": 3}, "written_axis is 3; expected 0 to 2"),
        ({"axis": None, "bound": None, "written_axis": 0}, "written_axis and batch_axis are both 0"),
        ({"axis": None}, "bound is 9"),
        ({"bound": -1}, "bound is -1"),
        ({"initial": np.zeros((1, 0, 4))}, "initial value is float64"),
        ({"initial": [0.0]}, "initial value is list"),
        ({"initial": np.zeros((1, 0, 3), np.float32)}, r"initial value has shape \(1, 0, 3\)"),
        ({"initial": np.zeros((0, 4), np.float32)}, r"initial value has shape \(0, 4\)"),
        ({"initial": np.zeros((1, 10, 4), np.float32)}, "longer than the bound 9"),
    ],
)
def test_variables_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    model = appending()
    with pytest.raises(GraphError, match=said):
        model.add_variable(replace(VARIABLE, **changes))
    assert names(model) == (["past", "x"], ["present", "y"])


def test_pairs_are_of_tensors_of_equal_types() -> None:
    past = Parameter(i64, [1, "past", 4], "past")
    x = Parameter(f32, [1, "new", 4], "x")
    model = Model([Result(ops.Relu(x), "present")], [past, x])
    with pytest.raises(GraphError, match="same element type"):
        model.add_variable(VARIABLE)
    model = with_variable()
    with pytest.raises(GraphError, match="already has a variable `kept`"):
        model.add_variable(VARIABLE)
    for shared in ({}, {"parameter": "x"}, {"result": "y"}):  # The pair, its output, its input.
        with pytest.raises(GraphError, match="already belongs to variable `kept`"):
            model.add_variable(replace(VARIABLE, name="other", **shared))  # type: ignore[arg-type]


def test_copies_have_the_variables() -> None:
    model = with_variable()
    assert model.clone().variables == model.variables
    saved = Checkpoint(model)
    model.remove_variable("kept")
    saved.restore()
    assert model.variables == [VARIABLE]
    assert 'variable "kept" = "past" <- "present", grows along axis 1' in str(model)
    other = appending()
    assert not compare_models(model, model.clone())
    assert compare_models(model, other)


def test_a_variable_that_is_written_says_so_in_the_text() -> None:
    past, x = Parameter(f32, [1, 3, 4], "past"), Parameter(f32, [1, 3, 4], "x")
    model = Model([Result(ops.Add(past, x), "present")], [past, x], name="m")
    initial = np.zeros((1, 3, 4), np.float32)
    written = replace(VARIABLE, axis=None, bound=None, is_placed=False, written_axis=1, initial=initial)
    model.add_variable(written)
    assert 'variable "kept" = "past" <- "present", written along axis 1' in str(model)
    (read,) = read_model(model_to_proto(model)).variables
    assert read.to_json() == written.to_json()
    assert read.written_axis == 1
    with pytest.raises(ModelError, match="written_axis must be integers"):
        Variable.from_json({**written.to_json(), "written_axis": "1"})


@pytest.mark.parametrize("initial", [VARIABLE.initial, np.arange(4, dtype=np.float32).reshape(1, 1, 4)])
def test_files_stay_onnx(initial: Any) -> None:
    """A file names the pairs in its metadata; other runtimes read it, and this one finds the variables again."""
    model = appending()
    model.add_variable(replace(VARIABLE, initial=initial))
    proto = model_to_proto(model)
    assert {entry.key for entry in proto.metadata_props} == {METADATA_KEY}
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["x", "past"]
    skeleton, sections = split_model(model)
    data = {section.name: section.data for section in sections}
    for read in (read_model(proto), join_model(skeleton, lambda name: data[name])):
        (variable,) = read.variables
        assert variable.to_json() == model.variables[0].to_json()
        np.testing.assert_array_equal(variable.initial, initial)
        assert METADATA_KEY not in read.metadata


@pytest.mark.parametrize(
    "text",
    [
        "", "nonsense", "{}", "[1]", "[[]]", '[{"name": "kept"}]', "[" * 100_000,
        json.dumps([{**VARIABLE.to_json(), "input": "absent"}]),
        json.dumps([{**VARIABLE.to_json(), "axis": "1"}]),
        json.dumps([{**VARIABLE.to_json(), "axis": True}]),
        json.dumps([{**VARIABLE.to_json(), "is_placed": 1}]),
        json.dumps([{**VARIABLE.to_json(), "axis": 10**30}]),
        json.dumps([VARIABLE.to_json()] * 2),
        json.dumps([{**VARIABLE.to_json(), "initial": {"type": "f32", "shape": [1, 1, 4], "data": "AAAA"}}]),
        json.dumps([{**VARIABLE.to_json(), "initial": {"type": "f32", "shape": [1, 1, 4], "data": "?"}}]),
        json.dumps([{**VARIABLE.to_json(), "initial": {"type": "f32", "shape": [2**40, 2**40, 4]}}]),
        json.dumps([{**VARIABLE.to_json(), "initial": {"type": "f32", "shape": [-1, 0, 4]}}]),
        json.dumps([{**VARIABLE.to_json(), "initial": {"type": "string", "shape": [1, 0, 4]}}]),
    ],
)  # fmt: skip
def test_damaged_descriptions_are_refused(text: str) -> None:
    proto = model_to_proto(appending())
    proto.metadata_props.add(key=METADATA_KEY, value=text)
    with pytest.raises(ModelReadError, match=METADATA_KEY):
        read_model(proto)
    with pytest.raises(ModelError):
        Variable.from_json(None)
