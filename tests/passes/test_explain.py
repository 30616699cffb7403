"""Why a pattern does not match: the deepest attempt and the first thing that failed there, in words."""

from __future__ import annotations

import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, f32
from engine.passes import ConstantFolding, GraphRewrite, Manager, MatcherPass, explain_pass, pattern, replace_node
from engine.passes.pattern import (
    Matcher,
    any_input,
    any_of,
    attrs_match,
    consumers_count,
    has_static_shape,
    optional,
    rank_equals,
    shape_matches,
    type_matches,
    value_matches,
    wrap_const,
    wrap_type,
)


@pytest.fixture
def x() -> Parameter:
    return Parameter(f32, [2, "N", 4], "x")


def why(root: Node, at: Node) -> str:
    explanation = Matcher(root, "Fusion").explain(at)
    assert not explanation.matched
    return str(explanation)


def test_a_type_at_the_root(x: Parameter) -> None:
    assert why(wrap_type("Relu"), ops.Neg(x, friendly_name="neg")) == (
        "Fusion does not match at Neg `neg`: wrap_type(Relu): expected Relu, found Neg `neg`"
    )


def test_a_type_behind_an_edge(x: Parameter) -> None:
    conv, relu = ops.Neg(x, friendly_name="conv"), None
    relu = ops.Relu(conv, friendly_name="relu")
    assert why(wrap_type("Relu", [wrap_type(["Relu", "Clip"])]), relu) == (
        "Fusion does not match at Relu `relu`: matched Relu `relu`, then at input 0 of Relu `relu`, "
        "wrap_type(Clip or Relu): expected Clip or Relu, found Neg `conv`"
    )


def test_a_predicate_with_what_the_value_is_instead(x: Parameter) -> None:
    first = ops.Relu(x, friendly_name="first")
    second, other = ops.Relu(first, friendly_name="second"), ops.Neg(first, friendly_name="other")
    pattern_node = wrap_type("Relu", predicate=consumers_count(1))
    pattern_node.friendly_name = "first relu"
    assert why(wrap_type("Relu", [pattern_node]), second) == (
        "Fusion does not match at Relu `second`: matched Relu `second`, then at input 0 of Relu `second`, "
        "first relu: Relu `first`: consumers_count(1) does not hold: it has 2 (Relu `second`, Neg `other`)"
    )
    assert other.num_inputs == 1


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (has_static_shape(), "has_static_shape() does not hold: its type is f32[2,N,4]"),
        (rank_equals(4), "rank_equals(4) does not hold: its type is f32[2,N,4]"),
        (type_matches("f16"), "type_matches(f16) does not hold: its type is f32[2,N,4]"),
        (attrs_match(axis=1), "attrs_match(axis=1) does not hold: axis is -1"),
        (rank_equals(3) & has_static_shape(), "has_static_shape() does not hold: its type is f32[2,N,4]"),
        (
            rank_equals(4) | attrs_match(axis=1),
            "rank_equals(4) does not hold: its type is f32[2,N,4], and attrs_match(axis=1) does not hold: axis is -1",
        ),
        (~rank_equals(3), "~rank_equals(3) does not hold: its type is f32[2,N,4]"),
        (value_matches(1.0), "value_matches(1.0) does not hold: it comes from Softmax `softmax`"),
        (pattern.Predicate(lambda v, s: False, "is_last"), "is_last does not hold"),
    ],
)
def test_every_predicate_says_what_it_found(x: Parameter, predicate: pattern.Predicate, text: str) -> None:
    softmax = ops.Softmax(x, friendly_name="softmax")
    assert why(wrap_type("Softmax", predicate=predicate), softmax).endswith(f"Softmax `softmax`: {text}")


def test_functions_are_told_by_name_and_place(x: Parameter) -> None:
    def is_last(value: object) -> bool:
        return False

    assert why(any_input(is_last), x).endswith("any_input: Parameter `x`: is_last does not hold")
    assert ": lambda at test_explain.py:" in why(any_input(lambda v: False), x)


def test_a_value_that_differs(x: Parameter) -> None:
    root = wrap_type("Mul", [any_input(), wrap_const(0.5)])
    scaled = ops.Mul(x, Constant(0.25, friendly_name="scale"), friendly_name="scaled")
    assert why(root, scaled) == (
        "Fusion does not match at Mul `scaled`: matched Mul `scaled`, then at input 1 of Mul `scaled` (inputs in "
        "any order), wrap_type(Constant): Constant `scale`: value_matches(0.5) does not hold: it is f32[] 0.25"
    )


def test_a_symbol_that_stands_for_something_else() -> None:
    a, b = Parameter(f32, [8, 16], "a"), Parameter(f32, [16, 16], "b")
    root = wrap_type("MatMul", [any_input(shape_matches("[M, K]")), any_input(shape_matches("[K, M]"))])
    assert why(root, ops.MatMul(a, b)).endswith(
        "Parameter `b`: shape_matches('[K, M]') does not hold: its type is f32[16,16], with K=16, M=8 bound earlier"
    )


def test_two_values_where_the_pattern_has_one(x: Parameter) -> None:
    data = any_input()
    other = ops.Relu(x, friendly_name="other")
    product = ops.Sub(x, ops.Sigmoid(other), friendly_name="product")
    assert why(wrap_type("Sub", [data, wrap_type("Sigmoid", [data])]), product).endswith(
        "any_input: already matched output 0 of Parameter `x`, found output 0 of Relu `other`"
    )


def test_numbers_of_inputs_and_omitted_ones(x: Parameter) -> None:
    clip = ops.Clip(x, None, Constant(6.0), friendly_name="clip")
    assert why(wrap_type("Clip", [any_input()]), clip).endswith("Clip `clip` has 3 inputs, the pattern expects 1")
    assert why(wrap_type("Clip", [any_input(), any_input(), any_input()]), clip).endswith(
        "input 1 of Clip `clip` is omitted, the pattern expects it given"
    )
    low = ops.Clip(x, Constant(0.0), Constant(6.0), friendly_name="low")
    assert why(wrap_type("Clip", [any_input(), None, any_input()]), low).endswith(
        "input 1 of Clip `low` is given, the pattern expects it omitted"
    )


def test_another_output_of_a_node(x: Parameter) -> None:
    split = ops.Split(x, axis=2, num_outputs=2, friendly_name="halves")
    relu = ops.Relu(split.output(1), friendly_name="relu")
    assert why(wrap_type("Relu", [wrap_type("Split").output(0)]), relu).endswith(
        "output 0 of wrap_type(Split): expected output 0, found output 1 of Split `halves`"
    )


def test_of_several_attempts_the_deepest_is_reported(x: Parameter) -> None:
    # In the one order the pattern gets nowhere, in the other it comes down to the last node.
    inner = ops.Abs(ops.Exp(x, friendly_name="exp"), friendly_name="abs")
    total = ops.Add(ops.Neg(x, friendly_name="neg"), ops.Relu(inner, friendly_name="relu"), friendly_name="total")
    chain = wrap_type("Relu", [wrap_type("Abs", [wrap_type("Log")])])
    text = why(wrap_type("Add", [chain, wrap_type("Neg")]), total)
    assert "matched Add `total`, Relu `relu`, Abs `abs`, then at input 0 of Abs `abs`" in text
    assert text.endswith("expected Log, found Exp `exp`")
    either = any_of([wrap_type("Add", [wrap_type("Log"), any_input()]), wrap_type("Add", [chain, wrap_type("Neg")])])
    assert why(either, total).endswith("expected Log, found Exp `exp`")
    skipped = wrap_type("Relu", [optional("Abs", [wrap_type("Log")])])
    assert why(skipped, ops.Relu(inner)).endswith("expected Log, found Exp `exp`")


def test_a_match_is_explained_too_and_the_last_match_stays(x: Parameter) -> None:
    relu = ops.Relu(x, friendly_name="relu")
    matcher = Matcher(wrap_type("Neg", [wrap_type("Relu")]), "Fusion")
    neg = ops.Neg(relu, friendly_name="neg")
    assert matcher.match(neg)
    assert str(matcher.explain(neg)) == "Fusion matches at Neg `neg`: Neg `neg`, Relu `relu`"
    assert not matcher.explain(relu).matched
    assert matcher.match_root is neg


# -- whole passes -----------------------------------------------------------------------------------------


class ToAbs(MatcherPass):
    """Relu(Neg(x)), where x has rank 3, becomes Abs; only for nodes whose name does not start with `keep`."""

    def __init__(self) -> None:
        super().__init__()
        root = wrap_type("Relu", [wrap_type("Neg", [any_input(rank_equals(3))])])

        def callback(m: Matcher) -> bool:
            if m.match_root.friendly_name.startswith("keep"):
                return False
            if m.match_root.friendly_name.startswith("fail"):
                raise ValueError("no")
            new = self.register_new_node(ops.Abs(m.match_root.input_value(0), friendly_name="new"))
            replace_node(m.match_root, new)
            return True

        self.register_matcher(Matcher(root, "ToAbs"), callback)


def model(*names: str) -> Model:
    value = Parameter(f32, [1, 2, 3], "x")
    results = [ops.Relu(ops.Neg(value), friendly_name=name) for name in names]
    return Model([*results, ops.Relu(value, friendly_name="plain"), ops.Relu(ops.Exp(value), friendly_name="exp")],
                 [value])  # fmt: skip


def test_a_pass_is_explained_with_what_its_callback_does_and_the_model_stays() -> None:
    graph = model("good", "keep", "fail")
    before = graph.to_text()
    item = ToAbs()
    texts = [str(explanation) for explanation in explain_pass(item, graph)]
    assert len(texts) == 3, "where the pattern matches, nothing else needs to be explained"
    assert texts[0].endswith("the callback changes the model there")
    assert texts[1].endswith("the callback declines: it returned False")
    assert texts[2].endswith("the callback raises: pass ToAbs failed at Relu `fail`: ValueError: no")
    assert graph.to_text() == before
    assert item.take_new_nodes() == []


def test_one_node_is_explained_by_name() -> None:
    (explanation,) = explain_pass(ToAbs(), model(), "plain")
    assert str(explanation) == (
        "ToAbs does not match at Relu `plain`: matched Relu `plain`, then at input 0 of Relu `plain`, "
        "wrap_type(Neg): expected Neg, found Parameter `x`"
    )
    with pytest.raises(PassError, match=r"has no node `missing`"):
        explain_pass(ToAbs(), model(), "missing")


def test_without_a_node_the_closest_attempts_are_reported() -> None:
    names = [e.match.root for e in explain_pass(ToAbs(), model())]
    assert names == ["Relu `plain`", "Relu `exp`"]
    assert len(explain_pass(ToAbs(), model(), most=1)) == 1
    flat = Parameter(f32, [6], "flat")
    (deepest,) = explain_pass(ToAbs(), Model([ops.Relu(ops.Neg(flat)), ops.Relu(flat)], [flat]))
    assert "rank_equals(3) does not hold: its type is f32[6]" in str(deepest)


def test_every_matcher_of_a_container_is_explained() -> None:
    manager = Manager()
    manager.register_pass(GraphRewrite([ToAbs, ToAbs]))
    manager.register_pass(ToAbs)
    manager.register_pass(ConstantFolding)
    assert len(explain_pass(manager, model(), "plain")) == 3
    with pytest.raises(PassError, match=r"ConstantFolding has no pattern to explain: it is a whole-model pass"):
        explain_pass(ConstantFolding(), model())
