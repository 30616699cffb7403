"""Replacing, inserting and eliminating nodes: edges, names and annotations end up where users look for them."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.errors import GraphError
from engine.ir import Constant, Model, Node, Output, Parameter, f32
from engine.passes import insert_after, replace_node, replace_output_update_name


def kinds(model: Model) -> list[str]:
    return [node.op_type for node in model.ordered_nodes() if node.op_type not in ("Parameter", "Result")]


def test_a_replaced_node_leaves_with_what_only_it_read(x: Parameter) -> None:
    inner = ops.Neg(x)
    old = ops.Relu(inner)
    model = Model([ops.Abs(old)], [x])
    replace_node(old, ops.Sigmoid(x))
    assert kinds(model) == ["Sigmoid", "Abs"]
    assert [t.node.op_type for t in x.output(0).target_inputs] == ["Sigmoid"]


def test_replacing_by_ports_is_the_same(x: Parameter) -> None:
    old = ops.Neg(x)
    model = Model([ops.Relu(old)], [x])
    old.output(0).replace(ops.Mul(x, Constant(-1.0)).output(0))
    assert kinds(model) == ["Constant", "Mul", "Relu"]


def test_several_outputs_are_replaced_one_by_one(x: Parameter) -> None:
    old = ops.Split(x, axis=2, num_outputs=2)
    a, b = ops.Relu(old.output(0)), ops.Neg(old.output(1))
    model = Model([a, b], [x])
    first, second = ops.Abs(x), ops.Sigmoid(x)
    replace_node(old, [first, second.output(0)])
    assert a.input_value(0).node is first
    assert b.input_value(0).node is second
    assert "Split" not in kinds(model)
    new = ops.Split(x, axis=2, num_outputs=2)
    again = ops.Split(x, axis=2, num_outputs=2)
    model = Model([ops.Relu(new.output(0)), ops.Neg(new.output(1))], [x])
    replace_node(new, again)
    assert {n for n in model.ordered_nodes() if n.op_type == "Split"} == {again}


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_outputs_is_refused_before_anything_changes(x: Parameter, count: int) -> None:
    old = ops.Split(x, axis=2, num_outputs=2)
    model = Model(old.outputs, [x])
    before = model.to_text()
    with pytest.raises(GraphError, match=rf"Split .* with 2 outputs by .* with {count}; give one value for each"):
        replace_node(old, ops.Split(x, axis=2, num_outputs=count))
    with pytest.raises(GraphError, match=r"with 2 outputs by values with 1"):
        replace_node(old, [ops.Relu(x)])
    assert model.to_text() == before


def test_a_replacement_that_reads_the_replaced_node_is_refused(x: Parameter) -> None:
    old = ops.Split(x, axis=2, num_outputs=2)
    model = Model(old.outputs, [x])
    before = model.to_text()
    with pytest.raises(GraphError, match=r"would have a cycle; to insert a node, call insert_after"):
        replace_node(old, [ops.Relu(old.output(0)), old.output(1)])
    with pytest.raises(GraphError, match=r"another output of the same node"):
        replace_node(old, [old.output(1), old.output(0)])
    relu = ops.Relu(x)
    with pytest.raises(GraphError, match=r"would have a cycle"):
        replace_node(relu, ops.Neg(relu))
    assert model.to_text() == before


def test_what_a_model_holds_is_not_replaced_silently(x: Parameter) -> None:
    model = Model([ops.Relu(x)], [x], [sink := ops.Neg(x)])
    with pytest.raises(GraphError, match=r"a sink of the model; use model.add_result"):
        replace_node(model.results[0], ops.Relu(x))
    with pytest.raises(GraphError, match=r"a sink of the model"):
        replace_node(sink, ops.Relu(x))
    replace_node(x, Parameter(f32, [2, 3, 4], "y"))
    assert model.results[0].input_value(0).node.input_value(0).node.friendly_name == "y"


# -- inserting --------------------------------------------------------------------------------------------


def test_a_node_is_inserted_between_a_value_and_its_readers(x: Parameter) -> None:
    relu = ops.Relu(x, friendly_name="relu")
    model = Model([ops.Neg(relu), ops.Abs(relu), relu], [x])
    insert_after(relu.output(0), ops.Sigmoid(relu))
    assert [r.input_value(0).node.op_type for r in model.results] == ["Neg", "Abs", "Sigmoid"]
    assert [t.node.op_type for t in relu.output(0).target_inputs] == ["Sigmoid"]
    assert [r.friendly_name for r in model.results][2] == "relu", "the network output keeps its name"


def test_a_subgraph_is_inserted_whole(x: Parameter) -> None:
    relu = ops.Relu(x)
    model = Model([ops.Neg(relu)], [x])
    insert_after(relu.output(0), ops.Add(ops.Abs(ops.Sigmoid(relu)), relu))
    assert kinds(model) == ["Relu", "Sigmoid", "Abs", "Add", "Neg"]


def test_inserting_by_a_copy_of_the_node(x: Parameter) -> None:
    relu = ops.Relu(x, friendly_name="relu")
    relu.rt_info["affinity"] = "CPU"
    model = Model([relu], [x])
    copy = relu.clone_with_new_inputs(relu.input_values)
    replace_node(relu, ops.Neg(copy))
    assert kinds(model) == ["Relu", "Neg"]
    assert (copy.friendly_name, copy.rt_info) == ("relu", {"affinity": "CPU"})


def test_what_does_not_read_the_value_cannot_be_inserted_after_it(x: Parameter) -> None:
    relu = ops.Relu(x)
    model = Model([ops.Neg(relu)], [x])
    before = model.to_text()
    with pytest.raises(GraphError, match=r"does not read this output"):
        insert_after(relu.output(0), ops.Abs(x))
    with pytest.raises(GraphError, match=r"has 2 outputs"):
        insert_after(relu.output(0), ops.Split(relu, axis=2, num_outputs=2))
    assert model.to_text() == before


# -- eliminating ------------------------------------------------------------------------------------------


def chain(*names: str) -> tuple[Model, dict[str, Node]]:
    """x -> Relu -> Identity -> ... as named, the last one being the network output."""
    x = Parameter(f32, [4], "x")
    nodes: dict[str, Node] = {"x": x}
    value: Node = x
    for name in names:
        value = ops.create("Relu" if name == "relu" else "Identity", [value], friendly_name=name)
        nodes[name] = value
    return Model([value], [x]), nodes


def eliminate(node: Node) -> bool:
    return replace_output_update_name(node.output(0), node.input_value(0))


def test_a_node_in_the_middle_is_eliminated_and_its_neighbours_keep_their_names() -> None:
    model, nodes = chain("relu", "middle", "last")
    nodes["relu"].rt_info["affinity"] = "CPU"
    nodes["middle"].rt_info.update(affinity="GPU", fused_names=("middle",))
    assert eliminate(nodes["middle"])
    assert [n.friendly_name for n in model.ordered_nodes()] == ["x", "relu", "last", "last"]
    assert nodes["relu"].rt_info == {"affinity": "CPU", "fused_names": ("middle",)}, "who stays keeps its placement"


def test_the_name_of_a_network_output_moves_to_who_computes_it_now() -> None:
    model, nodes = chain("relu", "out")
    nodes["out"].rt_info["note"] = 1
    assert eliminate(nodes["out"])
    assert nodes["relu"].friendly_name == "out"
    assert nodes["relu"].rt_info == {"note": 1}
    assert model.results[0].friendly_name == "out"
    assert model.results[0].input_value(0).node is nodes["relu"]


def test_a_name_that_nobody_gave_is_not_moved() -> None:
    x = Parameter(f32, [4], "x")
    relu = ops.Relu(x, friendly_name="relu")
    identity = ops.Identity(relu)
    model = Model([identity], [x])
    assert eliminate(identity)
    assert relu.friendly_name == "relu"
    assert model.results[0].input_value(0).node is relu


def test_between_a_network_input_and_a_network_output_nothing_is_eliminated() -> None:
    model, nodes = chain("only")
    before = model.to_text()
    assert not eliminate(nodes["only"])
    assert model.to_text() == before


def test_two_network_outputs_keep_two_names() -> None:
    x = Parameter(f32, [4], "x")
    relu = ops.Relu(x, friendly_name="relu")
    identity = ops.Identity(relu, friendly_name="copy")
    model = Model([relu, identity], [x])
    before = model.to_text()
    assert not eliminate(identity)
    assert model.to_text() == before


def test_a_network_output_may_not_become_one_of_several_outputs(x: Parameter) -> None:
    split = ops.Split(x, axis=2, num_outputs=2)
    identity = ops.Identity(split.output(1), friendly_name="half")
    constant = ops.Identity(Constant(np.zeros(2, np.float32)), friendly_name="zeros")
    model = Model([identity, constant], [x])
    assert not eliminate(identity)
    assert not eliminate(constant)
    assert kinds(model).count("Identity") == 2


def test_an_elimination_that_would_make_a_cycle_changes_nothing(x: Parameter) -> None:
    relu = ops.Relu(x, friendly_name="relu")
    neg = ops.Neg(relu, friendly_name="neg")
    model = Model([relu, ops.Abs(neg)], [x])
    before = model.to_text()
    with pytest.raises(GraphError, match=r"cycle"):
        replace_output_update_name(relu.output(0), neg.output(0))
    assert model.to_text() == before


def test_ports_tell_types_producers_and_consumers() -> None:
    data, weights = Parameter(f32, [1, 3, 8, 8], "data"), Constant(np.zeros((4, 3, 3, 3), np.float32))
    conv = ops.Conv(data, weights)
    relu = ops.Relu(conv)
    assert conv.input(0).shape == [1, 3, 8, 8]
    assert conv.input(1).element_type is f32
    assert conv.input(0).source_output == conv.input_value(0) == Output(data, 0)
    assert [(t.node, t.index) for t in conv.output(0).target_inputs] == [(relu, 0)]
    relu.input(0).replace_source_output(data)
    assert conv.output(0).target_inputs == []
