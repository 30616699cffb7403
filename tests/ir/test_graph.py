"""The graph keeps itself: who consumes what, what leaves, what is found wrong."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import GraphError, ModelError, TypeInferenceError
from engine.ir import (
    Constant,
    Model,
    Node,
    Parameter,
    PartialShape,
    SequenceType,
    TensorType,
    boolean,
    f32,
    i64,
    model_identity,
)


def chain(length: int) -> tuple[Parameter, list[Node]]:
    x = Parameter(f32, [1, 4], "x")
    nodes: list[Node] = []
    for _ in range(length):
        nodes.append(ops.create("Relu", [nodes[-1] if nodes else x]))
    return x, nodes


def test_ports_are_values_that_compare_by_node_and_index() -> None:
    x, (a, b) = chain(2)
    assert a.input_value(0) == x.output(0)
    assert hash(a.output(0)) == hash(b.input_value(0))
    assert [t.node for t in a.output(0).target_inputs] == [b]
    assert a.input(0).source_output.node is x
    assert a.output(0).shape == [1, 4]
    assert a.output(0).element_type is f32


def test_a_node_without_consumers_leaves_and_comes_back_when_used_again() -> None:
    x, (a, b) = chain(2)
    model = Model([b], [x])
    replacement = ops.create("Neg", [x])
    b.output(0).replace(replacement)
    assert [t.node for t in x.output(0).target_inputs] == [replacement], (
        "the chain that lost its reader stopped reading"
    )
    assert [n.op_type for n in model.ordered_nodes()] == ["Parameter", "Neg", "Result"]
    replacement.output(0).replace(ops.create("Abs", [b]))
    assert [n.op_type for n in model.ordered_nodes()] == ["Parameter", "Relu", "Relu", "Abs", "Result"]
    assert [t.node for t in x.output(0).target_inputs] == [a]


def test_a_node_that_was_made_and_not_used_is_no_consumer() -> None:
    _, (a,) = chain(1)
    ops.create("Neg", [a])
    assert a.output(0).target_inputs == []
    kept = ops.create("Neg", [a])
    assert [t.node for t in a.output(0).target_inputs] == [kept]


def test_sinks_and_results_stay_and_sinks_are_no_results() -> None:
    x, (a, b) = chain(2)
    sink = ops.create("Neg", [a])
    model = Model([b], [x], [sink])
    assert sink in model.ordered_nodes()
    assert [r.input_value(0).node for r in model.results] == [b]
    model.remove_sink(sink)
    assert [t.node for t in a.output(0).target_inputs] == [b]
    with pytest.raises(GraphError, match="has consumers"):
        model.add_sink(a)


def test_replacing_a_value_by_its_own_consumer_is_refused_before_anything_changes() -> None:
    x, (a, b) = chain(2)
    model = Model([b], [x])
    before = model.to_text()
    with pytest.raises(GraphError, match="cycle"):
        a.output(0).replace(b)
    assert model.to_text() == before


def test_a_reader_that_the_collector_freed_is_not_moved() -> None:
    x, y = Parameter(f32, [2], "x"), Parameter(f32, [2], "y")
    reader, kept = ops.Relu(x), ops.Relu(x)
    reader.rt_info["itself"] = reader  # only the collector of cycles frees it, and it clears weak references first
    del reader
    gc.collect()
    x.output(0).replace(y)
    assert y.output(0).target_inputs == [kept.input(0)]
    assert y.output(0).num_consumers == 1


def test_inserting_a_node_after_another() -> None:
    x, (a, b) = chain(2)
    model = Model([b], [x])
    consumers = a.output(0).target_inputs
    inserted = ops.create("Neg", [a])
    for target in consumers:
        target.replace_source_output(inserted)
    assert [n.op_type for n in model.ordered_nodes()] == ["Parameter", "Relu", "Neg", "Relu", "Result"]


def test_a_cycle_is_an_error_that_names_its_nodes() -> None:
    x, (a, b, c) = chain(3)
    for node, name in zip((a, b, c), "abc", strict=True):
        node.friendly_name = name
    model = Model([c], [x])
    a.input(0).replace_source_output(b)
    with pytest.raises(GraphError, match=r"cycle: Relu `[ab]` <- Relu `[ab]` <- Relu `[ab]`"):
        model.ordered_nodes()


def test_a_multi_output_node_does_not_stand_for_one_value() -> None:
    x = Parameter(f32, [4, 2], "x")
    split = ops.create("Split", [x], {"num_outputs": 2, "axis": 0}, num_outputs=2)
    with pytest.raises(GraphError, match=r"2 outputs.*output\(0\): f32\[2,2\], output\(1\): f32\[2,2\]"):
        ops.create("Relu", [split])


@pytest.mark.parametrize("call", ["input", "output", "input_value"])
def test_ports_that_do_not_exist_are_named(call: str) -> None:
    _, (a,) = chain(1)
    with pytest.raises(GraphError, match=r"Relu `.*` has no (input|output) 3; it has 1"):
        getattr(a, call)(3)


def test_validate_propagates_new_types_and_names_the_node_that_cannot_take_them() -> None:
    x = Parameter(f32, [1, 4], "x")
    relu = ops.create("Relu", [x])
    add = ops.create("Add", [relu, Constant(np.zeros((4,), np.float32))], friendly_name="sum")
    model = Model([add], [x])
    x.type = TensorType(f32, Parameter(f32, [7, 4]).output(0).shape)
    assert model.validate()
    assert model.result(0).input_value(0).shape == [7, 4]
    assert not model.validate()
    x.type = Parameter(f32, [7, 5]).type
    with pytest.raises(TypeInferenceError, match="sum"):
        model.validate()


@pytest.mark.parametrize("reads_mask", [False, True], ids=["one input", "two inputs"])
def test_what_was_stated_is_kept_while_inputs_are_known_better_and_goes_where_they_change(reads_mask: bool) -> None:
    x, mask = Parameter(f32, ["N", 4], "x"), Parameter(boolean, [6], "mask")
    chosen = ops.Compress(x, mask, axis=0) if reads_mask else ops.Unique(x, axis=0)
    model = Model([chosen.output(0)], [x, mask])
    chosen.set_output_type(0, TensorType(f32, PartialShape([3, 4])))
    x.type = Parameter(f32, [6, 4]).type
    model.validate()
    assert model.results[0].type == TensorType(f32, PartialShape([3, 4]))
    x.type = Parameter(f32, [8, 4]).type
    model.validate()
    assert model.results[0].type == Parameter(f32, [None, 4]).type


def test_a_value_of_a_foreign_parameter_is_found() -> None:
    _, (a,) = chain(1)
    with pytest.raises(GraphError, match="not one of its parameters"):
        Model([a], []).validate()


def test_duplicate_output_names_are_refused() -> None:
    x, (a, b) = chain(2)
    model = Model([a], [x])
    with pytest.raises(GraphError, match="already"):
        model.add_result(b, model.results[0].friendly_name)


def test_clone_is_deep_and_shares_constant_data() -> None:
    x = Parameter(f32, [2, 2], "x")
    weights = Constant(np.eye(2, dtype=np.float32), friendly_name="w")
    product = ops.create("MatMul", [x, weights], friendly_name="product")
    product.rt_info["affinity"] = "CPU"
    model = Model([product], [x], name="m")
    copy = model.clone()
    assert copy.to_text() == model.to_text()
    copied = copy.node("product")
    assert copied is not product
    assert copied.rt_info == {"affinity": "CPU"}
    constant = copied.input_value(1).node
    assert isinstance(constant, Constant)
    assert constant.data is weights.data
    copied.output(0).replace(ops.create("Relu", [copied.input_value(0)]))
    assert "MatMul" in model.to_text()


def test_a_clone_infers_what_its_original_has_not_yet() -> None:
    """A constant that takes the place of a value of the same type decides more lengths, also in a clone."""
    x, lengths = Parameter(f32, [4, 1], "x"), Parameter(i64, [2], "lengths")
    shaped = ops.Reshape(x, lengths, friendly_name="shaped")
    model = Model([shaped], [x, lengths])
    lengths.output(0).replace(Constant([2, -1]).output(0))
    copy = model.clone()
    assert copy.validate()
    assert str(copy.node("shaped").output(0).type) == "f32[2,2]"


def test_values_that_are_no_tensors_say_so() -> None:
    s = Parameter(SequenceType(TensorType(f32, Parameter(f32, [2]).output(0).shape)), friendly_name="s")
    assert str(s.type) == "seq(f32[2])"
    with pytest.raises(ModelError, match="not a tensor"):
        _ = s.output(0).shape


def test_constants_take_python_values() -> None:
    assert Constant(1.5).element_type is f32
    assert Constant([1, 2]).element_type is i64
    assert Constant("text").data.item() == "text"
    assert Constant([1, 2], f32).data.dtype == np.float32


def test_lazy_constants_load_once_and_again_after_release() -> None:
    loads: list[int] = []

    def load() -> np.ndarray:
        loads.append(1)
        return np.ones((2,), np.float32)

    constant = Constant.lazy(TensorType(f32, Parameter(f32, [2]).output(0).shape), load)
    assert not constant.is_loaded
    assert constant.data is constant.data
    constant.release()
    assert constant.data.sum() == 2
    assert len(loads) == 2


def test_derived_constants_are_computed_when_they_are_read() -> None:
    calls: list[int] = []

    def load() -> np.ndarray:
        calls.append(1)
        return np.full((2,), 3, np.float32)

    value_type = TensorType(f32, Parameter(f32, [2]).output(0).shape)
    source, other = Constant.lazy(value_type, load), Constant(np.array([1, 2], np.float32))
    product = Constant.derived([source, other], value_type, np.multiply)
    twice = Constant.derived([product], value_type, lambda data: data + data)
    assert not calls
    assert twice.data.tolist() == [6, 12]
    assert not source.is_loaded
    assert not product.is_loaded, "what lies between is let go of"
    twice.release()
    assert twice.data.tolist() == [6, 12]
    assert len(calls) == 2


def test_the_identity_of_a_model_leaves_its_constants_as_they_were() -> None:
    """Or all weights of a model in 4 bits would be in memory at once, each in a byte."""
    read = Constant(np.ones(1000, np.float32))
    constants = [Constant.derived([read], read.output(0).type, lambda data: data + 1) for _ in range(2)]
    assert constants[0].data.sum() == 2000
    model = Model([ops.Add(*constants)], [])
    assert model_identity(model) == model_identity(model)
    assert [each.is_loaded for each in constants] == [True, False]


def test_the_identity_of_a_model_samples_what_constants_are_derived_from() -> None:
    """Unpacking all weights of a language model would take longer than anything else in a compilation."""

    def identity(value: float, length: int = 8) -> str:
        def computed(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            raise AssertionError("computed")

        base = Constant(np.full((length, 3), value, np.float32))
        made = Constant.derived([base], TensorType(f32, PartialShape([24])), computed)
        result = ops.Relu(made)
        made.friendly_name, result.friendly_name = "made", "y"
        return model_identity(Model([result], []))

    assert len({identity(1), identity(2), identity(1, length=9)}) == 3
    assert identity(1) == identity(1)


def test_derived_constants_keep_no_graph_alive() -> None:
    source = Constant(np.ones(2, np.float32))
    reader = weakref.ref(ops.Relu(source))
    derived = Constant.derived([source], source.output(0).type, np.negative)  # type: ignore[arg-type]
    del source
    gc.collect()
    assert reader() is None
    assert derived.data.tolist() == [-1, -1]


def test_a_deep_chain_is_ordered_cloned_and_freed_without_recursion() -> None:
    x, nodes = chain(50_000)
    model = Model([nodes[-1]], [x])
    nodes.clear()
    assert len(model.clone().ordered_nodes()) == 50_002
    del model
    gc.collect()
    assert x.output(0).target_inputs == []


def test_text_form_is_stable_and_readable() -> None:
    x = Parameter(f32, [1, "N"], "x")
    y = ops.create("Concat", [x, x], {"axis": 1}, friendly_name="twice")
    assert Model([y], [x], name="m").to_text().splitlines() == [
        'model "m" {',
        "  %0: f32[1,N] = Parameter()  # x",
        "  %1: f32[1,?] = Concat(%0, %0) {axis=1}  # twice",
        '  result "twice" = %1',
        "}",
    ]


def test_a_node_of_many_inputs_is_made_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # A list of all inputs for each input took 11 s for a Concat of 100,000.
    x = Parameter(f32, [2], "x")
    lists = 0
    input_values: Any = Node.input_values.fget

    def counted(node: Node) -> Any:
        nonlocal lists
        lists += 1
        return input_values(node)

    monkeypatch.setattr(Node, "input_values", property(counted))
    joined = ops.Concat(*[x] * 500, axis=0)
    assert joined.output(0).shape == (1000,)
    assert lists < 10


def test_has_nodes_of_follows_changes_of_the_graph() -> None:
    x = Parameter(f32, [2], "x")
    node = ops.Relu(x)
    model = Model([node], [x])
    assert model.has_nodes_of({("", "Relu"), ("", "Abs")})
    assert not model.has_nodes_of({("", "Abs")})
    assert model.node_count == len(model.ordered_nodes()) == 3
    node.output(0).replace(ops.Abs(ops.Neg(x)).output(0))
    assert model.has_nodes_of({("", "Abs")})
    assert not model.has_nodes_of({("", "Relu")})
    assert model.node_count == 4
