"""`Manager(checked=True)`: each way in which a pass can misreport, lose or break something is caught and undone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, boolean, f16, f32, i64
from engine.passes import (
    ConstantFolding,
    GraphRewrite,
    InitNodeInfo,
    Manager,
    MatcherPass,
    ModelPass,
    Validate,
    compare_models,
    copy_runtime_info,
    pattern,
    replace_node,
    replace_output_update_name,
)

Chain = Callable[[int], Model]
Action = Callable[[Model], object]


class Script(ModelPass):
    """Runs a function on the model."""

    def __init__(self, action: Action) -> None:
        self.action = action

    def run_on_model(self, model: Model) -> bool:
        return self.action(model)  # type: ignore[return-value]


class Matched(MatcherPass):
    """Runs a function at every node of a type."""

    def __init__(self, kind: str, callback: Callable[[pattern.Matcher], bool]) -> None:
        super().__init__()
        self.register_matcher(pattern.Matcher(pattern.wrap_type(kind), self.name), callback)


def sample() -> Model:
    """x -> conv(weights) -> relu -> softmax -> outputs `relu` and `probabilities`; with annotations and a body."""
    condition = Parameter(boolean, [], "condition")
    x = Parameter(f32, [1, 3, 8, 8], "x")
    weights = Constant(np.arange(81, dtype=np.float32).reshape(3, 3, 3, 3), friendly_name="weights")
    conv = ops.Conv(x, weights, friendly_name="conv")
    conv.rt_info["affinity"] = "CPU"
    relu = ops.Relu(conv, friendly_name="relu")
    softmax = ops.Softmax(relu, friendly_name="probabilities", axis=1)
    captures = [Parameter(f32, [1, 3, 6, 6]), Parameter(f32, [1, 3, 6, 6])]
    bodies = [Model([ops.create(op, [c])], captures=[c]) for op, c in zip(("Neg", "Abs"), captures, strict=True)]
    branch = ops.If(condition, relu, relu, then_branch=bodies[0], else_branch=bodies[1], friendly_name="branch")
    model = Model([relu, softmax, branch], [condition, x])
    model.metadata["author"] = "test"
    return model


def run(item: object, model: Model) -> bool:
    manager = Manager(checked=True)
    manager.register_pass(item)  # type: ignore[type-var]
    return manager.run_passes(model)


def node(model: Model, name: str) -> Node:
    return model.node(name)


def refused(item: object, message: str, build: Callable[[], Model] = sample) -> None:
    """The pass is refused with the message, and the model is as before, down to the identity of its nodes."""
    model = build()
    nodes, text, twin = model.ordered_nodes(), model.to_text(), model.clone()
    infos = [dict(n.rt_info) for n in nodes]
    with pytest.raises(PassError, match=message):
        run(item, model)
    assert model.ordered_nodes() == nodes
    assert model.to_text() == text
    assert [n.rt_info for n in nodes] == infos
    assert compare_models(model, twin) == []
    consumers = [sorted(str(t) for o in n.outputs for t in o.target_inputs) for n in nodes]
    readers = {n: sorted(str(i) for m in nodes for i in m.inputs if m.has_input(i.index) and i.source_output.node is n)
               for n in nodes}  # fmt: skip
    assert consumers == [readers[n] for n in nodes], "whoever was made meanwhile is not a consumer any more"
    assert ToAbs().run_on_model(model), "the model can be transformed as if nothing had happened"


class ToAbs(MatcherPass):
    """A good pass."""

    def __init__(self) -> None:
        super().__init__()

        def callback(m: pattern.Matcher) -> bool:
            new = ops.Abs(m.match_root.input_value(0), friendly_name=m.match_root.friendly_name)
            copy_runtime_info(m.match_root, new)
            replace_node(m.match_root, new)
            return True

        self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), "ToAbs"), callback)


def good_replacement(model: Model, name: str, op: str) -> Node:
    old = node(model, name)
    new = ops.create(op, [old.input_value(0)], friendly_name=name)
    copy_runtime_info(old, new)
    replace_node(old, new)
    return new


# -- what is right passes ---------------------------------------------------------------------------------


def test_good_passes_pass_and_leave_no_trace_of_the_checks() -> None:
    model = sample()
    assert run(ToAbs(), model)
    assert node(model, "relu").op_type == "Abs"
    assert not run(ToAbs(), model)
    assert node(model, "relu").rt_info == {}
    assert node(model, "conv").rt_info == {"affinity": "CPU"}
    assert all("engine" not in str(n.rt_info) for n in model.ordered_nodes())


def test_elimination_folding_and_bodies_pass() -> None:
    x = Parameter(f32, [4], "x")
    scale = ops.Neg(Constant(2.0), friendly_name="scale")
    identity = ops.Identity(ops.Mul(x, scale, friendly_name="scaled"), friendly_name="out")
    model = Model([identity], [x])

    def eliminate(m: Model) -> bool:
        last = node(m, "out")
        return replace_output_update_name(last.output(0), last.input_value(0))

    assert run(Script(eliminate), model)
    assert run(ConstantFolding(), model)
    assert [n.op_type for n in model.ordered_nodes()] == ["Parameter", "Constant", "Mul", "Result"]
    with_body = sample()
    assert run(Script(lambda m: good(node(m, "branch").bodies["then_branch"])), with_body)


def good(body: Model) -> bool:
    (neg,) = [n for n in body.ordered_nodes() if n.op_type == "Neg"]
    new = ops.Sigmoid(neg.input_value(0))
    copy_runtime_info(neg, new)
    replace_node(neg, new)
    return True


def test_names_and_types_that_a_pass_exists_for_pass() -> None:
    model = sample()
    assert run(InitNodeInfo(), model)
    assert node(model, "relu").rt_info == {"fused_names": ("relu",)}
    assert not run(InitNodeInfo(), model)
    assert not run(Validate(), model), "types are up to date before a pass runs, so this is not a change"
    assert run(Script(lambda m: bool(m.metadata.update(author="another")) or True), model)
    assert run(Script(lambda m: bool(node(m, "conv").rt_info.update(affinity="GPU")) or True), model)


def test_replacing_a_node_above_the_root_for_all_of_its_readers_passes() -> None:
    def callback(m: pattern.Matcher) -> bool:
        inner = m.match_root.input_value(0).node
        if inner.op_type != "Conv":
            return False
        new = inner.clone_with_new_inputs(inner.input_values)
        new.set_attribute("group", 1)
        replace_node(inner, new)
        return True

    assert run(Matched("Relu", callback), sample())


# -- what is wrong is refused -----------------------------------------------------------------------------


def test_a_cycle() -> None:
    def action(model: Model) -> bool:
        node(model, "conv").input(0).replace_source_output(node(model, "relu"))
        return True

    refused(
        Script(action),
        r"pass Script broke model `model`: the graph has a cycle: Relu `relu` <- Conv `conv` <- Relu `relu`",
    )


@pytest.mark.parametrize("answer", [True, False])
def test_a_dropped_network_output(answer: bool) -> None:
    def action(model: Model) -> bool:
        model.remove_result(model.result("probabilities"))
        return answer

    refused(Script(action), r"pass Script dropped the network output `probabilities`")


def test_renamed_moved_and_retyped_inputs_and_outputs() -> None:
    def rename(model: Model) -> bool:
        model.result("relu").friendly_name = "activation"
        return True

    def rename_input(model: Model) -> bool:
        model.parameter("x").friendly_name = "data"
        return True

    def swap(model: Model) -> bool:
        first = model.result("relu")
        source = first.input_value(0)
        model.remove_result(first)
        model.add_result(source, "relu")
        return True

    def retype(model: Model) -> bool:
        relu = node(model, "relu")
        cast = ops.Cast(relu, to=f16, friendly_name="relu")
        copy_runtime_info(relu, cast)
        model.result("relu").input(0).replace_source_output(cast)
        return True

    def reshape(model: Model) -> bool:
        model.parameter("x").type = Parameter(f32, [1, 3, 9, 9]).type
        return True

    refused(Script(rename), r"dropped the network output `relu`")
    refused(Script(rename_input), r"dropped the network input `x`")
    refused(Script(swap), r"moved the network output `relu` from 0")
    refused(Script(retype), r"changed network output `relu` from f32\[1,3,6,6\] to f16\[1,3,6,6\]")
    refused(Script(reshape), r"broke model `model`: If `branch`|changed network input `x` from")


def test_a_dropped_sink() -> None:
    def build() -> Model:
        model = sample()
        model.add_sink(ops.Neg(node(model, "relu"), friendly_name="sink"))
        return model

    def action(model: Model) -> bool:
        model.remove_sink(model.sinks[0])
        return True

    refused(Script(action), r"pass Script dropped one of the sinks Neg `sink`", build)


@pytest.mark.parametrize(
    ("action", "difference"),
    [
        (lambda m: node(m, "probabilities").set_attribute("axis", 2), "attribute axis of Softmax `probabilities`"),
        (lambda m: good_replacement(m, "relu", "Abs"), "Relu `relu` against Abs `relu`"),
        (lambda m: setattr(node(m, "conv"), "friendly_name", "c"), "friendly name: Conv `conv` against Conv `c`"),
        (lambda m: node(m, "conv").rt_info.update(affinity="GPU"), "rt_info of Conv `conv`"),
        (lambda m: m.metadata.clear(), "metadata of the model"),
        (lambda m: good(node(m, "branch").bodies["then_branch"]), "then_branch of If `branch`: Neg"),
    ],
)
def test_a_change_that_was_not_reported(action: Action, difference: str) -> None:
    refused(
        Script(lambda m: action(m) is Ellipsis), f"pass Script returned False and changed the model: .*{difference}"
    )


def test_a_change_that_did_not_happen_and_an_answer_that_is_none() -> None:
    refused(Script(lambda m: True), r"pass Script returned True and changed nothing")
    refused(Script(lambda m: 1), r"pass Script returned 1; expected True")

    def fail(model: Model) -> bool:
        good_replacement(model, "relu", "Abs")
        raise ValueError("half way")

    refused(Script(fail), r"pass Script failed on model `model`: ValueError: half way")


def test_lost_friendly_names() -> None:
    def unnamed_node(old: Node) -> bool:
        new = ops.Abs(old.input_value(0))
        copy_runtime_info(old, new)
        replace_node(old, new)
        return True

    refused(
        Matched("Relu", lambda m: unnamed_node(m.match_root)),
        r"pass Matched replaced Relu `relu` by Abs `Abs_\d+` and lost its friendly name",
    )

    def unnamed_output(model: Model) -> bool:
        good_replacement(model, "probabilities", "Sigmoid").friendly_name = "other"
        return True

    def unnamed_inside(model: Model) -> bool:
        return unnamed_node(node(model, "inner"))

    def build() -> Model:
        x = Parameter(f32, [4], "x")
        return Model([ops.Exp(ops.Relu(x, friendly_name="inner"))], [x])

    problem = r"pass Script replaced Relu `inner` by Abs `Abs_\d+` and lost its friendly name"
    refused(Script(unnamed_inside), problem, build)
    refused(
        Script(unnamed_output), r"lost the friendly name of Softmax `probabilities`: network output `probabilities`"
    )


def test_lost_rt_info() -> None:
    def forgotten(model: Model) -> bool:
        old = node(model, "relu")
        replace_node(old, ops.Abs(old.input_value(0), friendly_name="relu"))
        return True

    def dropped(model: Model) -> bool:
        copy_runtime_info(node(model, "relu"), node(model, "conv"))
        return True

    def in_a_body(model: Model) -> bool:
        body = node(model, "branch").bodies["else_branch"]
        (old,) = [n for n in body.ordered_nodes() if n.op_type == "Abs"]
        replace_node(old, ops.Neg(old.input_value(0), friendly_name="fresh"))
        return True

    refused(Script(forgotten), r"pass Script copied no rt_info to Abs `relu`; call copy_runtime_info")
    refused(Script(dropped), r"pass Script dropped the rt_info of Conv `conv`")
    refused(Script(in_a_body), r"pass Script copied no rt_info to Neg `fresh`")


def test_a_constant_subgraph_left_unfolded() -> None:
    def action(m: pattern.Matcher) -> bool:
        root = m.match_root
        half = ops.Div(Constant(1.0), Constant(2.0), friendly_name="half")
        new = ops.Mul(root.input_value(0), half, friendly_name=root.friendly_name)
        copy_runtime_info(root, [half, new])
        replace_node(root, new)
        return True

    refused(Matched("Relu", action), r"pass Matched left the constant subgraph that ends in Div `half` unfolded")


def test_edits_after_the_root() -> None:
    def reconfigure(m: pattern.Matcher) -> bool:
        (softmax,) = [t.node for t in m.match_root.output(0).target_inputs if t.node.op_type == "Softmax"]
        softmax.set_attribute("axis", 2)
        return True

    def remove(m: pattern.Matcher) -> bool:
        (softmax,) = [t.node for t in m.match_root.output(0).target_inputs if t.node.op_type == "Softmax"]
        new = ops.Sigmoid(softmax.input_value(0), friendly_name=softmax.friendly_name)
        copy_runtime_info(softmax, new)
        replace_node(softmax, new)
        return True

    def rename(m: pattern.Matcher) -> bool:
        (softmax,) = [t.node for t in m.match_root.output(0).target_inputs if t.node.op_type == "Softmax"]
        softmax.friendly_name = m.match_root.friendly_name
        return True

    def annotate(m: pattern.Matcher) -> bool:
        (softmax,) = [t.node for t in m.match_root.output(0).target_inputs if t.node.op_type == "Softmax"]
        softmax.rt_info["affinity"] = "GPU"
        return True

    refused(Matched("Relu", rename), r"pass Matched at Relu `relu` changed Softmax `relu`, which comes after the root")
    for callback, culprit in ((reconfigure, "Softmax"), (remove, "Result"), (annotate, "Softmax")):
        refused(
            Matched("Relu", callback),
            rf"pass Matched at Relu `relu` changed {culprit} `probabilities`, which comes after the root",
        )
        refused(GraphRewrite([Matched("Relu", callback)]), r"pass Matched at Relu `relu` changed")


def test_a_callback_that_fails_half_way_is_undone() -> None:
    def callback(m: pattern.Matcher) -> bool:
        replace_node(m.match_root, ops.Abs(m.match_root.input_value(0)))
        raise ValueError("half way")

    refused(Matched("Relu", callback), r"pass Matched failed at Relu `relu`: ValueError: half way")


def test_the_whole_run_is_undone_and_inner_passes_are_named() -> None:
    class Inner(Manager):
        def __init__(self) -> None:
            super().__init__()
            self.register_pass(ToAbs)
            self.register_pass(Script(lambda m: True))

    class Lazy(ModelPass):
        def run_on_model(self, model: Model) -> bool:
            manager = Manager(self.config)
            manager.register_pass(ToAbs)
            manager.register_pass(Script(lambda m: True))
            return manager.run_passes(model)

    for item in (Inner(), Lazy()):
        refused(item, r"pass Script returned True and changed nothing")


def test_a_pass_with_a_pipeline_of_its_own_is_checked_with_it() -> None:
    class Lazy(ModelPass):
        def run_on_model(self, model: Model) -> bool:
            good_replacement(model, "relu", "Neg")
            manager = Manager(self.config)
            manager.register_pass(Matched("Neg", again))
            return manager.run_passes(model)

    def again(m: pattern.Matcher) -> bool:
        if m.match_root.friendly_name != "relu":
            return False
        new = ops.Abs(m.match_root.input_value(0), friendly_name="relu")
        copy_runtime_info(m.match_root, new)
        replace_node(m.match_root, new)
        return True

    model = sample()
    assert run(Lazy(), model)
    assert node(model, "relu").op_type == "Abs"
    assert node(model, "relu").rt_info == {}


def test_without_checks_a_good_pass_pays_nothing_and_a_bad_one_is_not_found(relu_chain: Chain) -> None:
    manager = Manager()
    manager.register_pass(Script(lambda m: True))
    assert manager.run_passes(relu_chain(1)), "wrong answers that break nothing are what checked=True is for"


def test_a_model_that_was_broken_before_is_not_blamed_on_the_pass() -> None:
    x = Parameter(f32, [4], "x")
    relu = ops.Relu(x)
    model = Model([ops.Softmax(relu)], [x])
    x.type = Parameter(i64, [4]).type
    refused(ToAbs(), r"model `model` is broken before pass ToAbs: Softmax .*i64\[4\]", lambda: model)
