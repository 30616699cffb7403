"""Edits of graphs: whatever is done in whatever order, ports agree, and refused edits change nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import ops
from engine.errors import EngineError, GraphError
from engine.ir import Constant, Model, Node, Output, Parameter, Result, f32
from engine.onnx import join_model, split_model

edits = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 99), st.integers(0, 99)), max_size=25)


def make_model() -> Model:
    x = Parameter(f32, [2, "N"], "x")
    split = ops.Split(ops.Add(ops.Relu(x), ops.Constant(np.float32(1))), num_outputs=2, axis=0)
    return Model(
        [Result(ops.Mul(split.output(0), x), "y"), Result(split.output(1), "z")], [x], sinks=[ops.Neg(split.output(0))]
    )


def apply(model: Model, kind: int, a: int, b: int) -> None:
    """One edit, chosen by numbers."""
    nodes = model.ordered_nodes()
    values = [output for node in nodes if node not in model.sinks for output in node.outputs]
    value, other = values[a % len(values)], values[b % len(values)]
    readers = [port for node in nodes for port in node.inputs]
    match kind:
        case 0:
            value.replace(other)
        case 1 if readers:
            readers[b % len(readers)].replace_source_output(value)
        case 2 if readers:
            readers[b % len(readers)].replace_source_output(ops.Relu(value))
        case 3:
            model.add_result(value, f"r{a}")
        case 4 if model.results:
            model.remove_result(model.results[a % len(model.results)])
        case 5:
            model.add_sink(ops.Neg(value))
        case 6 if model.sinks:
            model.remove_sink(model.sinks[a % len(model.sinks)])


def has_cycle(model: Model) -> bool:
    """Edits do not look for long cycles: that would take a walk over the graph for each. The next order does."""
    try:
        model.ordered_nodes()
    except GraphError:
        return True
    return False


def assert_ports_agree(model: Model) -> None:
    """Whoever reads a value is among its consumers, and no one else is."""
    nodes = model.ordered_nodes()
    position = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        for port in node.inputs:
            source = port.source_output
            assert position[source.node] < position[node]
            assert port in source.target_inputs
        for output in node.outputs:
            assert output.num_consumers == len(output.target_inputs)
            for port in output.target_inputs:
                assert port.source_output == output
                assert port.node in position, "a node that is not in the model counts as a consumer"
        is_kept = isinstance(node, (Parameter, Result)) or node in model.sinks
        assert is_kept or any(output.num_consumers for output in node.outputs)


def operators(model: Model) -> list[str]:
    """Without Identity, by which a file lets one value leave under two names."""
    return sorted(node.op_type for node in model.ordered_nodes() if node.op_type != "Identity")


@given(edits)
@settings(max_examples=150, deadline=None)
def test_any_edits_leave_a_sound_graph(chosen: list[tuple[int, int, int]]) -> None:
    model = make_model()
    for edit in chosen:
        before = model.to_text()
        try:
            apply(model, *edit)
        except EngineError:
            assert model.to_text() == before, "a refused edit changed the model"
        if has_cycle(model):
            return
        assert_ports_agree(model)
    skeleton, sections = split_model(model)
    joined = join_model(skeleton, {section.name: section.data for section in sections}.__getitem__)
    for copy in (model.clone(), joined):
        assert_ports_agree(copy)
        assert operators(copy) == operators(model)
        assert len(copy.sinks) == len(model.sinks)
        assert [r.friendly_name for r in copy.results] == [r.friendly_name for r in model.results]


def relu() -> Node:
    return ops.Relu(Parameter(f32, [2], "x"))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.add_sink("node"), "a sink of model"),
        (lambda m: m.add_sink(m.sinks[0]), "a sink of model"),
        (lambda m: m.add_sink(m.results[0]), "a sink of model"),
        (lambda m: Model([], sinks=[m.result("y").input_value(0).node]), "has consumers"),
        (lambda m: m.add_parameter(relu()), "is a Parameter"),
        (lambda m: Model(relu()), "must be a list"),
        (lambda m: m.sinks[0].input(0).replace_source_output(m.sinks[0]), "cannot read its own output"),
        (lambda m: m.sinks[0].set_output_type(1, m.inputs[0].type), "has no output 1"),
        (lambda m: setattr(Output(m.sinks[0], 1), "name", "a"), "has no output 1"),
        (lambda m: ops.Relu(Output(m.sinks[0], 1)), "has no output 1"),
        (lambda m: Node("Strange", [m.inputs[0], Output(m.sinks[0], 1)], types=[m.inputs[0].type]), "has no output 1"),
    ],
)
def test_a_wrong_edit_is_refused_and_changes_nothing(edit: Callable[[Model], Any], message: str) -> None:
    model = make_model()
    before = model.to_text()
    with pytest.raises(GraphError, match=message):
        edit(model)
    assert model.to_text() == before
    assert_ports_agree(model)


def test_a_sink_that_is_read_is_found() -> None:
    model = make_model()
    ops.Relu(model.sinks[0])
    model.validate()  # nothing holds the Relu
    model.add_result(model.sinks[0])
    with pytest.raises(GraphError, match="has consumers and cannot be a sink"):
        model.validate()


def test_a_model_is_freed_with_its_weights_without_the_garbage_collector() -> None:
    # Until a collection runs, gigabytes of weights would stay.
    data = np.ones((100, 100), np.float32)
    model = make_model()
    model.add_result(ops.MatMul(model.inputs[0], Constant(data)), "product")
    clone = model.clone()
    model.validate()
    model.to_text()
    gone = [weakref.ref(thing) for thing in (model, clone, model.parameters[0], model.sinks[0], data)]
    gc.disable()
    try:
        del model, clone, data
        assert [ref() for ref in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_what_passes_read_of_a_node() -> None:
    x = Parameter(f32, [1, 8], "x")
    relu = ops.Relu(x)
    model = Model([relu], [x])
    assert list(relu.sources) == relu.input_values
    assert list(relu.output_types) == [relu.output(0).type]
    assert (relu.is_attached, relu.is_consumed, relu.is_pinned, relu.has_bodies) == (True, True, False, False)
    assert (x.is_pinned, dict(relu.annotations)) == (True, {})
    relu.rt_info["affinity"] = "CPU"
    assert relu.annotations == {"affinity": "CPU"}
    relu.rt_info = {}
    assert relu.annotations == {}
    with pytest.raises(TypeError):
        relu.annotations["affinity"] = "CPU"  # type: ignore[index]
    model.result(0).input(0).replace_source_output(x)
    assert not relu.is_attached
