"""Checks of queries, and of the effects of compiling on the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import onnx
import pytest
from onnx import helper

from engine.core import Core
from engine.errors import EngineError, ModelError, UnsupportedError
from engine.ir import Constant, Model, Parameter, Result
from engine.placement import inconsistencies
from engine.plugin_api import SupportLevel
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.cases import CASES, Case, make_model, tensor
from engine.testing.behaviour.typed_nodes import TYPED_OPERATORS, typed_models
from engine.testing.conformance.scorecard import TYPE_ANSWERS


class QueryChecks(DeviceChecks):
    """A query answers for every node, and compiling agrees with it."""

    area: ClassVar[str] = "query"

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_query_answers_for_every_node(self, core: Core, case: Case) -> None:
        """By friendly name, with a reason if a node is refused; the model is not changed.

        A reported placement has each operation in one subgraph, on a listed device, and subgraphs in execution order.
        """
        model = core.read_model(case.model)
        before = model.to_text()
        answer = core.query_model(model, self.device, dict(self.config))
        nodes = [node for node in model.ordered_nodes() if not isinstance(node, (Parameter, Constant, Result))]
        names = {node.friendly_name for node in nodes}
        assert names <= set(answer)
        assert answer.placement is None or inconsistencies(answer.placement, names) == ()
        assert model.to_text() == before
        for name, support in answer.nodes.items():
            if support.level is SupportLevel.REFUSED:
                assert support.cause, f"`{name}` is refused without a cause"
                assert support.reason, f"`{name}` is refused without a reason"

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_compiling_agrees_with_the_query(self, core: Core, case: Case) -> None:
        """Supported models compile; refused nodes are named in the error. The model is not changed."""
        model = core.read_model(case.model)
        before = model.to_text()
        refused = core.query_model(model, self.device, dict(self.config)).at(SupportLevel.REFUSED)
        if refused:
            with pytest.raises(UnsupportedError) as caught:
                core.compile_model(model, self.device, dict(self.config))
            assert any(name in str(caught.value) for name in refused)
        else:
            core.compile_model(model, self.device, dict(self.config))
        assert model.to_text() == before

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_what_is_answered_native_runs_natively(self, core: Core, case: Case) -> None:
        """No native operation falls back to the reference evaluator, also with dynamic shapes."""
        self.require_support(core, case.model, (SupportLevel.REFUSED, SupportLevel.REFERENCE))
        request = self.compile(core, case.model, PERF_COUNT=True).create_infer_request()
        for sample in case.samples:
            self.assert_outputs(request.infer(sample.inputs), sample.outputs)
            fallen = [node for node in request.profiling_info.nodes if node.status == "reference"]
            assert not fallen, f"reported as native, but run on the reference evaluator: {fallen}"

    def test_network_does_not_depend_on_the_model_afterwards(self, core: Core) -> None:
        """The application may change the model, and compile it again, while the first network runs."""
        model, sample = core.read_model(self.basic.model()), self.basic.sample()
        network = core.compile_model(model, self.device, dict(self.config))
        model.remove_result(model.result("product"))
        model.parameter("a").friendly_name = "renamed"
        model.name = "changed"
        self.assert_outputs(network(sample.inputs), sample.outputs)
        assert network.get_metric("NETWORK_NAME") == "basic"
        second = core.compile_model(model, self.device, dict(self.config))
        result = second({"renamed": sample.inputs["a"], "b": sample.inputs["b"]})
        self.assert_outputs(result, {"total": sample.outputs["total"]})

    @pytest.mark.parametrize("op_type", TYPED_OPERATORS)
    def test_each_type_is_answered(
        self, core: Core, op_type: str, record_property: Callable[[str, object], None]
    ) -> None:
        """A node of each element type that ONNX allows is claimed, or refused with a cause and a reason."""
        answers: dict[str, bool] = {}
        record_property(TYPE_ANSWERS, {"operator": op_type, "answers": answers})
        for name, models in typed_models(op_type):
            answers[name] = any(self._is_native(core, model, f"{op_type} of {name}") for model in models)
        if not any(answers.values()):
            pytest.skip(f"{op_type}: refused on {self.device}: in each element type")

    def _is_native(self, core: Core, model: Model, where: str) -> bool:
        answer = core.query_model(model, self.device, dict(self.config))
        for name, support in answer.at(SupportLevel.REFUSED).items():
            assert support.cause, f"{where}: `{name}` is refused without a cause"
            assert support.reason.strip(), f"{where}: `{name}` is refused without a reason"
        return {support.level for support in answer.nodes.values()} <= {SupportLevel.NATIVE}

    @pytest.mark.parametrize("is_inside", [False, True], ids=["in the graph", "in a body"])
    def test_unknown_operator_is_refused_by_name(self, core: Core, is_inside: bool) -> None:
        """The message names the node and its domain; another model compiles."""
        if is_inside and not core.query_model(_conditional("Neg", ""), self.device, dict(self.config)).is_supported:
            pytest.skip(f"If: refused on {self.device}, whatever is in its branches")
        model = core.read_model(_conditional() if is_inside else _unknown_operator())
        if not is_inside:
            support = core.query_model(model, self.device, dict(self.config))["strange_node"]
            assert support.level is SupportLevel.REFUSED
            assert "com.example.unknown" in support.reason
        else:
            assert not core.query_model(model, self.device, dict(self.config)).is_supported
        with pytest.raises(UnsupportedError, match="strange_node") as caught:
            core.compile_model(model, self.device, dict(self.config))
        assert "com.example.unknown" in str(caught.value)
        self.assert_outputs(
            self.compile(core, self.basic.model())(self.basic.sample().inputs), self.basic.sample().outputs
        )

    @pytest.mark.parametrize("what", ["empty", "text", "truncated", "cycle", "missing input"])
    def test_wrong_model_is_refused(self, core: Core, what: str) -> None:
        """With a `ModelError`, before the device sees it; another model compiles."""
        wrong = _wrong_models(self.basic.model())[what]
        for attempt in (core.compile_model, core.query_model):
            with pytest.raises(ModelError):
                attempt(wrong, self.device)
        self.assert_outputs(
            self.compile(core, self.basic.model())(self.basic.sample().inputs), self.basic.sample().outputs
        )

    @pytest.mark.parametrize("device", ["", "no such device", "NO_SUCH_DEVICE", ",", ":"])
    def test_wrong_device_is_refused(self, core: Core, device: str) -> None:
        """With an `EngineError` that lists the devices."""
        with pytest.raises(EngineError, match=self.plugin_name):
            core.compile_model(self.basic.model(), device)


def _unknown_operator() -> onnx.ModelProto:
    node = helper.make_node("Strange", ["x"], ["y"], name="strange_node", domain="com.example.unknown")
    return make_model([node], [tensor("x", [2])], [tensor("y", [2])], domains={node.domain: 1})


def _conditional(op_type: str = "Strange", domain: str = "com.example.unknown") -> onnx.ModelProto:
    """An If with an operator in its branch, by default an unknown one."""
    node = helper.make_node(op_type, ["x"], ["y"], name="strange_node", domain=domain)
    branch = helper.make_graph([node], "branch", [], [tensor("y", [2])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "other", [], [tensor("z", [2])])
    choice = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branch, else_branch=other)
    inputs = [tensor("c", [], onnx.TensorProto.BOOL), tensor("x", [2])]
    return make_model([choice], inputs, [tensor("y", [2])], domains={domain: 1} if domain else {})


def _wrong_models(model: onnx.ModelProto) -> dict[str, bytes]:
    sound = model.SerializeToString()
    ports = [tensor("x", [2])], [tensor("y", [2])]
    cycle = [helper.make_node("Add", ["x", "q"], ["p"]), helper.make_node("Neg", ["p"], ["q"])]
    cycle.append(helper.make_node("Abs", ["p"], ["y"]))
    missing = [helper.make_node("Add", ["x", "nowhere"], ["y"])]
    return {
        "empty": b"",
        "text": b"this is not a model",
        "truncated": sound[: len(sound) * 2 // 3],
        "cycle": make_model(cycle, *ports).SerializeToString(),
        "missing input": make_model(missing, *ports).SerializeToString(),
    }
