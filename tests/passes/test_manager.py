"""The manager: order, validation, nesting, and what it tells of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Model, Node, Parameter, boolean, f32, i64
from engine.passes import (
    GraphRewrite,
    InitNodeInfo,
    Manager,
    MatcherPass,
    ModelPass,
    Serialize,
    Validate,
    pattern,
    replace_node,
)
from engine.passes import copy_runtime_info as copy_info

Chain = Callable[[int], Model]


class Script(ModelPass):
    """Runs a function on the model."""

    def __init__(self, action: Callable[[Model], object], name: str = "Script") -> None:
        self.action = action
        self.name = name

    def run_on_model(self, model: Model) -> bool:
        return self.action(model)  # type: ignore[return-value]


class ToNeg(MatcherPass):
    def __init__(self) -> None:
        super().__init__()

        def callback(m: pattern.Matcher) -> bool:
            node = ops.Neg(m.match_root.input_value(0), friendly_name=m.match_root.friendly_name)
            copy_info(m.match_root, node)
            replace_node(m.match_root, node)
            return True

        self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), self.name), callback)


def first_relu(model: Model) -> Node:
    return next(node for node in model.ordered_nodes() if node.op_type == "Relu")


def to_int(model: Model) -> bool:
    """Lets everything that reads the first Relu read integers."""
    relu = first_relu(model)
    cast = ops.Cast(relu, to=i64)
    for target in relu.output(0).target_inputs:
        if target.node is not cast:
            target.replace_source_output(cast)
    return True


def test_passes_run_in_order_and_the_result_says_whether_any_changed(relu_chain: Chain) -> None:
    order: list[str] = []
    manager = Manager()
    for name, answer in (("a", False), ("b", True), ("c", False)):
        manager.register_pass(Script(lambda m, n=name, r=answer: bool(order.append(n)) or r, name))  # type: ignore[misc]
    assert manager.run_passes(relu_chain(1))
    assert order == ["a", "b", "c"]
    assert [p.name for p in manager.passes] == ["a", "b", "c"]
    assert not Manager().run_passes(relu_chain(1))


def test_types_are_inferred_after_each_pass_that_changed_something() -> None:
    x = Parameter(f32, [4], "x")
    model = Model([ops.Relu(ops.Identity(x))], [x])
    seen: list[str] = []

    def widen(m: Model) -> bool:
        m.parameters[0].type = Parameter(f32, [9]).type
        return True

    manager = Manager()
    manager.register_pass(Script(widen, "widen"))
    manager.register_pass(Script(lambda m: bool(seen.append(str(m.results[0].type))), "look"))
    assert manager.run_passes(model)
    assert seen == ["f32[9]"]


def test_validation_can_be_left_to_the_caller() -> None:
    x = Parameter(f32, [4], "x")
    model = Model([ops.Relu(x)], [x])

    def widen(m: Model) -> bool:
        m.parameters[0].type = Parameter(f32, [9]).type
        return True

    manager = Manager(validate=False)
    manager.register_pass(Script(widen))
    manager.run_passes(model)
    assert str(model.results[0].type) == "f32[4]"
    manager.register_pass(Validate)
    assert manager.run_passes(model)
    assert str(model.results[0].type) == "f32[9]"


@pytest.mark.parametrize("checked", [False, True])
def test_a_pass_that_breaks_the_graph_is_named_with_the_node(relu_chain: Chain, checked: bool) -> None:
    def cycle(model: Model) -> bool:
        a, b = model.ordered_nodes()[1:3]
        a.input(0).replace_source_output(b)
        return True

    def foreign(model: Model) -> bool:
        first_relu(model).input(0).replace_source_output(Parameter(f32, [1, 8], "stranger"))
        return True

    def fail(model: Model) -> bool:
        raise ZeroDivisionError("scale")

    for action, message in (
        (cycle, "pass Breaker broke model `model`: the graph has a cycle: .*Relu `relu0`"),
        (foreign, "pass Breaker broke model `model`: .*reads Parameter `stranger`, which is not one of its"),
        (fail, "pass Breaker failed on model `model`: ZeroDivisionError: scale"),
        (lambda m: None, "pass Breaker returned None; expected True"),
    ):
        manager = Manager(checked=checked)
        manager.register_pass(Script(action, "Breaker"))
        with pytest.raises(PassError, match=message):
            manager.run_passes(relu_chain(3))


@pytest.mark.parametrize("checked", [False, True])
def test_a_port_that_is_gone_is_found(checked: bool) -> None:
    x = Parameter(f32, [4], "x")
    split = ops.Split(x, num_outputs=2, friendly_name="halves")
    model = Model([ops.Relu(split.output(1), friendly_name="relu")], [x])

    def shrink(m: Model) -> bool:
        split._types = split._types[:1]
        return True

    manager = Manager(checked=checked)
    manager.register_pass(Script(shrink, "Breaker"))
    with pytest.raises(
        PassError, match=r"pass Breaker broke .*Relu `relu` reads output 1 of Split `halves`, which does"
    ):
        manager.run_passes(model)


@pytest.mark.parametrize("checked", [False, True])
def test_types_that_consumers_cannot_take_are_found_at_once(checked: bool) -> None:
    x = Parameter(f32, [4], "x")
    model = Model([ops.Softmax(ops.Relu(x), friendly_name="probabilities")], [x])
    manager = Manager(checked=checked)
    manager.register_pass(Script(to_int, "ToInt"))
    with pytest.raises(PassError, match=r"pass ToInt broke model `model`: Softmax `probabilities`: .*i64\[4\]"):
        manager.run_passes(model)


def test_a_body_that_a_pass_broke_is_found_too() -> None:
    condition, x = Parameter(boolean, [], "condition"), Parameter(f32, [4], "x")
    captures = [Parameter(f32, [4]), Parameter(f32, [4])]
    bodies = [Model([ops.Softmax(ops.Relu(c), friendly_name="inner")], captures=[c]) for c in captures]
    node = ops.If(condition, x, x, then_branch=bodies[0], else_branch=bodies[1], friendly_name="branch")
    manager = Manager()
    manager.register_pass(Script(lambda m: to_int(node.bodies["then_branch"]), "ToInt"))
    with pytest.raises(PassError, match=r"pass ToInt broke .*If `branch`, then_branch: Softmax `inner`"):
        manager.run_passes(Model([node], [condition, x]))


def test_a_change_that_was_not_told_is_found_without_being_asked_for(relu_chain: Chain) -> None:
    def silent(model: Model) -> bool:
        relu = first_relu(model)
        replace_node(relu, ops.Neg(relu.input_value(0)))
        return False

    manager = Manager()
    manager.register_pass(Script(silent, "Silent"))
    with pytest.raises(PassError, match=r"pass Silent returned False and changed the nodes of model `model`"):
        manager.run_passes(relu_chain(2))


def test_a_pass_may_change_other_models_while_it_leaves_this_one(relu_chain: Chain) -> None:
    manager = Manager()
    manager.register_pass(Script(lambda m: ToNeg().run_on_model(m.clone()) and False))
    assert not manager.run_passes(relu_chain(2))


# -- records ----------------------------------------------------------------------------------------------


def test_records_count_rewrites_down_to_single_matchers(relu_relu_fusion: type[MatcherPass], relu_chain: Chain) -> None:
    inner = Manager(name="inner")
    inner.register_pass(GraphRewrite([relu_relu_fusion, InnerToAbs], name="both"))
    outer = Manager(profile=True)
    outer.register_pass(InitNodeInfo)
    outer.register_pass(inner)
    assert outer.run_passes(relu_chain(5))
    init, nested = outer.records
    assert (init.name, init.changed, init.rewrites) == ("InitNodeInfo", True, 1)
    assert (nested.name, nested.nodes_before, nested.nodes_after, nested.rewrites) == ("inner", 7, 3, 4)
    (both,) = nested.parts
    assert [(p.name, p.changed, p.rewrites) for p in both.parts] == [
        ("ReluReluFusion", True, 4),
        ("InnerToAbs", False, 0),
    ]
    assert both.parts[0].seconds > 0
    assert outer.rewrites == 5
    assert outer.rewrite_counts() == {"InitNodeInfo": 1, "ReluReluFusion": 4, "InnerToAbs": 0}
    outer.run_passes(relu_chain(1))
    assert outer.rewrite_counts() == {"InitNodeInfo": 1, "ReluReluFusion": 0, "InnerToAbs": 0}, "runs are counted apart"


def test_a_pass_without_anything_to_change_is_recorded_and_not_run(relu_chain: Chain) -> None:
    class Nothing(ModelPass):
        def may_change(self, model: Model) -> bool:
            return False

        def run_on_model(self, model: Model) -> bool:
            raise AssertionError

    manager = Manager()
    manager.register_pass(GraphRewrite([InnerToAbs], name="both"))
    manager.register_pass(Nothing)
    assert not manager.run_passes(relu_chain(3))
    both, nothing = manager.records
    assert (both.name, both.changed, [part.name for part in both.parts]) == ("both", False, ["InnerToAbs"])
    assert (nothing.name, nothing.changed, nothing.rewrites, nothing.nodes_after) == ("Nothing", False, 0, 5)


def test_a_profile_is_logged_where_it_is_asked_for(
    relu_chain: Chain, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logged() -> list[str]:
        caplog.clear()
        manager = Manager(name="Pipeline")
        manager.register_pass(GraphRewrite([ToNeg], name="both"))
        manager.register_pass(InitNodeInfo)
        manager.run_passes(relu_chain(2))
        return caplog.messages

    assert logged() == []
    monkeypatch.setenv("ENGINE_PROFILE_PASS_ENABLE", "0")
    assert logged() == []
    monkeypatch.setenv("ENGINE_PROFILE_PASS_ENABLE", "1")
    both, matcher, init, total = logged()
    assert both.startswith("both ")
    assert both.endswith(" ms  2 rewrites, 4 -> 4 nodes")
    assert matcher.startswith("  ToNeg ")
    assert "1 rewrite," in init
    assert total.startswith("Pipeline took ")
    assert caplog.records[0].levelno == logging.WARNING, "it is printed without any set-up of logging"


# -- snapshots --------------------------------------------------------------------------------------------


def test_each_change_leaves_a_snapshot_as_text_onnx_and_picture(tmp_path: Path, relu_chain: Chain) -> None:
    nested = Manager(name="inner")
    nested.register_pass(ToNeg)
    manager = Manager(snapshots=tmp_path / "new", name="outer")
    manager.register_pass(Script(lambda m: False, "idle"))
    manager.register_pass(nested)
    manager.register_pass(GraphRewrite([InnerToAbs], name="rewrite"))
    manager.run_passes(relu_chain(2))
    stems = ["000_outer_start", "001_inner_ToNeg", "002_outer_rewrite"]
    expected = sorted(f"{stem}.{suffix}" for stem in stems for suffix in ("onnx", "svg", "txt"))
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == expected
    texts = [(tmp_path / "new" / f"{stem}.txt").read_text() for stem in stems]
    assert [[op for op in ("Relu", "Neg", "Abs") if f"{op}(" in text] for text in texts] == [["Relu"], ["Neg"], ["Abs"]]
    onnx.checker.check_model(onnx.load(tmp_path / "new" / "001_inner_ToNeg.onnx"))
    assert "<svg" in (tmp_path / "new" / "002_outer_rewrite.svg").read_text()


class InnerToAbs(MatcherPass):
    def __init__(self) -> None:
        super().__init__()

        def callback(m: pattern.Matcher) -> bool:
            replace_node(m.match_root, ops.Abs(m.match_root.input_value(0), friendly_name=m.match_root.friendly_name))
            return True

        self.register_matcher(pattern.Matcher(pattern.wrap_type("Neg"), self.name), callback)


def test_a_second_run_starts_its_snapshots_anew(tmp_path: Path, relu_chain: Chain) -> None:
    manager = Manager(snapshots=tmp_path, snapshot_formats=["txt"])
    manager.register_pass(ToNeg)
    manager.run_passes(relu_chain(1))
    manager.run_passes(relu_chain(2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000_Manager_start.txt", "001_Manager_ToNeg.txt"]


def test_tracing_by_environment_numbers_all_runs_of_the_process_on(
    tmp_path: Path, relu_chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_ENABLE_VISUALIZE_TRACING", "1")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        manager = Manager()
        manager.register_pass(ToNeg)
        manager.run_passes(relu_chain(1))
    stems = sorted({p.stem for p in tmp_path.iterdir()})
    assert stems == ["000_Manager_start", "001_Manager_ToNeg", "002_Manager_start", "003_Manager_ToNeg"]


def test_what_onnx_cannot_express_does_not_stop_the_pipeline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = Parameter(f32, [4], "x")
    manager = Manager(snapshots=tmp_path)
    manager.register_pass(ToNeg)
    model = Model([ops.Relu(Node("Inexpressible", [x], {"what": object()}, domain="com.example"))], [x])
    assert manager.run_passes(model)
    assert any("no snapshot" in message for message in caplog.messages)
    assert (tmp_path / "001_Manager_ToNeg.txt").exists()


def test_snapshots_have_known_formats_and_a_folder_that_can_be_written(tmp_path: Path, relu_chain: Chain) -> None:
    with pytest.raises(PassError, match=r"unknown snapshot format 'png'; expected dot, onnx, svg, txt"):
        Manager(snapshots=tmp_path, snapshot_formats=["png"])
    (tmp_path / "file").write_text("")
    manager = Manager(snapshots=tmp_path / "file")
    manager.register_pass(ToNeg)
    with pytest.raises(PassError, match=r"snapshots cannot be written to"):
        manager.run_passes(relu_chain(1))


def test_serialize_writes_the_model_in_the_middle(tmp_path: Path, relu_chain: Chain) -> None:
    manager = Manager()
    manager.register_pass(Serialize(tmp_path / "before.onnx"))
    manager.register_pass(ToNeg)
    manager.register_pass(Serialize(tmp_path / "after.onnx"))
    manager.run_passes(relu_chain(2))
    ops_of = [[n.op_type for n in onnx.load(tmp_path / f"{n}.onnx").graph.node] for n in ("before", "after")]
    assert ops_of == [["Relu", "Relu"], ["Neg", "Neg"]]
    with pytest.raises(PassError, match=r"pass Serialize cannot write .*missing"):
        Serialize(tmp_path / "missing" / "model.onnx").run_on_model(relu_chain(1))
