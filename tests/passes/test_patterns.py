"""Patterns: what matches, what does not, and what a match tells."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Output, Parameter, Result, boolean, f16, f32, i64
from engine.passes import pattern
from engine.passes.pattern import (
    Matcher,
    any_input,
    any_of,
    attrs_match,
    block,
    consumers_count,
    has_static_dim,
    has_static_rank,
    has_static_shape,
    optional,
    output_index_matches,
    rank_equals,
    shape_matches,
    type_matches,
    value_matches,
    wrap_const,
    wrap_type,
)


def matches(root: Node, value: object) -> bool:
    return Matcher(root, "test").match(value)  # type: ignore[arg-type]


# -- what matches -----------------------------------------------------------------------------------------


def test_a_type_matches_with_any_inputs_unless_they_are_given(x: Parameter) -> None:
    concat = ops.Concat(x, x, x, axis=0)
    assert matches(wrap_type("Concat"), concat)
    assert matches(wrap_type("Concat", [any_input(), any_input(), any_input()]), concat)
    assert not matches(wrap_type("Concat", [any_input(), any_input()]), concat)
    assert matches(wrap_type(["Relu", "Concat"]), concat)
    assert not matches(wrap_type(["Relu", "Add"]), concat)


def test_domains_keep_operators_of_one_name_apart(x: Parameter) -> None:
    custom = Node("Relu", [x], domain="com.example", types=[x.type])
    assert matches(wrap_type("com.example.Relu"), custom)
    assert not matches(wrap_type("Relu"), custom)
    assert matches(wrap_type("ai.onnx.Relu"), ops.Relu(x))


def test_ordinary_operations_are_patterns_of_which_only_the_type_counts(x: Parameter) -> None:
    # The pattern's own types, shapes, values and attributes say nothing.
    shape_of = ops.Shape(Parameter(i64, [1]))
    assert matches(shape_of, ops.Shape(x))
    assert not matches(shape_of, ops.Shape(ops.Relu(x))), "a Parameter of a pattern stands for a Parameter"
    scaled = ops.Mul(any_input(), Constant(0.5))
    assert matches(scaled, ops.Mul(ops.Relu(x), Constant(np.ones((2, 1, 4), np.float32))))
    transposed = ops.Transpose(any_input(), perm=[1, 0])
    assert matches(transposed, ops.Transpose(x, perm=[2, 0, 1]))


def test_the_constant_stands_on_either_side_of_a_commutative_operator(x: Parameter) -> None:
    data, value = any_input(), wrap_const()
    for operands in ((x, Constant(2.0)), (Constant(2.0), x)):
        matcher = Matcher(wrap_type("Mul", [data, value]), "scale")
        assert matcher.match(ops.Mul(*operands))
        assert matcher.pattern_value_map[data].node is x
    assert matches(wrap_type("Sub", [data, value]), ops.Sub(x, Constant(2.0)))
    assert not matches(wrap_type("Sub", [data, value]), ops.Sub(Constant(2.0), x))


def test_operands_that_fit_both_ways_are_bound_as_they_are_written() -> None:
    a, b = Constant(1.0), Constant(2.0)
    left, right = any_input(), wrap_const()
    matcher = Matcher(wrap_type("Mul", [left, right]), "product")
    assert matcher.match(ops.Mul(a, b))
    assert matcher.pattern_value_map[left].node is a
    assert matcher.pattern_value_map[right].node is b


def test_variadic_commutative_inputs_match_in_any_order(x: Parameter) -> None:
    root = wrap_type("Max", [wrap_type("Relu"), wrap_type("Neg"), any_input()])
    assert matches(root, ops.Max(x, ops.Neg(x), ops.Relu(x)))
    assert not matches(root, ops.Max(x, x, ops.Relu(x)))


def test_a_pattern_node_that_is_used_twice_is_one_value(x: Parameter) -> None:
    data = any_input()
    root = wrap_type("Mul", [data, wrap_type("Sigmoid", [data])])
    assert matches(root, ops.Mul(x, ops.Sigmoid(x)))
    assert matches(root, ops.Mul(ops.Sigmoid(x), x))
    assert not matches(root, ops.Mul(ops.Relu(x), ops.Sigmoid(x)))


def test_an_inner_order_is_taken_back_when_an_outer_part_does_not_fit(x: Parameter) -> None:
    y = Parameter(f32, [4], "y")
    a, b = any_input(), any_input()
    root = wrap_type("Sub", [wrap_type("Mul", [a, b]), a])
    assert matches(root, ops.Sub(ops.Mul(x, y), y)), "Mul's first order binds a to x, which Sub contradicts"
    assert matches(root, ops.Sub(ops.Mul(x, y), x))


def test_an_alternative_is_taken_back_when_an_outer_part_does_not_fit(x: Parameter) -> None:
    shared = any_input()
    first = any_of([wrap_type("Relu", [shared]), wrap_type("Relu", [wrap_type("Neg", [shared])])])
    root = wrap_type("Sub", [first, shared])
    assert matches(root, ops.Sub(ops.Relu(ops.Neg(x)), x))


def test_optional_nodes_are_matched_or_skipped(x: Parameter) -> None:
    relu = wrap_type("Relu")
    cast = optional("Cast", [relu])
    matcher = Matcher(wrap_type("Neg", [cast]), "maybe cast")
    direct, through = ops.Neg(ops.Relu(x)), ops.Neg(ops.Cast(ops.Relu(x), to=f16))
    assert matcher.match(direct)
    assert cast not in matcher.pattern_value_map
    assert [n.op_type for n in matcher.matched_nodes] == ["Neg", "Relu"]
    assert matcher.match(through)
    assert matcher.pattern_value_map[cast].node.op_type == "Cast"
    assert not matcher.match(ops.Neg(ops.Cast(ops.Cast(ops.Relu(x), to=f16), to=f32)))


def test_an_optional_node_that_is_used_twice_is_there_for_both_or_for_none(x: Parameter) -> None:
    data = any_input()
    cast = optional("Cast", [data])
    root = wrap_type("Sub", [wrap_type("Relu", [cast]), wrap_type("Neg", [cast])])
    node = ops.Cast(x, to=f32)
    assert matches(root, ops.Sub(ops.Relu(node), ops.Neg(node)))
    assert matches(root, ops.Sub(ops.Relu(x), ops.Neg(x)))
    assert not matches(root, ops.Sub(ops.Relu(node), ops.Neg(x)))
    assert not matches(root, ops.Sub(ops.Relu(x), ops.Neg(node)))


def test_any_of_takes_the_first_alternative_that_matches(x: Parameter) -> None:
    relu, unary = wrap_type("Relu"), wrap_type(["Relu", "Neg"])
    either = any_of([relu, unary])
    matcher = Matcher(either, "either")
    assert matcher.match(ops.Relu(x))
    assert relu in matcher.pattern_value_map
    assert unary not in matcher.pattern_value_map
    assert matcher.match(ops.Neg(x))
    assert unary in matcher.pattern_value_map


def test_single_outputs_of_a_node_are_told_apart(x: Parameter) -> None:
    split = wrap_type("Split")
    root = wrap_type("Sub", [split.output(0), split.output(1)])
    halves, others = ops.Split(x, num_outputs=2, axis=2), ops.Split(x, num_outputs=2, axis=2)
    assert matches(root, ops.Sub(halves.output(0), halves.output(1)))
    assert not matches(root, ops.Sub(halves.output(1), halves.output(0)))
    assert not matches(root, ops.Sub(halves.output(1), halves.output(1)))
    assert not matches(root, ops.Sub(halves.output(0), others.output(1))), "they are outputs of one node"


def test_a_whole_pattern_node_stands_for_one_value_of_any_index(x: Parameter) -> None:
    root = wrap_type("Relu", [wrap_type("Split")])
    halves = ops.Split(x, num_outputs=2, axis=2)
    assert matches(root, ops.Relu(halves.output(1)))
    assert not matches(wrap_type("Relu", [wrap_type("Split", predicate=output_index_matches(0))]),
                       ops.Relu(halves.output(1)))  # fmt: skip


def test_a_root_may_be_one_output_of_a_node(x: Parameter) -> None:
    halves = ops.Split(x, num_outputs=2, axis=2)
    matcher = Matcher(wrap_type("Split").output(1), "second half")
    assert matcher.match(halves.output(1))
    assert matcher.match(halves)
    assert not matcher.match(halves.output(0))


def test_ordinary_operations_with_several_outputs_are_patterns_by_port(x: Parameter) -> None:
    image = Parameter(f32, [1, 3, 8, 8], "image")
    indices = ops.MaxPool(any_input(), kernel_shape=[2, 2], num_outputs=2)
    pool = ops.MaxPool(image, kernel_shape=[2, 2], num_outputs=2)
    assert matches(ops.Cast(indices.output(1), to=f32), ops.Cast(pool.output(1), to=f32))
    assert not matches(ops.Cast(indices.output(1), to=f32), ops.Cast(pool.output(0), to=f32))
    assert not matches(ops.Relu(ops.MaxPool(any_input(), kernel_shape=[2, 2])), ops.Cast(pool.output(1), to=f32))


def test_omitted_inputs_match_omitted_inputs_only(x: Parameter) -> None:
    low, high = Constant(0.0), Constant(6.0)
    only_high = wrap_type("Clip", [any_input(), None, any_input()])
    assert matches(only_high, ops.Clip(x, None, high))
    assert not matches(only_high, ops.Clip(x, low, high))
    assert not matches(wrap_type("Clip", [any_input(), any_input(), any_input()]), ops.Clip(x, None, high))
    assert matches(wrap_type("Clip", [any_input(), any_input(), None]), ops.Clip(x, low))
    assert matches(wrap_type("Clip", [any_input()]), ops.Clip(x))


def test_results_can_be_roots_and_values_can_not(x: Parameter) -> None:
    model = Model([ops.Relu(x)], [x])
    assert matches(wrap_type("Result", [wrap_type("Relu")]), model.results[0])
    assert isinstance(model.results[0], Result)
    assert not matches(any_input(rank_equals(3)), model.results[0]), "a result has no value with a rank"


def test_every_operator_can_be_written_as_an_ordinary_pattern() -> None:
    # Attributes that must be given are not among what this test makes up; all others are.
    unbuilt = []
    for op in ops.all_ops():
        if op.required or op.domain.startswith("ai.onnx.") or op.name in ("Constant", "RegexFullMatch"):
            continue
        count = {"Optional": 1, "Resize": 3}.get(op.name, max(op.min_inputs, 1 if op.is_variadic else 0))
        try:
            inputs = [any_input() for _ in range(count)]
            node = ops.create(op.name, inputs, domain=op.domain, num_outputs={"Split": 2}.get(op.name))
        except Exception as e:
            unbuilt.append(f"{op}: {e}")
            continue
        assert Matcher(node.output(0), "ordinary").root_kinds == {(op.domain, op.name)}
    assert unbuilt == []


def test_parts_that_the_root_does_not_reach_play_no_part(x: Parameter) -> None:
    first = wrap_type("Relu")
    wrap_type("Neg", [first])
    assert matches(first, ops.Relu(x))


# -- what a match tells -----------------------------------------------------------------------------------


def test_a_match_tells_root_nodes_and_values_and_forgets_them(x: Parameter) -> None:
    data, first = any_input(), wrap_type("Relu")
    second = wrap_type("Add", [first, data])
    matcher = Matcher(second, "test")
    relu = ops.Relu(x)
    add = ops.Add(relu, x)
    assert matcher.match(add.output(0))
    assert matcher.match_root is add
    assert matcher.matched_nodes == [add, relu], "root first; what any_input stands for is not matched"
    assert matcher.pattern_value_map == {second: add.output(0), first: relu.output(0), data: x.output(0)}
    matcher.clear_state()
    assert matcher.matched_nodes == []
    assert matcher.pattern_value_map == {}
    with pytest.raises(PassError, match=r"has no match"):
        _ = matcher.match_root


def test_a_failed_match_leaves_nothing_of_the_one_before(x: Parameter) -> None:
    matcher = Matcher(wrap_type("Add", [wrap_type("Relu"), wrap_type("Neg")]), "test")
    assert matcher.match(ops.Add(ops.Relu(x), ops.Neg(x)))
    assert not matcher.match(ops.Add(ops.Relu(x), ops.Relu(x)))
    assert matcher.matched_nodes == []
    assert matcher.pattern_value_map == {}


def test_a_predicate_that_raises_leaves_nothing_to_the_next_match(x: Parameter) -> None:
    def check(value: Output) -> bool:
        if value.node.op_type == "Abs":
            raise ValueError(value)
        return True

    inner = any_input(predicate=check)
    matcher = Matcher(wrap_type("Relu", [inner]), "test")
    with pytest.raises(ValueError, match="Abs"):
        matcher.match(ops.Relu(ops.Abs(x)))
    assert matcher.match(ops.Relu(x))
    assert matcher.pattern_value_map[inner] == x.output(0)


def test_the_values_of_a_match_stay_as_they_are_where_they_are_kept(x: Parameter) -> None:
    root = wrap_type("Relu")
    matcher = Matcher(root, "test")
    first = ops.Relu(x)
    assert matcher.match(first)
    kept = matcher.pattern_value_map
    matcher.clear_state()
    assert matcher.match(ops.Relu(first))
    assert kept == {root: first.output(0)}


def test_blocks_name_their_parts(x: Parameter) -> None:
    data = any_input()
    sigmoid = wrap_type("Sigmoid", [data])
    swish = block(wrap_type("Mul", [data, sigmoid]), "swish", data=data, gate=sigmoid)
    matcher = Matcher(wrap_type("Relu", [swish]), "test")
    gate = ops.Sigmoid(x)
    assert matcher.match(ops.Relu(ops.Mul(gate, x)))
    assert matcher.block("swish") == {"data": x.output(0), "gate": gate.output(0)}
    with pytest.raises(PassError, match=r"no block 'gelu'"):
        matcher.block("gelu")


# -- predicates -------------------------------------------------------------------------------------------


def test_predicates_look_at_consumers_types_and_shapes(x: Parameter) -> None:
    relu = ops.Relu(x)
    readers = [ops.Neg(relu), ops.Abs(relu)]
    assert consumers_count(2)(relu.output(0))
    assert not consumers_count(1)(relu.output(0))
    assert has_static_rank()(relu.output(0))
    assert not has_static_shape()(relu.output(0))
    assert has_static_dim(0)(relu.output(0))
    assert not has_static_dim(1)(relu.output(0))
    assert not has_static_dim(7)(relu.output(0)), "a dimension that does not exist is not known"
    assert rank_equals(3)(relu.output(0))
    assert type_matches(f16, f32)(relu.output(0))
    assert type_matches("f32")(relu.output(0))
    assert not type_matches(i64)(relu.output(0))
    unknown = Parameter(f32, None, "unknown")
    assert not any(p(unknown.output(0)) for p in (has_static_rank(), has_static_shape(), has_static_dim(0)))
    assert not rank_equals(0)(unknown.output(0))
    assert len(readers) == 2


def test_attributes_match_with_their_defaults(x: Parameter) -> None:
    softmax = ops.Softmax(x).output(0)
    assert attrs_match(axis=-1)(softmax), "the operator's default counts"
    assert not attrs_match(axis=1)(softmax)
    assert attrs_match(axis=lambda axis: axis < 0)(softmax)
    assert attrs_match(perm=[2, 1, 0])(ops.Transpose(x, perm=[2, 1, 0]).output(0))
    assert attrs_match(to=f16)(ops.Cast(x, to=f16).output(0))


@pytest.mark.parametrize(
    ("form", "shape", "fits"),
    [
        ("[?, N, 4]", [2, 3, 4], True),
        ("[?, N, 4]", [2, 3, 5], False),
        ("[?, N, 4]", [2, None, 4], False),
        ("[?, N, 4]", [None, "S", 4], True),
        ("[N, N]", [3, 3], True),
        ("[N, N]", [3, 4], False),
        ("[N, N]", ["S", "S"], True),
        ("[N, N]", ["S", "T"], False),
        ("[N, N]", ["S", 3], False),
        ("[B, ...]", [2, 3, 4], True),
        ("[B, ..., B]", [2, 3, 2], True),
        ("[B, ..., B]", [2, 3, 4], False),
        ("[?, ?, ...]", [2], False),
        ("[...]", [], True),
        ("[]", [], True),
        ("[]", [1], False),
    ],
)  # fmt: skip
def test_shapes_match_by_form(form: str, shape: list[object], fits: bool) -> None:
    assert shape_matches(form)(Parameter(f32, shape).output(0)) is fits  # type: ignore[arg-type]


def test_symbols_of_shapes_are_shared_across_the_pattern() -> None:
    a, b = Parameter(f32, [8, 16]), Parameter(f32, [16, 4])
    left, right = any_input(shape_matches("[M, K]")), any_input(shape_matches("[K, N]"))
    matcher = Matcher(wrap_type("MatMul", [left, right]), "product")
    assert matcher.match(ops.MatMul(a, b))
    assert matcher.symbols == {"M": 8, "K": 16, "N": 4}
    square = Matcher(wrap_type("MatMul", [left, any_input(shape_matches("[K, M]"))]), "there and back")
    assert not square.match(ops.MatMul(a, b))
    assert square.match(ops.MatMul(a, Parameter(f32, [16, 8])))


def test_symbols_that_a_failed_order_bound_do_not_stay() -> None:
    a, b = Parameter(f32, [1, 5], "a"), Parameter(f32, [5, 1], "b")
    row, column = any_input(shape_matches("[1, N]")), any_input(shape_matches("[N, 1]"))
    matcher = Matcher(wrap_type("Add", [row, column]), "outer sum")
    assert matcher.match(ops.Add(b, a))
    assert matcher.symbols == {"N": 5}
    either = shape_matches("[N, N, N]") | shape_matches("[M, N]")
    assert Matcher(any_input(either), "either").match(a)


def test_values_match_whole_constants_in_their_type() -> None:
    def holds(value: object, constant: object) -> bool:
        return value_matches(value)(Constant(constant).output(0))  # type: ignore[arg-type]

    assert holds(0.5, np.full((2, 2), 0.5, np.float32))
    assert holds(np.sqrt(2), np.float16(np.sqrt(2)).astype(np.float16).astype(np.float32)) is False
    assert value_matches(np.sqrt(2), rtol=1e-3)(Constant(np.float16(np.sqrt(2))).output(0))
    assert not holds(0.5, np.array([0.5, 0.6], np.float32))
    assert holds([1.0, 2.0], np.array([1, 2], np.float32))
    assert not holds([1.0, 2.0], np.array([[1, 2]], np.float32)), "an array of another shape"
    assert holds(3, np.array(3))
    assert not holds(2.5, np.array(2))
    assert holds("a", "a")
    assert holds(lambda data: data.ndim == 0, 1.0)
    assert not holds(0.0, np.zeros((0,), np.float32)), "nothing is not zero"
    assert not value_matches(1.0)(Parameter(f32, []).output(0))


def test_wrap_const_takes_value_and_predicate() -> None:
    assert matches(wrap_const(2.0, rank_equals(0)), Constant(2.0))
    assert not matches(wrap_const(2.0, rank_equals(1)), Constant(2.0))
    assert not matches(wrap_const(3.0), Constant(2.0))


def test_predicates_combine(x: Parameter) -> None:
    value = ops.Relu(x).output(0)
    assert (rank_equals(3) & type_matches(f32))(value)
    assert not (rank_equals(2) & type_matches(f32))(value)
    assert (rank_equals(2) | type_matches(f32))(value)
    assert not (rank_equals(2) | type_matches(f16))(value)
    assert (~rank_equals(2))(value)
    assert (rank_equals(3) & ~has_static_shape())(value)
    assert (rank_equals(3) & (lambda v: v.node.op_type == "Relu"))(value)


# -- refused at construction ------------------------------------------------------------------------------


def test_wrong_patterns_are_refused_when_they_are_built(x: Parameter) -> None:
    with pytest.raises(PassError, match=r"unknown operator.*Rleu.*did you mean Relu"):
        wrap_type("Rleu")
    with pytest.raises(PassError, match=r"unknown operator"):
        optional("Casts", [any_input()])
    with pytest.raises(PassError, match=r"at least one operator type"):
        wrap_type([])
    with pytest.raises(PassError, match=r"needs an operator type and a first input"):
        optional("Cast", [])
    with pytest.raises(PassError, match=r"at least one alternative"):
        any_of([])
    with pytest.raises(PassError, match=r"has attribute 'epsilonn'; known: .*epsilon"):
        wrap_type("BatchNormalization", predicate=attrs_match(epsilonn=1e-5))
    with pytest.raises(PassError, match=r"not of the form \[d0"):
        shape_matches("N, 4")
    with pytest.raises(PassError, match=r"element type 'f31' is unknown"):
        type_matches("f31")
    with pytest.raises(PassError, match=r"a predicate is a function"):
        any_input(3)  # type: ignore[arg-type]
    with pytest.raises(PassError, match=r"an operator type is a name"):
        wrap_type([ops.Relu])  # type: ignore[list-item]
    with pytest.raises(PassError, match=r"a pattern of Relu, Sigmoid has 2 inputs, the operator takes at most 1"):
        wrap_type(["Relu", "Sigmoid"], [any_input(), any_input()])
    for forgotten in (any_input(), x.output(0), "Relu"):
        with pytest.raises(PassError, match=r"WrapType takes a list of patterns, got .*write \["):
            wrap_type("Relu", forgotten)  # type: ignore[arg-type]


def test_what_bodies_capture_is_no_input(x: Parameter) -> None:
    condition = Parameter(boolean, [], "condition")
    captures = [Parameter(x.type.element_type, x.type.shape) for _ in range(2)]
    bodies = [Model([ops.Relu(c)], captures=[c]) for c in captures]
    branch = ops.create("If", [condition, x, x], {"then_branch": bodies[0], "else_branch": bodies[1]})
    assert matches(wrap_type("If", [any_input()]), branch)
    assert matches(wrap_type("If", [any_input() for _ in range(3)]), branch)
    assert not matches(wrap_type("If", [wrap_type("Not")]), branch)


def test_several_outputs_are_no_root_and_no_input(x: Parameter) -> None:
    split = ops.Split(any_input(), num_outputs=2)
    with pytest.raises(PassError, match=r"has 2 outputs.*output\(0\).*output\(1\)"):
        Matcher(split, "halves")
    with pytest.raises(Exception, match=r"has 2 outputs.*output\(0\).*output\(1\)"):
        wrap_type("Relu", [split])
    assert matches(wrap_type("Relu", [split.output(1)]), ops.Relu(ops.Split(x, num_outputs=2).output(1)))


def test_pattern_module_exports_what_the_issue_names() -> None:
    for name in ("wrap_type", "any_input", "wrap_const", "optional", "any_of", "block", "Matcher"):
        assert callable(getattr(pattern, name))
