"""`check_pass` accepts a good pass and finds each fault of a bad one: a helper that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, f32
from engine.passes import MatcherPass, ModelPass, PassConfig, copy_runtime_info, pattern, replace_node
from engine.testing.passes import check_pass


class Rewrite(MatcherPass):
    """Replaces operators of a type by what a function makes, keeping all that is to be kept unless told not to."""

    def __init__(self, kind: str, make: Callable[[Node], Node], *, carry: bool = True, answer: bool = True) -> None:
        super().__init__()

        def callback(m: pattern.Matcher) -> bool:
            if self.transformation_callback(m.match_root):
                return False
            new = make(m.match_root)
            new.friendly_name = m.match_root.friendly_name
            if carry:
                copy_runtime_info(m.match_root, new)
            replace_node(m.match_root, new)
            return answer

        self.register_matcher(pattern.Matcher(pattern.wrap_type(kind), "Rewrite"), callback)


def double(name: str | None = None, op: str = "Add") -> Model:
    x = Parameter(f32, [2, "N"], "x")
    node = ops.Add(x, x) if op == "Add" else ops.Mul(x, Constant(2.0))
    if name is not None:
        node.friendly_name = name
    return Model([node], [x])


def as_product(node: Node) -> Node:
    return ops.Mul(node.input_value(0), Constant(2.0))


def test_a_good_pass_passes_in_every_form() -> None:
    assert check_pass(Rewrite("Add", as_product), double("y"), double("y", "Mul"), dims={"N": 5}) == {"Rewrite": 1}
    check_pass(Rewrite("Add", as_product), double(), double(op="Mul"))
    text = """
        model "model" {
          %0: f32[2,N] = Parameter()  # x
          %1: f32[] = Constant(2.)
          %2: f32[2,N] = Mul(%0, %1)  # y
          result "y" = %2
        }
    """
    model = double("y")
    check_pass(Rewrite("Add", as_product), model, text)
    assert model.node("y").rt_info == {"fused_names": ("y",)}
    check_pass(Rewrite("Neg", as_product), double(), double(), changes=False)
    config = PassConfig()
    config.set_callback(callback=lambda node: True)
    check_pass(Rewrite("Add", as_product), double(), changes=False, config=config)


def test_another_result_is_told_with_the_difference() -> None:
    with pytest.raises(
        AssertionError, match=r"produced a different model than expected:\nMul .* against Add(.|\n)*\+  %2: .*Mul"
    ):
        check_pass(Rewrite("Add", as_product), double(), double())
    with pytest.raises(AssertionError, match=r"friendly name: Mul `y` against Mul `z`"):
        check_pass(Rewrite("Add", as_product), double("y"), double("z", "Mul"))
    with pytest.raises(
        AssertionError, match=r"produced a different model than expected:\n--- expected(.|\n)*\+  %2: .*Mul"
    ):
        check_pass(Rewrite("Add", as_product), double("y"), 'model "model" {}')


def test_a_pass_that_does_not_match_is_told_why() -> None:
    with pytest.raises(
        AssertionError, match=r"pass Rewrite changed nothing:\nRewrite does not match at .*expected Neg"
    ):
        check_pass(Rewrite("Neg", as_product), double())

    class Idle(ModelPass):
        def run_on_model(self, model: Model) -> bool:
            return False

    with pytest.raises(AssertionError, match=r"pass Idle changed nothing:\nmodel "):
        check_pass(Idle, double())


def test_a_change_where_there_should_be_none() -> None:
    with pytest.raises(AssertionError, match=r"changed a model that it should leave unchanged:\n(.|\n)*\+  .*Mul"):
        check_pass(Rewrite("Add", as_product), double(), changes=False)


def test_a_wrong_answer_and_lost_rt_info() -> None:
    with pytest.raises(PassError, match=r"returned False and changed"):
        check_pass(Rewrite("Add", as_product, answer=False), double())
    with pytest.raises(PassError, match=r"copied no rt_info to Mul"):
        check_pass(Rewrite("Add", as_product, carry=False), double())


def test_a_pass_that_never_settles() -> None:
    class Swap(ModelPass):
        def run_on_model(self, model: Model) -> bool:
            (old,) = [n for n in model.ordered_nodes() if n.op_type == "Add"]
            new = ops.Add(ops.Identity(old.input_value(0)), old.input_value(1))
            copy_runtime_info(old, [new, new.input_value(0).node])
            replace_node(old, new)
            return True

    with pytest.raises(
        AssertionError, match=r"a second run of pass Swap changed the model again:\n(.|\n)*\+.*Identity"
    ):
        check_pass(Swap, double())


def test_other_numbers() -> None:
    wrong = Rewrite("Add", lambda node: ops.Mul(node.input_value(0), Constant(2.1)))
    with pytest.raises(AssertionError, match=r"output `.*`: differs by"):
        check_pass(wrong, double())
    check_pass(Rewrite("Add", lambda node: ops.Mul(node.input_value(0), Constant(2.1))), double(), equivalent=False)
    check_pass(Rewrite("Add", lambda node: ops.Mul(node.input_value(0), Constant(2.1))), double(), rtol=0.1)
