"""The device as users meet it: placement, bound buffers, overlap, and errors and how they are reported."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import onnx
import pytest
from engine_hetero import HeteroPlugin
from engine_template import TemplatePlugin
from engine_template.request import TemplateInferRequest
from onnx import TensorProto, helper

from engine import Core
from engine.errors import (
    Cancelled,
    DeviceError,
    DeviceNotFoundError,
    InputError,
    ModelError,
    OutOfMemoryError,
    PluginError,
    PropertyError,
    StateError,
    TypeInferenceError,
    UnsupportedError,
)
from engine.ir import Node, Parameter, f32
from engine.plugin_api import AsyncInferRequest, Config, ExecutableNetwork, Model, QueryResult, RefusalCause, Support

LIMIT = 60.0
Leaving = Callable[[str, Callable[[str], bool]], type[TemplatePlugin]]


def tensor(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str, device: str = "", **attributes: Any) -> onnx.NodeProto:
    made = helper.make_node(op, inputs.split(), outputs.split(), name=f"{op}_{outputs.split()[0]}", **attributes)
    if device:
        made.metadata_props.add(key="affinity", value=device)
    return made


def model(nodes: list[onnx.NodeProto], inputs: Any, outputs: Any, **constants: np.ndarray) -> onnx.ModelProto:
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def chain(*devices: str, shape: Any = (2, 3)) -> onnx.ModelProto:
    """x -> Neg -> Neg -> ... -> y, each on the next device."""
    names = ["x", *(f"v{i}" for i in range(len(devices) - 1)), "y"]
    nodes = [node("Neg", a, b, device) for a, b, device in zip(names, names[1:], devices, strict=False)]
    return model(nodes, [tensor("x", shape)], [tensor("y", shape)])


def run(request: AsyncInferRequest, inputs: Mapping[str, Any], is_async: bool) -> None:
    if is_async:
        request.start_async(inputs)
        request.wait(LIMIT)
    else:
        request.infer(inputs)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


# -- results ------------------------------------------------------------------------------------------------


def test_each_node_runs_where_the_user_says() -> None:
    network = Core().compile_model(chain("CPU", "TEMPLATE", "TEMPLATE", "CPU"), "HETERO:TEMPLATE,CPU")
    assert network.get_metric("SUBGRAPH_DEVICES") == ("CPU", "TEMPLATE", "CPU")
    assert network.get_metric("EXECUTION_DEVICES") == ("CPU", "TEMPLATE")
    np.testing.assert_array_equal(network({"x": X})["y"], X)


@pytest.mark.parametrize("is_async", [False, True])
def test_lengths_that_change_go_through_the_borders(is_async: bool) -> None:
    nodes = [
        node("Relu", "x", "a", "CPU"),
        node("Shape", "a", "s", start=0, end=1),
        node("Concat", "s rest", "to", axis=0),
        node("Reshape", "a to", "b", "TEMPLATE"),
        node("Neg", "b", "y", "CPU"),
    ]
    m = model(nodes, [tensor("x", ["n", 2, 3])], [tensor("y", ["n", 6])], rest=np.array([-1]))
    core = Core()
    network = core.compile_model(m, "HETERO:CPU,TEMPLATE")
    stream = BytesIO()
    network.export_model(stream)
    for given in (network, core.import_model(stream.getvalue())):
        request = given.create_infer_request()
        for n in (1, 4, 2, 0, 4):
            x = np.random.default_rng(n).normal(size=(n, 2, 3)).astype(np.float32)
            run(request, {"x": x}, is_async)
            np.testing.assert_array_equal(request.results["y"], -np.maximum(x, 0).reshape(n, 6))


def test_the_lengths_of_a_tensor_cross_without_it() -> None:
    """`a` stays on CPU; the part on TEMPLATE needs only its lengths."""
    nodes = [
        node("Relu", "x", "a", "CPU"),
        node("ReduceSum", "a", "total", "CPU", keepdims=0),
        node("Shape", "a", "s"),
        node("Size", "a", "count"),
        node("Expand", "total s", "b", "TEMPLATE"),
        node("Cast", "count", "c", to=TensorProto.FLOAT),
        node("Mul", "b c", "y", "TEMPLATE"),
    ]
    network = Core().compile_model(
        model(nodes, [tensor("x", ["n", 3])], [tensor("y", ["n", 3])]), "HETERO:CPU,TEMPLATE"
    )
    x = np.ones((5, 3), np.float32)
    np.testing.assert_array_equal(network({"x": x})["y"], np.full((5, 3), 225, np.float32))
    second = network.dataflow.networks[1]  # type: ignore[attr-defined]
    assert "a" not in {port.name for port in second.inputs}


def test_outputs_that_are_inputs_constants_or_wanted_twice() -> None:
    nodes = [node("Neg", "x", "a", "CPU"), node("Neg", "a", "b", "TEMPLATE"), node("Identity", "a", "a2")]
    ports = [tensor(name, [2, 3]) for name in ("x", "a", "a2", "b", "k")]
    m = model(nodes, ports[:1], ports, k=X + 1)
    request = Core().compile_model(m, "HETERO:CPU,TEMPLATE").create_infer_request()
    first, second = request.infer({"x": X}), request.infer({"x": X + 2})
    for result, x in ((first, X), (second, X + 2)):
        wanted = {"x": x, "a": -x, "a2": -x, "b": x, "k": X + 1}
        assert list(result) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_array_equal(result[name], value)
    arrays = list(second.values())
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


@pytest.mark.parametrize("constant", [False, True])
def test_a_model_without_operations(constant: bool) -> None:
    m = model([], [tensor("x", [2, 3])], [tensor("k" if constant else "x", [2, 3])], k=X)
    core = Core()
    network = core.compile_model(m, "HETERO:CPU,TEMPLATE")
    stream = BytesIO()
    network.export_model(stream)
    for given in (network, core.import_model(stream.getvalue())):
        request = given.create_infer_request()
        request.start_async({"x": X})
        request.wait(LIMIT)
        np.testing.assert_array_equal(request.results[0], X)


@pytest.mark.parametrize("devices", ["CPU,TEMPLATE", "TEMPLATE,CPU"])
def test_a_loop_that_may_not_run_at_all(devices: str) -> None:
    """Its scan outputs may have length 0, even if other values with the same symbol do not."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "a"], ["w"]),
            helper.make_node("Identity", ["w"], ["each"]),
            helper.make_node("Identity", ["keep"], ["on"]),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("keep", [], TensorProto.BOOL), tensor("v", ["n", 3])],
        [tensor("on", [], TensorProto.BOOL), tensor("w", ["n", 3]), tensor("each", ["n", 3])],
    )
    nodes = [
        node("Neg", "x", "a", "CPU"),
        node("Loop", "trips yes a", "last all", "TEMPLATE", body=body),
        node("ReduceSum", "all", "y", "CPU", keepdims=0),
        node("Sub", "last a", "z", "CPU"),
    ]
    inputs = [tensor("x", ["n", 3]), tensor("trips", [], TensorProto.INT64)]
    m = model(nodes, inputs, [tensor("y", []), tensor("z", ["n", 3])], yes=np.array(True))
    network = Core().compile_model(m, f"HETERO:{devices}")
    for trips in (2, 0, 1):
        result = network({"x": X, "trips": np.array(trips)})
        np.testing.assert_allclose(result["y"], -X.sum() * sum(range(2, trips + 2)))
        np.testing.assert_allclose(result["z"], -X * trips)


def test_sequences_and_text_cross() -> None:
    nodes = [
        node("SequenceConstruct", "x x", "s", "TEMPLATE"),
        node("SequenceAt", "s zero", "a", "CPU"),
        node("StringConcat", "t t", "u", "TEMPLATE"),
        node("Identity", "u", "w", "CPU"),
        node("Neg", "a", "y", "TEMPLATE"),
    ]
    outputs = [tensor("y", [2, 3]), tensor("w", [1], TensorProto.STRING)]
    m = model(nodes, [tensor("x", [2, 3]), tensor("t", [1], TensorProto.STRING)], outputs, zero=np.array(0))
    result = Core().compile_model(m, "HETERO:TEMPLATE,CPU")({"x": X, "t": np.array(["ab"], object)})
    np.testing.assert_array_equal(result["y"], -X)
    assert result["w"].tolist() == ["abab"]


def test_values_between_parts_are_bound_once() -> None:
    """The reader uses the memory that the writer fills, also in the next inference."""
    network = Core().compile_model(chain("CPU", "TEMPLATE"), "HETERO:CPU,TEMPLATE")
    request = network.create_infer_request_impl()
    first, second = request.requests  # type: ignore[attr-defined]
    for scale in (1, 2):
        request.infer({"x": X * scale})
        assert np.shares_memory(first.get_output_tensor(0), second.get_input_tensor(0))
        np.testing.assert_array_equal(second.get_input_tensor(0), -X * scale)


def test_results_outlive_the_next_inference() -> None:
    request = Core().compile_model(chain("CPU", "TEMPLATE", "CPU"), "HETERO:CPU,TEMPLATE").create_infer_request()
    first = request.infer({"x": X})["y"]
    own = np.empty_like(X)
    request.set_output_tensor("y", own)
    assert request.infer({"x": X + 1})["y"] is own
    np.testing.assert_array_equal(own, -X - 1)
    np.testing.assert_array_equal(first, -X)


# -- what overlaps ------------------------------------------------------------------------------------------


def meeting(name: str, barrier: threading.Barrier) -> type[TemplatePlugin]:
    """TEMPLATE as the device `name`, each of whose inferences waits until another has begun."""

    class Request(TemplateInferRequest):
        def start_pipeline(self) -> None:
            barrier.wait(LIMIT)
            super().start_pipeline()

    class Meeting(TemplatePlugin):
        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            network = super().compile_model(model, config)
            network.create_infer_request_impl = lambda: Request(network, network.program)  # type: ignore[attr-defined,method-assign,arg-type,return-value]
            return network

    Meeting.name = name
    return Meeting


@pytest.mark.parametrize("is_async", [False, True])
def test_subgraphs_that_need_nothing_of_each_other_overlap(is_async: bool) -> None:
    core, barrier = Core(), threading.Barrier(2)
    for name in ("LEFT", "RIGHT"):
        core.register_plugin(name, meeting(name, barrier))
    # Large enough to be worth a thread: the matrices take about a millisecond by the default costs.
    nodes = [
        node("MatMul", "x x", "a", "LEFT"),
        node("MatMul", "x x", "b", "RIGHT"),
        node("Add", "a b", "y", "CPU"),
    ]
    m = model(nodes, [tensor("x", [512, 512])], [tensor("y", [512, 512])])
    request = core.compile_model(m, "HETERO:LEFT,RIGHT,CPU").create_infer_request()
    x = np.eye(512, dtype=np.float32)
    for _ in range(3):
        run(request, {"x": x}, is_async)
        np.testing.assert_array_equal(request.results["y"], 2 * x)


def test_requests_in_flight_keep_every_device_busy() -> None:
    """While one request is on its second device, the next one is on the first; only the first and the last subgraph run
    alone.
    """
    core, barrier = Core(), threading.Barrier(2)
    for name in ("LEFT", "RIGHT"):
        core.register_plugin(name, meeting(name, barrier))
    network = core.compile_model(chain("LEFT", "RIGHT"), "HETERO:LEFT,RIGHT")
    requests = [network.create_infer_request() for _ in range(2)]
    requests[0].start_async({"x": X})
    requests[1].start_async({"x": X + 1})
    barrier.wait(LIMIT)  # the first inference of the first request meets this thread
    while not all(request.state.name == "IDLE" for request in requests):
        if barrier.n_waiting == 1 and requests[0].state.name == "IDLE":
            barrier.wait(LIMIT)  # the last subgraph, beside which nothing is left to run
    for request, x in zip(requests, (X, X + 1), strict=True):
        request.wait(LIMIT)
        np.testing.assert_array_equal(request.results["y"], x)


# -- what is recorded ---------------------------------------------------------------------------------------


def test_profiles_tell_of_subgraphs_and_their_nodes() -> None:
    network = Core().compile_model(chain("CPU", "TEMPLATE", "CPU"), "HETERO:CPU,TEMPLATE", {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.infer({"x": X})
    nodes = {node.name: node for node in request.profiling_info.nodes}
    subgraphs = [nodes[f"subgraph {number}"] for number in range(3)]
    assert [(each.op_type, each.status) for each in subgraphs] == [
        ("Subgraph", "CPU"),
        ("Subgraph", "TEMPLATE"),
        ("Subgraph", "CPU"),
    ]
    inner = nodes["Neg_v1"]
    assert subgraphs[1].start_ns <= inner.start_ns
    assert inner.start_ns + inner.duration_ns <= subgraphs[1].start_ns + subgraphs[1].duration_ns


def test_a_node_that_is_named_like_a_subgraph_has_a_name_of_its_own_in_profiles() -> None:
    m = chain("CPU", "TEMPLATE")
    m.graph.node[0].name = "subgraph 1"
    request = Core().compile_model(m, "HETERO:CPU,TEMPLATE", {"PERF_COUNT": True}).create_infer_request()
    request.infer({"x": X})
    names = [node.name for node in request.profiling_info.nodes]
    assert names == ["subgraph 0", "subgraph 1 (subgraph 0)", "subgraph 1", "Neg_y"]


def test_configuration_reaches_single_devices() -> None:
    config = {"DEVICE_PROPERTIES": {"CPU": {"COMPILE_EFFORT": "quick"}}, "NUM_STREAMS": 2}
    network = Core().compile_model(chain("CPU", "TEMPLATE"), "HETERO:CPU,TEMPLATE", config)
    first, second = network.dataflow.networks  # type: ignore[attr-defined]
    assert (first.get_config("COMPILE_EFFORT"), first.get_config("NUM_STREAMS")) == ("quick", 2)
    assert second.get_config("NUM_STREAMS") == 2


# -- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "config", "error", "told"),
    [
        ("HETERO", {}, DeviceNotFoundError, "none are listed"),
        ("HETERO:CPU,HETERO", {}, DeviceNotFoundError, "cannot run on"),
        ("HETERO:CPU,NOWHERE", {}, DeviceNotFoundError, "NOWHERE"),
        ("HETERO:CPU.7", {}, DeviceNotFoundError, "'7'"),
        ("HETERO:CPU", {"DEVICE_PROPERTIES": {"TEMPLATE": {}}}, PropertyError, "'TEMPLATE'"),
        ("HETERO:CPU", {"DEVICE_PROPERTIES": {"CPU": 3}}, PropertyError, "a mapping"),
        ("HETERO:CPU", {"DEVICE_PROPERTIES": {"CPU": {"NO_KEY": 3}}}, PropertyError, "NO_KEY"),
    ],
)
def test_wrong_lists_of_devices(device: str, config: Mapping[str, Any], error: type[Exception], told: str) -> None:
    for attempt in (Core().compile_model, Core().query_model):
        with pytest.raises(error, match=told):
            attempt(chain("", ""), device, config)


def test_the_list_that_is_suggested_can_be_used() -> None:
    """It has no AUTO and BATCH, which run models on other devices."""
    with pytest.raises(DeviceNotFoundError, match="best first: ") as caught:
        Core().compile_model(chain("", ""), "HETERO")
    suggested = str(caught.value).split('"')[1]
    assert Core().query_model(chain("", ""), suggested).is_supported
    assert not {"AUTO", "BATCH"} & set(suggested.partition(":")[2].split(","))


def test_hetero_within_hetero_under_another_name() -> None:
    core = Core()
    core.register_plugin("OTHER", HeteroPlugin)
    core.set_property("OTHER", {"DEVICE_PRIORITIES": "HETERO"})
    core.set_property("HETERO", {"DEVICE_PRIORITIES": "OTHER"})
    for device, listed in (("OTHER", "HETERO"), ("HETERO", "OTHER"), ("OTHER:CPU,HETERO", "HETERO")):
        for attempt in (core.compile_model, core.query_model):
            with pytest.raises(DeviceNotFoundError, match=f"'{listed}' .* under another name"):
                attempt(chain("", ""), device)
    network = core.compile_model(chain("CPU", "TEMPLATE"), "OTHER:CPU,TEMPLATE")
    stream = BytesIO()
    network.export_model(stream)
    np.testing.assert_array_equal(core.import_model(stream.getvalue())({"x": X})["y"], X)


def test_nodes_that_no_device_runs_are_all_named(leaving: Leaving) -> None:
    core = Core()
    for name in ("LEFT", "RIGHT"):
        core.register_plugin(name, leaving(name, lambda node: node in ("Neg_v0", "Neg_y")))
    with pytest.raises(UnsupportedError) as raised:
        core.compile_model(chain("", "", ""), "HETERO:LEFT,RIGHT")
    for part in ("2 of 3 nodes", "`Neg_v0`", "`Neg_y`", "LEFT: LEFT leaves", "RIGHT: RIGHT leaves"):
        assert part in str(raised.value)
    answer = core.query_model(chain("", "", ""), "HETERO:LEFT,RIGHT")
    assert [answer[name].level.value for name in ("Neg_v0", "Neg_v1", "Neg_y")] == ["refused", "native", "refused"]


def claiming(name: str, refuses_again: bool, what: str = "Neg_v1") -> type[TemplatePlugin]:
    """A device that claims everything, and refuses `what` when compiling or when queried again."""

    class Claiming(TemplatePlugin):
        asked = 0

        def query_model(self, model: Model, config: Config) -> QueryResult:
            Claiming.asked += 1
            answer = super().query_model(model, config)
            if Claiming.asked > 1 and refuses_again and what in answer.nodes:
                return QueryResult({**answer.nodes, what: Support.refused(RefusalCause.OP, "not after all")})
            return answer

        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            if any(node.friendly_name == what for node in model.ordered_nodes()):
                raise UnsupportedError(f"`{what}` is too much")
            return super().compile_model(model, config)

    Claiming.name = name
    return Claiming


def test_a_device_that_changes_its_mind_is_asked_once_more() -> None:
    core = Core()
    core.register_plugin("CLAIMING", claiming("CLAIMING", refuses_again=True))
    network = core.compile_model(chain("", "", ""), "HETERO:CLAIMING,CPU")
    assert network.get_metric("SUBGRAPH_DEVICES") == ("CLAIMING", "CPU", "CLAIMING")
    np.testing.assert_array_equal(network({"x": X})["y"], -X)


def test_devices_that_change_their_minds_in_turn() -> None:
    core = Core()
    for name, what in (("LEFT", "Neg_v0"), ("RIGHT", "Sin_v1")):
        core.register_plugin(name, claiming(name, refuses_again=True, what=what))
    nodes = [node("Neg", "x", "v0"), node("Sin", "v0", "v1"), node("Neg", "v1", "y")]
    m = model(nodes, [tensor("x", (2, 3))], [tensor("y", (2, 3))])
    network = core.compile_model(m, "HETERO:LEFT,RIGHT,CPU")
    assert network.get_metric("SUBGRAPH_DEVICES") == ("RIGHT", "LEFT")


def test_two_devices_that_refuse_in_the_same_round(leaving: Leaving) -> None:
    core = Core()
    left = claiming("LEFT", refuses_again=True, what="Neg_v0")
    core.register_plugin("LEFT", type("Left", (leaving("LEFT", lambda name: name == "Sin_v1"), left), {"name": "LEFT"}))
    core.register_plugin("RIGHT", claiming("RIGHT", refuses_again=True, what="Sin_v1"))
    nodes = [node("Neg", "x", "v0"), node("Sin", "v0", "v1"), node("Neg", "v1", "y")]
    m = model(nodes, [tensor("x", (2, 3))], [tensor("y", (2, 3))])
    network = core.compile_model(m, "HETERO:LEFT,RIGHT,CPU")
    assert network.get_metric("SUBGRAPH_DEVICES") == ("RIGHT", "CPU", "LEFT")


def test_a_device_that_claims_and_refuses_is_an_error() -> None:
    core = Core()
    core.register_plugin("CLAIMING", claiming("CLAIMING", refuses_again=False))
    with pytest.raises(UnsupportedError, match=r"subgraph 0 on CLAIMING .*claims every node.*too much"):
        core.compile_model(chain("", "", ""), "HETERO:CLAIMING,CPU")


def test_a_device_that_is_gone_when_it_shall_compile() -> None:
    core = Core()

    class Vanishing(TemplatePlugin):
        name = "VANISHING"
        is_there = True

        def query_model(self, model: Model, config: Config) -> QueryResult:
            Vanishing.is_there = False
            return super().query_model(model, config)

        def device_ids(self) -> tuple[str, ...]:
            return ("0",) if Vanishing.is_there else ()

    core.register_plugin("VANISHING", Vanishing)
    with pytest.raises(DeviceNotFoundError, match=r"subgraph 0 on VANISHING .*is no longer available"):
        core.compile_model(chain("", ""), "HETERO:VANISHING,CPU")


def failing(name: str, where: str, error: Exception | type[Exception], failures: int = 1) -> type[TemplatePlugin]:
    """TEMPLATE as the device `name`, which raises while it compiles, or in its first inferences."""
    left = [failures]

    class Request(TemplateInferRequest):
        def start_pipeline(self) -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise error
            super().start_pipeline()

    class Failing(TemplatePlugin):
        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            if where == "compile":
                raise error
            network = super().compile_model(model, config)
            network.create_infer_request_impl = lambda: Request(network, network.program)  # type: ignore[attr-defined,method-assign,arg-type,return-value]
            return network

    Failing.name = name
    return Failing


def test_a_device_that_fails_to_compile() -> None:
    core = Core()
    core.register_plugin("FAILING", failing("FAILING", "compile", RuntimeError("out of tape")))
    with pytest.raises(PluginError, match=r"subgraph 1 on FAILING \(`Neg_y`\).*out of tape"):
        core.compile_model(chain("CPU", "FAILING"), "HETERO:CPU,FAILING")


class _OwnError(TypeInferenceError):
    """A plugin's own error, whose constructor HETERO cannot know."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"{node} is not for me")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelError("out of tape"), ModelError),
        (OutOfMemoryError("out of tape"), OutOfMemoryError),
        (_OwnError(Parameter(f32, [1], "out of tape")), TypeInferenceError),
    ],
)
def test_the_class_of_an_error_of_compiling_survives(error: Exception, kind: type[Exception]) -> None:
    """The model's fault is not blamed on the device."""
    core = Core()
    core.register_plugin("FAILING", failing("FAILING", "compile", error))
    with pytest.raises(kind, match=r"subgraph 1 on FAILING \(`Neg_y`\).*out of tape") as caught:
        core.compile_model(chain("CPU", "FAILING"), "HETERO:CPU,FAILING")
    assert type(caught.value) is kind


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("on fire"), DeviceError),
        (InputError("on fire"), InputError),
        (StateError("on fire"), StateError),
    ],
)
def test_a_device_that_fails_to_infer(is_async: bool, error: Exception, kind: type[Exception]) -> None:
    core = Core()
    core.register_plugin("FAILING", failing("FAILING", "infer", error))
    network = core.compile_model(chain("CPU", "FAILING", "CPU"), "HETERO:CPU,FAILING")
    request = network.create_infer_request()
    with pytest.raises(kind, match=r"subgraph 1 of 3 \(1 nodes\) failed on FAILING: .*on fire"):
        run(request, {"x": X}, is_async)
    np.testing.assert_array_equal(request.infer({"x": X})["y"], -X)


def test_an_error_ends_what_was_started_early() -> None:
    core, barrier = Core(), threading.Barrier(2)
    core.register_plugin("LEFT", failing("LEFT", "infer", RuntimeError("on fire"), failures=3))
    core.register_plugin("RIGHT", failing("RIGHT", "infer", RuntimeError("never"), failures=0))
    nodes = [
        node("MatMul", "x x", "a", "LEFT"),
        node("MatMul", "x x", "b", "RIGHT"),
        node("Add", "a b", "y", "CPU"),
    ]
    m = model(nodes, [tensor("x", [512, 512])], [tensor("y", [512, 512])])
    request = core.compile_model(m, "HETERO:LEFT,RIGHT,CPU").create_infer_request()
    x = np.eye(512, dtype=np.float32)
    for _ in range(3):
        with pytest.raises(DeviceError, match="on fire"):
            request.infer({"x": x})
    np.testing.assert_array_equal(request.infer({"x": x})["y"], 2 * x)
    assert not barrier.broken


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("starts_early", [False, True])
def test_failures_keep_nothing_alive(is_async: bool, starts_early: bool) -> None:
    """The failed request, its network and inputs are freed without a garbage collection."""
    core = Core()
    for name in ("LEFT", "RIGHT"):
        core.register_plugin(name, failing(name, "infer", RuntimeError))
    nodes = [
        node("MatMul", "x x", "a", "LEFT"),
        node("MatMul", "x x" if starts_early else "a a", "b", "RIGHT"),
        node("Add", "a b", "y", "CPU"),
    ]
    m = model(nodes, [tensor("x", [512, 512])], [tensor("y", [512, 512])])
    request = core.compile_model(m, "HETERO:LEFT,RIGHT,CPU").create_infer_request()
    x = np.eye(512, dtype=np.float32)
    gc.collect()
    gc.disable()
    try:
        if is_async:
            request.start_async({"x": x})
        with pytest.raises(DeviceError, match="RuntimeError"):
            request.wait(LIMIT) if is_async else request.infer({"x": x})
        kept = [weakref.ref(request), weakref.ref(request.network), weakref.ref(x)]
        del request, x
        deadline = time.monotonic() + 5
        while any(ref() is not None for ref in kept) and time.monotonic() < deadline:
            time.sleep(0.001)  # the thread that ran the last stage lets go of it
        assert [type(ref()) for ref in kept] == [type(None)] * 3
    finally:
        gc.enable()


def test_a_network_keeps_no_arrays_after_an_inference() -> None:
    network = Core().compile_model(chain("CPU", "TEMPLATE", "CPU", shape=("n", 3)), "HETERO:CPU,TEMPLATE")
    for _ in range(2):
        x = X.copy()
        result = network({"x": x})["y"]
        np.testing.assert_array_equal(result, -X)
        kept = weakref.ref(x), weakref.ref(result)
        del x, result
        assert [ref() for ref in kept] == [None, None]


def test_a_cancellation_that_comes_last_ends_with_its_inference() -> None:
    """A cancellation after the last check must neither affect the next inference nor be repeated forever."""
    network = Core().compile_model(chain("CPU", "TEMPLATE"), "HETERO:CPU,TEMPLATE")
    request = network.create_infer_request_impl()
    request.infer({"x": X})
    request.request_cancel(Cancelled("late"))
    kept = weakref.ref(request)
    np.testing.assert_array_equal(request.infer({"x": X})["y"], X)
    request.request_cancel(Cancelled("late"))
    del request
    assert kept() is None


def test_cancelling_reaches_the_part_that_runs() -> None:
    """An endless loop on the second device."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["keep"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("keep", [], TensorProto.BOOL), tensor("v", [2, 3])],
        [tensor("on", [], TensorProto.BOOL), tensor("w", [2, 3])],
    )
    nodes = [node("Neg", "x", "a", "CPU"), node("Loop", "trips yes a", "y", "TEMPLATE", body=body)]
    inputs = [tensor("x", [2, 3]), tensor("trips", [], TensorProto.INT64)]
    m = model(nodes, inputs, [tensor("y", [2, 3])], yes=np.array(True))
    request = Core().compile_model(m, "HETERO:CPU,TEMPLATE").create_infer_request()
    for is_async in (True, False):
        endless = {"x": X, "trips": np.array(2**62)}
        timer = threading.Timer(0.2, request.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            run(request, endless, is_async)
        timer.join()
    np.testing.assert_array_equal(request.infer({"x": X, "trips": np.array(3)})["y"], -X)


def test_many_small_parts_of_a_device_share_a_thread_and_keep_their_order() -> None:
    """Many threads of Python code only wait for each other, which took longer than compiling the parts."""
    threads: dict[str, set[int]] = {"TEMPLATE": set(), "OTHER": set()}

    class Watched(TemplatePlugin):
        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            threads[self.name].add(threading.get_ident())
            return super().compile_model(model, config)

    core = Core()
    core.unload_plugin("TEMPLATE")
    for name in threads:
        core.register_plugin(name, Watched)
    network = core.compile_model(chain(*["TEMPLATE", "OTHER"] * 10), "HETERO:TEMPLATE,OTHER")
    assert network.get_metric("SUBGRAPH_DEVICES") == ("TEMPLATE", "OTHER") * 10
    np.testing.assert_array_equal(network({"x": X})["y"], X)
    assert [len(used) for used in threads.values()] == [1, 1]


def test_creating_the_plugin_imports_no_partitioner() -> None:
    """Otherwise, every application that lists its devices waits for it."""
    program = """
import sys
from engine import Core
print("HETERO" in Core().get_versions(), "engine_hetero.network.network" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert output.split() == ["True", "False"]
