"""Pass kinds: what a matcher pass does at one node, in a rewrite and by a manager."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, boolean, f32
from engine.passes import (
    BackwardGraphRewrite,
    GraphRewrite,
    Manager,
    MatcherPass,
    ModelPass,
    copy_runtime_info,
    pattern,
    replace_node,
)

Chain = Callable[[int], Model]


class Observer(MatcherPass):
    """Records where it was tried, and returns the given answer."""

    def __init__(self, kinds: str | list[str], log: list[str], answer: bool = False, name: str | None = None) -> None:
        super().__init__()
        if name is not None:
            self.name = name

        def callback(m: pattern.Matcher) -> bool:
            log.append(f"{self.name}:{m.match_root.friendly_name}")
            return answer

        self.register_matcher(pattern.Matcher(pattern.wrap_type(kinds), self.name), callback)


class Replace(MatcherPass):
    """One operator for another; the new node is matched again where `again`."""

    def __init__(self, old: str, new: str, again: bool = False) -> None:
        super().__init__()

        def callback(m: pattern.Matcher) -> bool:
            node = ops.create(new, [m.match_root.input_value(0)], friendly_name=m.match_root.friendly_name)
            if again:
                self.register_new_node(node)
            copy_runtime_info(m.match_root, node)
            replace_node(m.match_root, node)
            return True

        self.register_matcher(pattern.Matcher(pattern.wrap_type(old), f"{old}To{new}"), callback)


class Advance(MatcherPass):
    """Relu to Neg to Abs, one step at a time; what it makes is matched again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(pattern.Matcher(pattern.wrap_type(["Relu", "Neg"]), "Advance"), self.advance)

    def advance(self, m: pattern.Matcher) -> bool:
        new = {"Relu": "Neg", "Neg": "Abs"}[m.match_root.op_type]
        node = self.register_new_node(ops.create(new, [m.match_root.input_value(0)]))
        copy_runtime_info(m.match_root, node)
        replace_node(m.match_root, node)
        return True


def kinds(model: Model) -> list[str]:
    return [node.op_type for node in model.ordered_nodes() if node.op_type not in ("Parameter", "Result")]


# -- one matcher pass -------------------------------------------------------------------------------------


def test_a_pass_applies_to_one_node_and_leaves_the_others(relu_chain: Chain) -> None:
    model = relu_chain(4)
    a, _, c, _ = model.ordered_nodes()[1:5]
    replace = Replace("Relu", "Neg")
    assert replace.apply(c)
    assert not replace.apply(a.input_value(0).node), "a Parameter is not a Relu"
    assert kinds(model) == ["Relu", "Relu", "Neg", "Relu"]
    assert replace.apply(a.output(0))
    assert kinds(model) == ["Neg", "Relu", "Neg", "Relu"]


def test_what_apply_registers_for_one_model_is_not_rewritten_with_another(relu_chain: Chain) -> None:
    first, second = relu_chain(2), relu_chain(1)
    advance = Advance()
    assert advance.apply(first.ordered_nodes()[1])
    assert kinds(first) == ["Neg", "Relu"]
    assert GraphRewrite([advance]).run_on_model(second)
    assert kinds(first) == ["Neg", "Relu"]
    assert kinds(second) == ["Abs"], "where a rewrite runs, what is registered is matched again"
    assert advance.apply(first.ordered_nodes()[1])
    assert not advance.apply(second.parameters[0])
    assert advance.take_new_nodes() == [], "the last call registered nothing"


def test_a_pass_that_was_applied_a_thousand_times_keeps_no_node_alive(relu_chain: Chain) -> None:
    advance, made = Advance(), []
    for _ in range(1000):
        model = relu_chain(1)
        assert advance.apply(model.ordered_nodes()[1])
        made.append(weakref.ref(model.ordered_nodes()[1]))
    del model
    gc.collect()
    assert [reference() for reference in made if reference() is not None] == []


def test_a_fusion_that_registers_its_result_fuses_a_whole_chain(
    relu_relu_fusion: type[MatcherPass], relu_chain: Chain
) -> None:
    model = relu_chain(7)
    fusion = relu_relu_fusion()
    assert fusion.run_on_model(model)
    assert kinds(model) == ["Relu"]
    assert model.results[0].input_value(0).node.friendly_name == "relu6", "the last one's name stays"
    assert fusion.rewrites == 6
    assert not fusion.run_on_model(model)


def test_nodes_that_a_rewrite_replaced_are_freed_before_it_ends(relu_chain: Chain) -> None:
    """A rewrite of a large model needs no memory for both the old and the new graph."""
    alive: list[int] = []

    class Counting(Replace):
        def __init__(self) -> None:
            super().__init__("Relu", "Abs")
            rewrite, seen = self._callback, []
            assert rewrite is not None

            def callback(m: pattern.Matcher) -> bool:
                alive.append(sum(reference() is not None for reference in seen))
                seen.append(weakref.ref(m.match_root))
                return rewrite(m)

            self._callback = callback

    manager = Manager()
    manager.register_pass(Counting)
    assert manager.run_passes(relu_chain(50))
    assert len(alive) == 50
    assert max(alive) <= 2


def test_a_value_with_other_readers_is_not_fused(relu_relu_fusion: type[MatcherPass]) -> None:
    x = Parameter(f32, [4], "x")
    first = ops.Relu(x)
    model = Model([ops.Relu(first), ops.Neg(first)], [x])
    assert not relu_relu_fusion().run_on_model(model)


def test_the_callback_answers_true_or_false(relu_chain: Chain) -> None:
    class Forgetful(MatcherPass):
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), "F"), lambda m: None)  # type: ignore

    with pytest.raises(PassError, match=r"callback of pass Forgetful returned None at Relu `relu0`"):
        Forgetful().run_on_model(relu_chain(1))


def test_an_error_names_pass_root_and_cause(relu_chain: Chain) -> None:
    class Broken(MatcherPass):
        def __init__(self, predicate: Callable[..., bool] | None, callback: Callable[..., bool]) -> None:
            super().__init__()
            self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu", predicate=predicate), "B"), callback)

    def fail(_: object) -> bool:
        raise KeyError("weights")

    with pytest.raises(PassError, match=r"pass Broken failed at Relu `relu0`: KeyError: 'weights'") as caught:
        Broken(None, fail).run_on_model(relu_chain(2))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(PassError, match=r"pass Broken failed to match at Relu `relu0`: KeyError: 'weights'"):
        Broken(fail, lambda m: True).run_on_model(relu_chain(2))


def test_a_match_is_forgotten_after_the_callback(relu_chain: Chain) -> None:
    held: list[pattern.Matcher] = []

    class Keeper(MatcherPass):
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(
                pattern.Matcher(pattern.wrap_type("Relu"), "K"), lambda m: bool(held.append(m)) or False
            )

    Keeper().apply(relu_chain(1).ordered_nodes()[1])
    assert held[0].matched_nodes == [], "a matcher that keeps nodes keeps graphs alive"


# -- several in one traversal -----------------------------------------------------------------------------


def test_matchers_are_tried_in_order_until_one_returns_true(relu_chain: Chain) -> None:
    log: list[str] = []
    rewrite = GraphRewrite(
        [
            Observer("Relu", log, answer=False, name="first"),
            Observer("Neg", log, answer=True, name="other"),
            Observer(["Relu", "Neg"], log, answer=True, name="second"),
            Observer("Relu", log, answer=True, name="third"),
        ]
    )
    assert rewrite.run_on_model(relu_chain(2))
    assert log == ["first:relu0", "second:relu0", "first:relu1", "second:relu1"]


def test_order_is_that_of_registration_also_among_patterns_of_open_roots(relu_chain: Chain) -> None:
    log: list[str] = []

    class Open(MatcherPass):
        def __init__(self) -> None:
            super().__init__()
            root = pattern.any_input(lambda v: v.node.op_type == "Relu")
            self.register_matcher(
                pattern.Matcher(root, "Open"), lambda m: bool(log.append(f"open:{m.match_root.friendly_name}"))
            )

    rewrite = GraphRewrite([Observer("Relu", log, name="a"), Open(), Observer("Relu", log, name="b")])
    assert not rewrite.run_on_model(relu_chain(1))
    assert log == ["a:relu0", "open:relu0", "b:relu0"]


def test_passes_that_cannot_match_are_never_tried(relu_chain: Chain) -> None:
    class Untouchable(Observer):
        def apply(self, node: object) -> bool:
            raise AssertionError("tried")

    rewrite = GraphRewrite([Untouchable("Conv", []), Untouchable(["Add", "Mul"], [])])
    assert not rewrite.run_on_model(relu_chain(3))
    with pytest.raises(AssertionError, match=r"tried"):
        GraphRewrite([Untouchable("Relu", [])]).run_on_model(relu_chain(3))


def test_new_nodes_come_first_and_are_seen_by_all_matchers(relu_chain: Chain) -> None:
    log: list[str] = []
    rewrite = GraphRewrite([Replace("Relu", "Neg", again=True), Observer("Neg", log, name="neg")])
    assert rewrite.run_on_model(relu_chain(2))
    assert log == ["neg:relu0", "neg:relu1"], "each new node was matched before the next old one"
    log.clear()
    rewrite = GraphRewrite([Replace("Relu", "Neg"), Observer("Neg", log, name="neg")])
    rewrite.run_on_model(relu_chain(2))
    assert log == [], "nodes that nobody registers wait for the next run"


def test_new_nodes_that_did_not_enter_the_graph_are_not_matched(relu_chain: Chain) -> None:
    log: list[str] = []

    class Undecided(MatcherPass):
        def __init__(self) -> None:
            super().__init__()

            def callback(m: pattern.Matcher) -> bool:
                self.kept = self.register_new_node(ops.Neg(m.match_root.input_value(0)))
                return False

            self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), "U"), callback)

    assert not GraphRewrite([Undecided(), Observer("Neg", log)]).run_on_model(relu_chain(1))
    assert log == []


def test_a_backward_rewrite_goes_from_the_results_up(relu_chain: Chain) -> None:
    log: list[str] = []
    BackwardGraphRewrite([Observer("Relu", log, name="r")]).run_on_model(relu_chain(3))
    assert log == ["r:relu2", "r:relu1", "r:relu0"]
    log.clear()
    GraphRewrite([Observer("Relu", log, name="r")]).run_on_model(relu_chain(3))
    assert log == ["r:relu0", "r:relu1", "r:relu2"]


def test_nodes_that_left_the_graph_are_not_matched(relu_relu_fusion: type[MatcherPass], relu_chain: Chain) -> None:
    log: list[str] = []
    model = relu_chain(2)
    rewrite = BackwardGraphRewrite([relu_relu_fusion(), Observer("Relu", log, name="seen")])
    assert rewrite.run_on_model(model)
    # relu1 was fused with relu0, so that neither exists any longer; the fused node was tried, under relu1's name.
    assert log == ["seen:relu1"]


def test_bodies_of_control_flow_are_rewritten_too() -> None:
    condition, x = Parameter(boolean, [], "condition"), Parameter(f32, [4], "x")

    def body(op: str) -> Model:
        capture = Parameter(f32, [4])
        return Model([ops.create(op, [capture])], captures=[capture])

    node = ops.If(condition, x, x, then_branch=body("Relu"), else_branch=body("Neg"))
    model = Model([node], [condition, x])
    assert Replace("Relu", "Abs").run_on_model(model)
    assert kinds(node.bodies["then_branch"]) == ["Abs"]
    assert kinds(node.bodies["else_branch"]) == ["Neg"]


def test_a_rewrite_takes_classes_and_objects_and_returns_them(
    relu_relu_fusion: type[MatcherPass], relu_chain: Chain
) -> None:
    rewrite = GraphRewrite([relu_relu_fusion])
    added = rewrite.add_matcher(Replace("Neg", "Abs"))
    assert isinstance(added, Replace)
    assert [m.name for m in rewrite.matchers] == ["ReluReluFusion", "Replace"]
    assert rewrite.run_on_model(relu_chain(2))


# -- refused at construction ------------------------------------------------------------------------------


def test_a_second_matcher_is_refused() -> None:
    class Two(MatcherPass):
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), "one"), lambda m: False)
            self.register_matcher(pattern.Matcher(pattern.wrap_type("Neg"), "two"), lambda m: False)

    with pytest.raises(PassError, match=r"Two already has matcher 'one' and cannot register 'two'.*any_of"):
        Two()


def test_a_matcher_belongs_to_one_pass() -> None:
    shared = pattern.Matcher(pattern.wrap_type("Relu"), "shared")

    class Taker(MatcherPass):
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(shared, lambda m: False)

    Taker()
    with pytest.raises(PassError, match=r"'shared' is already registered with pass Taker"):
        Taker()


def test_passes_are_refused_that_cannot_run(relu_relu_fusion: type[MatcherPass]) -> None:
    class Empty(MatcherPass):
        pass

    class Early(MatcherPass):
        def __init__(self) -> None:
            self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), "m"), lambda m: False)

    class Whole(ModelPass):
        def run_on_model(self, model: Model) -> bool:
            return False

    class Hollow(MatcherPass):
        def __init__(self) -> None:
            pass

    for container in (GraphRewrite().add_matcher, Manager().register_pass):
        for kind in (Empty, Hollow):
            with pytest.raises(PassError, match=rf"{kind.__name__} has no matcher"):
                container(kind())  # type: ignore[operator]
    with pytest.raises(PassError, match=r"Empty has no matcher"):
        Empty().apply(Node("Relu", types=[]))
    with pytest.raises(PassError, match=r"Early registers a matcher before calling super"):
        Early()
    with pytest.raises(PassError, match=r"takes MatcherPass objects, got <pass Whole>"):
        GraphRewrite().add_matcher(Whole())  # type: ignore[type-var]
    with pytest.raises(PassError, match=r"expected a pass or a pass class, got 3"):
        Manager().register_pass(3)  # type: ignore[type-var]
    fusion = relu_relu_fusion()
    rewrite, manager = GraphRewrite([fusion]), Manager()
    manager.register_pass(fusion)
    with pytest.raises(PassError, match=r"ReluReluFusion is already in GraphRewrite"):
        rewrite.add_matcher(fusion)
    with pytest.raises(PassError, match=r"ReluReluFusion is already registered"):
        manager.register_pass(fusion)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((lambda m: False, pattern.Matcher(pattern.wrap_type("Relu"), "m")), r"Wrong registers <function .*Matcher\("),
        ((pattern.wrap_type("Relu"), lambda m: False), r"Wrong registers <WrapType .*expected a Matcher"),
        ((pattern.Matcher(pattern.wrap_type("Relu"), "m"), None), r"Wrong registers None as its callback"),
    ],
    ids=["exchanged", "pattern", "no-callback"],
)
def test_what_is_no_matcher_or_no_callback_is_refused(arguments: Any, problem: str) -> None:
    class Wrong(MatcherPass):
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(*arguments)

    with pytest.raises(PassError, match=problem):
        Wrong()


def test_a_decomposition_in_a_traversal_sees_the_constants_of_the_graph() -> None:
    # A model with constants, so that the sequence holds nodes of all kinds and none is mistaken for a root.
    x = Parameter(f32, [3], "x")
    model = Model([ops.Div(x, Constant(np.full(3, 2, np.float32)))], [x])
    log: list[str] = []
    GraphRewrite([Observer(["Constant", "Parameter", "Div"], log, name="o")]).run_on_model(model)
    assert len(log) == 3
