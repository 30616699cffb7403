"""PassConfig: switches act the same wherever and whenever they are set."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Model, Parameter, f32
from engine.passes import GraphRewrite, Manager, MatcherPass, ModelPass, PassConfig, copy_runtime_info, pattern
from engine.passes import replace_node as replace

Chain = Callable[[int], Model]


class ToNeg(MatcherPass):
    """Relu to Neg, unless the user's callback says to leave it."""

    def __init__(self) -> None:
        super().__init__()

        def callback(m: pattern.Matcher) -> bool:
            if self.transformation_callback(m.match_root):
                return False
            node = ops.Neg(m.match_root.input_value(0), friendly_name=m.match_root.friendly_name)
            copy_runtime_info(m.match_root, node)
            replace(m.match_root, node)
            return True

        self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), self.name), callback)


class ToAbs(ToNeg):
    """The same under another name."""


class Nested(Manager):
    """A pipeline as a library ships it: one pass is off by default."""

    def __init__(self) -> None:
        super().__init__()
        self.register_pass(ToNeg, enabled=False)


class Lazy(ModelPass):
    """Makes its pipeline when it runs."""

    def run_on_model(self, model: Model) -> bool:
        manager = Manager(self.config)
        manager.register_pass(GraphRewrite([ToNeg]))
        return manager.run_passes(model)


def changes(manager: Manager, chain: Chain, length: int = 1) -> bool:
    return manager.run_passes(chain(length))


def test_a_pass_is_disabled_before_and_after_its_registration(relu_chain: Chain) -> None:
    for disable_first in (True, False):
        manager = Manager()
        if disable_first:
            manager.pass_config.disable(ToNeg)
        manager.register_pass(ToNeg)
        if not disable_first:
            manager.pass_config.disable("ToNeg")
        assert not changes(manager, relu_chain)
        manager.pass_config.enable(ToNeg)
        assert changes(manager, relu_chain)


def test_a_matcher_of_a_rewrite_is_disabled_however_they_came_together(relu_chain: Chain) -> None:
    manager = Manager()
    manager.pass_config.disable(ToNeg)
    anchor = manager.register_pass(GraphRewrite)
    anchor.add_matcher(ToNeg)
    assert not changes(manager, relu_chain)
    manager = Manager()
    manager.register_pass(GraphRewrite([ToNeg], name="anchor"))
    assert changes(manager, relu_chain)
    manager.pass_config.disable("anchor")
    assert not changes(manager, relu_chain)


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("whose", ["inner", "outer"])
def test_a_nested_pipeline_is_switched_from_either_side_at_any_time(relu_chain: Chain, when: str, whose: str) -> None:
    outer, inner = Manager(), Nested()
    config = {"inner": inner.pass_config, "outer": outer.pass_config}[whose]
    if when == "before":
        config.enable(ToNeg)
    middle = Manager()
    middle.register_pass(inner)
    if when == "between":
        config.enable(ToNeg)
    outer.register_pass(middle)
    if when == "after":
        config.enable(ToNeg)
    assert changes(outer, relu_chain)


def test_the_outer_pipeline_has_the_last_word() -> None:
    outer, inner = Manager(), Nested()
    inner.pass_config.enable(ToNeg)
    outer.pass_config.disable(ToNeg)
    outer.register_pass(inner)
    assert not inner.pass_config.is_enabled(ToNeg)


def test_a_pass_that_is_off_by_default_waits_for_enable(relu_chain: Chain) -> None:
    manager = Manager()
    nested = manager.register_pass(Nested)
    assert not changes(manager, relu_chain)
    manager.pass_config.enable(ToNeg)
    assert changes(manager, relu_chain)
    assert nested.pass_config.is_enabled(ToNeg, by_default=False)


def test_pipelines_that_passes_make_when_they_run_are_switched_too(relu_chain: Chain) -> None:
    manager = Manager()
    manager.register_pass(Lazy)
    assert changes(manager, relu_chain)
    manager.pass_config.disable(ToNeg)
    assert not changes(manager, relu_chain)


def test_a_callback_decides_node_by_node_for_the_passes_it_was_set_for(relu_chain: Chain) -> None:
    def neg_count(config: Callable[[PassConfig], None]) -> list[str]:
        manager = Manager()
        manager.register_pass(GraphRewrite([ToAbs, ToNeg]))
        config(manager.pass_config)
        model = relu_chain(3)
        manager.run_passes(model)
        return [n.friendly_name for n in model.ordered_nodes() if n.op_type == "Neg"]

    def keep(*names: str) -> Callable[..., bool]:
        return lambda node: node.friendly_name in names

    assert neg_count(lambda c: None) == ["relu0", "relu1", "relu2"]
    assert neg_count(lambda c: c.set_callback(ToNeg, callback=keep("relu1"))) == ["relu0", "relu1", "relu2"], (
        "ToAbs has no callback and does the same"
    )
    assert neg_count(lambda c: c.set_callback(ToNeg, ToAbs, callback=keep("relu1"))) == ["relu0", "relu2"]
    assert neg_count(lambda c: c.set_callback(callback=keep("relu0"))) == ["relu1", "relu2"]

    def both(config: PassConfig) -> None:
        config.set_callback(callback=keep("relu0", "relu1", "relu2"))
        config.set_callback("ToNeg", callback=keep("relu0"))

    assert neg_count(both) == ["relu1", "relu2"], "what is set for a pass goes before what is set for all"


def test_one_object_in_two_pipelines_obeys_the_one_that_runs(relu_chain: Chain) -> None:
    shared = ToNeg()
    first, second = Manager(), Manager()
    first.register_pass(shared)
    second.register_pass(shared)
    first.pass_config.set_callback(ToNeg, callback=lambda node: True)
    assert not changes(first, relu_chain)
    assert changes(second, relu_chain)
    assert not changes(first, relu_chain)


def test_two_classes_of_one_name_cannot_be_told_apart() -> None:
    other = type("ToNeg", (ToAbs,), {"__module__": "elsewhere"})
    manager = Manager()
    manager.register_pass(ToNeg)
    with pytest.raises(PassError, match=r"two passes are named 'ToNeg': .*ToNeg and elsewhere\.ToNeg"):
        manager.register_pass(other)
    with pytest.raises(PassError, match=r"two passes are named 'ToNeg'"):
        manager.register_pass(GraphRewrite([other]))
    nested = Manager()
    nested.register_pass(other)
    with pytest.raises(PassError, match=r"two passes are named 'ToNeg'"):
        manager.register_pass(nested)
    manager.register_pass(ToNeg())


def test_a_switch_for_a_pass_that_does_not_exist_is_reported(
    relu_chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    manager = Manager()
    manager.register_pass(Lazy)
    manager.pass_config.disable("ToNag")
    manager.pass_config.enable(ToNeg)
    with caplog.at_level(logging.WARNING, "engine.passes"):
        changes(manager, relu_chain)
    assert caplog.messages == [
        "PassConfig enables or disables passes that Manager does not have: 'ToNag' (did you mean 'ToNeg'?)"
    ]


def test_a_pipeline_is_no_pass_of_itself() -> None:
    outer, inner = Manager(), Manager(name="inner")
    outer.register_pass(inner)
    with pytest.raises(PassError, match=r"manager inner cannot be registered with itself"):
        inner.register_pass(inner)
    with pytest.raises(PassError, match=r"manager Manager cannot be registered with itself"):
        inner.register_pass(outer)


def test_only_passes_and_names_name_passes() -> None:
    with pytest.raises(PassError, match=r"expected a pass class or the name of a pass, got 3"):
        PassConfig().disable(3)  # type: ignore[arg-type]
    assert PassConfig().is_enabled(ToNeg)
    assert Model([ops.Relu(p := Parameter(f32, [1], "p"))], [p])
