"""Batches as users meet them: what is collected, what each request gets, and whose error is whose."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_batch.networks import difference
from engine_template import TemplatePlugin
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest
from onnx import TensorProto, helper

from engine import AsyncInferQueue, Core
from engine.errors import (
    BlobIncompatibleError,
    Cancelled,
    DeadlineExceeded,
    DeviceError,
    DeviceNotFoundError,
    InferError,
    InputError,
    PropertyError,
    UnsupportedError,
)
from engine.ir import bf16
from engine.passes import MakeStateful
from engine.plugin_api import Config, ExecutableNetwork, Model, QueryResult, RefusalCause, Support, SyncInferRequest
from engine.testing.models import light_input, light_model

LIMIT = 60.0
LONG = 3_600_000
"""Milliseconds that no test waits for: batches run because they are full, or not at all."""


def tensor(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[onnx.NodeProto], inputs: Any, outputs: Any, **constants: np.ndarray) -> onnx.ModelProto:
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def product(batch: Any = 1) -> onnx.ModelProto:
    """y = x @ w: the same w for all rows."""
    weight = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return model([node], [tensor("x", (batch, 3))], [tensor("y", (batch, 4))], w=weight)


def weight_of(proto: onnx.ModelProto) -> np.ndarray:
    return onnx.numpy_helper.to_array(proto.graph.initializer[0])


def rows(count: int, length: int = 1) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.standard_normal((length, 3)).astype(np.float32) for _ in range(count)]


def started(network: Any, inputs: list[np.ndarray]) -> list[Any]:
    requests = [network.create_infer_request() for _ in inputs]
    for request, x in zip(requests, inputs, strict=True):
        request.start_async({"x": x})
    return requests


def statistics(network: Any) -> dict[str, int]:
    return dict(network.get_metric("BATCH_STATISTICS"))


# -- a device that tells what it runs, and fails on demand --------------------------------------------------


class Watched:
    """The lengths of the batches that ran, and what makes one fail: a value in its input."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.takes_any_batch = True
        self.loses_rows = False


class _Request(TemplateInferRequest):
    watched: Watched

    def start_pipeline(self) -> None:
        assert self.watched.gate.wait(LIMIT)
        self.watched.lengths.append(len(self.inputs[0]))
        if (self.inputs[0] == 666).any():
            raise DeviceError("a request has the value 666")
        super().start_pipeline()

    def store_output(self, index: int, value: Any, *, copy: bool = True) -> None:
        super().store_output(index, value[:-1] if self.watched.loses_rows else value, copy=copy)


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def core(watched: Watched) -> Core:
    """A core with the device WATCHED."""

    class Network(TemplateNetwork):
        def create_infer_request_impl(self) -> SyncInferRequest:
            request = _Request(self, self.program)
            request.watched = watched
            return request

    class Device(TemplatePlugin):
        name = "WATCHED"

        def query_model(self, model: Model, config: Config) -> QueryResult:
            answer = super().query_model(model, config)
            if watched.takes_any_batch or all(p.type.shape.is_static for p in model.parameters):
                return answer
            refused = Support.refused(RefusalCause.DYNAMIC_SHAPE, "only static shapes")
            return QueryResult(dict.fromkeys(answer.nodes, refused))

        def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
            if not watched.takes_any_batch and not all(p.type.shape.is_static for p in model.parameters):
                raise UnsupportedError("only static shapes")
            return Network.compiled(self, config, model)

    made = Core()
    made.register_plugin("WATCHED", Device)
    return made


def compiled(core: Core, proto: Any, device: str = "BATCH:WATCHED(4)", timeout: float = LONG, **config: Any) -> Any:
    return core.compile_model(proto, device, {"BATCH_TIMEOUT": timeout, "BATCH_CHECK": False, **config})


# -- collecting ---------------------------------------------------------------------------------------------


def test_requests_run_in_full_batches(core: Core, watched: Watched) -> None:
    proto = product()
    network = compiled(core, proto)
    inputs = rows(8)
    requests = started(network, inputs)
    for request, x in zip(requests, inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(proto), rtol=1e-5, atol=1e-6)
    assert watched.lengths == [4, 4]
    assert statistics(network) == {"full": 2, "partial": 0, "repeated": 0, "requests": 8}
    assert {size: count for size, (count, _) in network.get_metric("BATCH_RUNS").items()} == {"4": 2}
    assert network.get_metric("MAX_BATCH_SIZE") == 4
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 4
    assert network.get_metric("EXECUTION_DEVICES") == ("WATCHED",)


@pytest.mark.parametrize("takes_any_batch", [True, False])
def test_a_batch_that_is_not_full_runs_when_the_time_is_over(
    core: Core, watched: Watched, takes_any_batch: bool
) -> None:
    watched.takes_any_batch = takes_any_batch
    proto = product()
    network = compiled(core, proto, timeout=50)
    inputs = rows(3)
    for request, x in zip(started(network, inputs), inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(proto), rtol=1e-5, atol=1e-6)
    assert sum(watched.lengths) == 3  # nothing is padded
    assert 4 not in watched.lengths
    assert takes_any_batch or watched.lengths == [1, 1, 1]
    assert network.get_metric("PARTIAL_BATCHES") == ("one network" if takes_any_batch else "one by one")


def test_a_synchronous_inference_waits_no_longer_than_the_time_limit(core: Core, watched: Watched) -> None:
    network = compiled(core, product(), timeout=1)
    x = rows(1)[0]
    np.testing.assert_allclose(network({"x": x})["y"], x @ weight_of(product()), rtol=1e-5, atol=1e-6)
    assert watched.lengths == [1]


def test_threads_that_call_at_once_share_a_batch(core: Core, watched: Watched) -> None:
    network = compiled(core, product())
    inputs = rows(4)
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i, x=x: results.update({i: network(x)["y"]})) for i, x in enumerate(inputs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    for i, x in enumerate(inputs):
        np.testing.assert_allclose(results[i], x @ weight_of(product()), rtol=1e-5, atol=1e-6)
    assert watched.lengths == [4]


def test_futures_coroutines_and_queues_share_batches(core: Core, watched: Watched) -> None:
    network = compiled(core, product())
    inputs = rows(4)
    expected = [x @ weight_of(product()) for x in inputs]
    futures = [network.submit(x) for x in inputs]
    assert all(
        np.allclose(f.result(LIMIT)["y"], e, rtol=1e-5, atol=1e-6) for f, e in zip(futures, expected, strict=True)
    )

    async def gather() -> list[Any]:
        return list(await asyncio.gather(*(network.infer_async(x) for x in inputs)))

    assert all(
        np.allclose(r["y"], e, rtol=1e-5, atol=1e-6) for r, e in zip(asyncio.run(gather()), expected, strict=True)
    )
    found: dict[int, Any] = {}
    with AsyncInferQueue(network, callback=lambda r, i: found.update({i: r.results["y"].copy()})) as queue:
        for i, x in enumerate(inputs):
            queue.start_async(x, i)
    assert all(np.allclose(found[i], e, rtol=1e-5, atol=1e-6) for i, e in enumerate(expected))
    assert watched.lengths == [4, 4, 4]


def test_requests_with_other_shapes_are_not_mixed(core: Core, watched: Watched) -> None:
    node = helper.make_node("Neg", ["x"], ["y"], name="neg")
    network = compiled(core, model([node], [tensor("x", (1, "W"))], [tensor("y", (1, "W"))]), "BATCH:WATCHED(2)")
    inputs = [np.full((1, width), width, np.float32) for width in (3, 5, 3, 5)]
    for request, x in zip(started(network, inputs), inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_array_equal(request.results["y"], -x)
    assert watched.lengths == [2, 2]


def test_requests_of_any_batch(core: Core, watched: Watched) -> None:
    """For a model whose batch is not fixed, the number counts rows; a request that has more runs alone."""
    proto = product("N")
    network = compiled(core, proto, timeout=50)
    inputs = [*rows(1, 2), *rows(1, 1), *rows(1, 3), *rows(1, 9)]
    for request, x in zip(started(network, inputs), inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(proto), rtol=1e-5, atol=1e-6)
    assert watched.lengths == [3, 3, 9] or sorted(watched.lengths) == [3, 3, 9]


def test_a_fixed_batch_of_several_rows(core: Core, watched: Watched) -> None:
    proto = product(2)
    network = compiled(core, proto, "BATCH:WATCHED(3)")
    inputs = rows(3, 2)
    for request, x in zip(started(network, inputs), inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(proto), rtol=1e-5, atol=1e-6)
    assert watched.lengths == [6]


def test_output_tensors_and_results_belong_to_their_request(core: Core) -> None:
    network = compiled(core, product())
    inputs = rows(4)
    requests = [network.create_infer_request() for _ in inputs]
    buffers = [np.zeros((1, 4), np.float32) for _ in inputs]
    for request, x, buffer in zip(requests, inputs, buffers, strict=True):
        request.set_output_tensor("y", buffer)
        request.start_async(x)
    for request, x, buffer in zip(requests, inputs, buffers, strict=True):
        request.wait(LIMIT)
        assert request.results["y"] is buffer
        np.testing.assert_allclose(buffer, x @ weight_of(product()), rtol=1e-5, atol=1e-6)
    again = started(network, inputs)
    for request in again:
        request.wait(LIMIT)
    results = [request.results["y"] for request in again]
    assert all(result.base is None for result in results)  # no request keeps the results of others in memory


# -- errors, cancellation -----------------------------------------------------------------------------------


def test_a_device_that_loses_a_row_gives_no_request_the_row_of_another(core: Core, watched: Watched) -> None:
    network = compiled(core, product("N"), timeout=20)
    watched.loses_rows = True
    for request in started(network, rows(2)):
        with pytest.raises(DeviceError, match="its first dimension is not the batch"):
            request.wait(LIMIT)


def test_only_the_request_that_is_to_blame_fails(core: Core, watched: Watched) -> None:
    proto = product()
    network = compiled(core, proto)
    inputs = rows(4)
    inputs[2] = np.full((1, 3), 666, np.float32)
    requests = started(network, inputs)
    for number, (request, x) in enumerate(zip(requests, inputs, strict=True)):
        if number == 2:
            with pytest.raises(DeviceError, match="666"):
                request.wait(LIMIT)
            continue
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(proto), rtol=1e-5, atol=1e-6)
    assert watched.lengths == [4, 1, 1, 1, 1]
    assert statistics(network)["repeated"] == 1
    ((size, (count, nanoseconds)),) = network.get_metric("BATCH_RUNS").items()
    assert (size, count) == ("1", 3)  # neither the batch that failed, nor the request
    assert nanoseconds > 0


@pytest.mark.parametrize(("timeout", "count"), [(LONG, 2), (5, 1)], ids=["full", "partial"])
def test_without_a_thread_all_requests_of_a_batch_fail(
    core: Core, monkeypatch: pytest.MonkeyPatch, timeout: int, count: int
) -> None:
    """None of them waits forever, whether a request or the timer should have started the batch."""
    network = compiled(core, product(), "BATCH:WATCHED(2)", timeout)

    def refuse(task: object) -> None:
        raise InferError("cannot start a thread")

    with monkeypatch.context() as context:
        context.setattr(network._collector._executor, "submit", refuse)  # type: ignore[attr-defined]
        for request in started(network, rows(count)):
            with pytest.raises(InferError, match="cannot start a thread"):
                request.wait(LIMIT)
    inputs = rows(2)
    for request, x in zip(started(network, inputs), inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(product()), rtol=1e-5, atol=1e-6)


def test_a_wrong_input_fails_at_once_and_alone(core: Core) -> None:
    network = compiled(core, product())
    requests = started(network, rows(3))
    with pytest.raises(InputError):
        network.create_infer_request().start_async({"x": np.zeros((1, 7), np.float32)})
    requests += started(network, rows(1))
    for request in requests:
        request.wait(LIMIT)


def test_a_cancelled_request_leaves_the_batch(core: Core, watched: Watched) -> None:
    network = compiled(core, product())
    inputs = rows(5)
    requests = started(network, inputs[:3])
    requests[1].cancel()
    with pytest.raises(Cancelled):
        requests[1].wait(LIMIT)
    requests += started(network, inputs[3:])
    for number in (0, 2, 3, 4):
        requests[number].wait(LIMIT)
        np.testing.assert_allclose(
            requests[number].results["y"], inputs[number] @ weight_of(product()), rtol=1e-5, atol=1e-6
        )
    assert watched.lengths == [4]
    requests[1].start_async(inputs[1])  # it is usable again
    requests[1].cancel()


def test_a_request_that_is_cancelled_while_its_batch_runs_ends_at_once(core: Core, watched: Watched) -> None:
    network = compiled(core, product(), "BATCH:WATCHED(2)")
    watched.gate.clear()
    inputs = rows(2)
    requests = started(network, inputs)
    requests[0].cancel()
    network.create_infer_request()
    watched.gate.set()
    with pytest.raises(Cancelled):
        requests[0].wait(LIMIT)
    requests[1].wait(LIMIT)
    np.testing.assert_allclose(requests[1].results["y"], inputs[1] @ weight_of(product()), rtol=1e-5, atol=1e-6)


def test_a_deadline_of_one_request_does_not_affect_others(core: Core) -> None:
    network = compiled(core, product(), "BATCH:WATCHED(2)")
    late, other, third = (network.create_infer_request() for _ in range(3))
    inputs = rows(3)
    late.start_async(inputs[0], deadline=0.05)  # no second request comes in time
    with pytest.raises(DeadlineExceeded):
        late.wait(LIMIT)
    other.start_async(inputs[1])
    third.start_async(inputs[2])
    for request, x in ((other, inputs[1]), (third, inputs[2])):
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(product()), rtol=1e-5, atol=1e-6)


def test_a_request_may_be_started_in_its_callback(core: Core) -> None:
    network = compiled(core, product(), "BATCH:WATCHED(2)")
    left, done = [6], threading.Event()
    lock = threading.Lock()

    def again(request: Any, error: Any) -> None:
        with lock:
            left[0] -= 1
            if left[0] <= 0:
                done.set()
            may_go_on = left[0] > 1
        if may_go_on:
            request.start_async()

    requests = [network.create_infer_request() for _ in range(2)]
    for request, x in zip(requests, rows(2), strict=True):
        request.set_callback(again)
        request.set_input_tensor("x", x)
    for request in requests:
        request.start_async()
    assert done.wait(LIMIT)


# -- models that cannot be batched --------------------------------------------------------------------------


def no_input_batch() -> onnx.ModelProto:
    node = helper.make_node("Mul", ["x", "scale"], ["y"], name="scaling")
    return model([node], [tensor("x", (1, 3)), tensor("scale", ())], [tensor("y", (1, 3))])


def no_output_batch() -> onnx.ModelProto:
    node = helper.make_node("ReduceMean", ["x"], ["loss"], name="mean", keepdims=0)
    return model([node], [tensor("x", (1, 3))], [tensor("loss", ())])


def fixed_by_a_constant() -> onnx.ModelProto:
    node = helper.make_node("Expand", ["x", "shape"], ["y"], name="wide")
    return model([node], [tensor("x", (1, 1))], [tensor("y", (2, 6))], shape=np.array([2, 6], np.int64))


def random() -> onnx.ModelProto:
    node = helper.make_node("RandomUniformLike", ["x"], ["y"], name="noise")
    return model([node], [tensor("x", (1, 3))], [tensor("y", (1, 3))])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (no_input_batch, "has no batch: input `scale` is f32"),
        (no_output_batch, "output `loss`"),
        (fixed_by_a_constant, "`y`|`wide`"),
        (random, "`noise`.*random"),
    ],
)
def test_a_model_without_a_batch_is_refused(core: Core, make: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        compiled(core, make())
    assert "\n" not in str(caught.value)
    answer = core.query_model(make(), "BATCH:WATCHED(4)")
    assert not answer.is_supported


def test_a_stateful_model_is_refused(core: Core) -> None:
    nodes = [
        helper.make_node("Add", ["past", "x"], ["present"], name="add"),
        helper.make_node("Neg", ["present"], ["y"]),
    ]
    proto = model(
        nodes, [tensor("x", (1, 3)), tensor("past", (1, 3))], [tensor("y", (1, 3)), tensor("present", (1, 3))]
    )
    made = core.read_model(proto)
    MakeStateful({"past": "present"}).run_on_model(made)
    with pytest.raises(UnsupportedError, match="keeps values between the inferences of a request"):
        compiled(core, made)


def across(op: str, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], name="across", **attributes)
    return model([node], [tensor("x", (1, 3))], [tensor("y", (1, 3))])


def largest_of(name: str) -> list[onnx.NodeProto]:
    """The largest element of a tensor, by a vector of all: its type does not tell where the batch is."""
    return [
        helper.make_node("Constant", [], ["all"], value_ints=[-1]),
        helper.make_node("Reshape", [name, "all"], ["flat"]),
        helper.make_node("ReduceMax", ["flat"], ["largest"], keepdims=0),
    ]


def scaled_by_the_largest(width: Any = 3) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Abs", ["x"], ["size"]),
        *largest_of("size"),
        helper.make_node("Div", ["x", "largest"], ["y"], name="across"),
    ]
    return model(nodes, [tensor("x", (1, width))], [tensor("y", (1, width))])


@pytest.mark.parametrize("proto", [across("Softmax", axis=0), scaled_by_the_largest()], ids=["softmax", "scale"])
@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_a_model_whose_requests_affect_each_other_is_refused(proto: onnx.ModelProto, device: str) -> None:
    with pytest.raises(UnsupportedError, match="affect each other"):
        Core().compile_model(proto, f"BATCH:{device}(4)")


def test_with_unknown_lengths_the_first_batch_is_checked(core: Core) -> None:
    network = compiled(core, scaled_by_the_largest("W"), "BATCH:WATCHED(2)", BATCH_CHECK=True)
    requests = started(network, [np.ones((1, 3), np.float32), np.full((1, 3), 5, np.float32)])
    for request in requests:
        with pytest.raises(UnsupportedError, match="requests in a batch affect each other: output `y`"):
            request.wait(LIMIT)


def test_equal_requests_do_not_prove_that_requests_are_apart(core: Core) -> None:
    """Such as the requests that warm a network up, which have a common largest value, too."""
    network = compiled(core, scaled_by_the_largest("W"), "BATCH:WATCHED(2)", BATCH_CHECK=True)
    ones = np.ones((1, 3), np.float32)
    for request in started(network, [ones, ones]):
        request.wait(LIMIT)
    for request in started(network, [ones, ones * 5]):
        with pytest.raises(UnsupportedError, match="requests in a batch affect each other: output `y`"):
            request.wait(LIMIT)


def reduced_over_all() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Div", ["x", "largest"], ["y"], name="across"),
    ]
    return model(nodes, [tensor("x", (1, 3))], [tensor("y", (1, 3))])


def turned() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Softmax", ["t"], ["s"], axis=1),  # over the batch
        helper.make_node("Transpose", ["s"], ["y"], perm=[1, 0]),
    ]
    return model(nodes, [tensor("x", (1, 3))], [tensor("y", (1, 3))])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (reduced_over_all, "ReduceMax `.*` computes along dimension 0 of input 0, the batch"),
        (turned, "Softmax `.*` computes along dimension 1 of input 0, the batch"),
    ],
    ids=["reduced", "turned"],
)
def test_what_operators_compute_along_the_batch_is_refused_before_it_runs(core: Core, make: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        core.compile_model(make(), "BATCH:CPU(8)", {"BATCH_CHECK": False})


@pytest.mark.parametrize("classes", [2, 5])
def test_a_single_integer_per_request_tells_that_requests_affect_each_other(core: Core, classes: int) -> None:
    nodes = [
        helper.make_node("Constant", [], ["all"], value_ints=[-1]),
        helper.make_node("Reshape", ["x", "all"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["mean"], keepdims=0),  # also of the other requests
        helper.make_node("Sub", ["x", "mean"], ["difference"]),
        helper.make_node("Abs", ["difference"], ["distance"]),
        helper.make_node("ArgMax", ["distance"], ["y"], axis=1, keepdims=0),
    ]
    proto = model(nodes, [tensor("x", (1, classes))], [tensor("y", (1,), TensorProto.INT64)])
    with pytest.raises(UnsupportedError, match="affect each other: output `y`"):
        core.compile_model(proto, "BATCH:CPU(8)")


def test_integers_are_checked_with_the_first_real_batch(core: Core) -> None:
    """Random ones are 0 and 1, so that all requests have the same largest value."""
    nodes = [
        *largest_of("x"),
        helper.make_node("Add", ["x", "largest"], ["y"], name="across"),
    ]
    proto = model(nodes, [tensor("x", (1, 32), TensorProto.INT64)], [tensor("y", (1, 32), TensorProto.INT64)])
    network = core.compile_model(proto, "BATCH:CPU(2)", {"BATCH_TIMEOUT": LONG})
    futures = [network.submit({"x": np.full((1, 32), number)}) for number in (3, 7)]
    for future in futures:
        with pytest.raises(UnsupportedError, match="affect each other: output `y`"):
            future.result(LIMIT)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_scale_of_quantization_over_the_batch_is_noticed(core: Core, kind: int) -> None:
    """Also for results that are as coarse as 16-bit numbers."""
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Abs", ["wide"], ["size"]),
        *largest_of("size"),
        helper.make_node("Constant", [], ["codes"], value_float=127.0),
        helper.make_node("Div", ["largest", "codes"], ["scale"]),
        helper.make_node("Constant", [], ["zero"], value=helper.make_tensor("zero", TensorProto.INT8, [], [0])),
        helper.make_node("QuantizeLinear", ["wide", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["restored"]),
        helper.make_node("Cast", ["restored"], ["y"], to=kind),
    ]
    proto = model(nodes, [tensor("x", (1, 8), kind)], [tensor("y", (1, 8), kind)])
    with pytest.raises(UnsupportedError, match="affect each other: output `y`"):
        core.compile_model(proto, "BATCH:CPU(4)")


def test_a_model_with_classes_as_outputs_runs_in_batches(core: Core) -> None:
    proto = model(
        [helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)],
        [tensor("x", (1, 3))],
        [tensor("y", (1,), TensorProto.INT64)],
    )
    network = core.compile_model(proto, "BATCH:CPU(4)", {"BATCH_TIMEOUT": LONG})
    futures = [network.submit({"x": np.eye(3, dtype=np.float32)[number % 3][None]}) for number in range(4)]
    assert [int(future.result(LIMIT)["y"][0]) for future in futures] == [0, 1, 2, 0]


# -- results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("squeezenet", "TEMPLATE"),
        ("squeezenet", "CPU"),
        pytest.param("resnet50", "TEMPLATE", marks=pytest.mark.slow),
        pytest.param("resnet50", "CPU", marks=pytest.mark.slow),
    ],
)
def test_real_networks_give_the_results_of_single_requests(name: str, device: str) -> None:
    core = Core()
    proto, first = light_model(name), light_input(name)
    generator = np.random.default_rng(3)
    inputs = [{k: v * generator.uniform(0.5, 1, v.shape).astype(v.dtype) for k, v in first.items()} for _ in range(3)]
    alone = core.compile_model(proto, device)
    network = core.compile_model(proto, f"BATCH:{device}(2)", {"BATCH_TIMEOUT": 20})
    futures = [network.submit(x) for x in inputs]
    for future, x in zip(futures, inputs, strict=True):
        expected = alone(x)[0]
        tolerance = np.sqrt(np.finfo(np.float32).eps) * np.abs(expected).max()
        np.testing.assert_allclose(future.result(LIMIT)[0], expected, rtol=0, atol=tolerance)


def test_a_network_is_exported_and_imported(core: Core, tmp_path: Path) -> None:
    network = compiled(core, product())
    network.export_model(tmp_path / "network.blob")
    again = core.import_model(tmp_path / "network.blob")
    inputs = rows(4)
    for request, x in zip(started(again, inputs), inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_allclose(request.results["y"], x @ weight_of(product()), rtol=1e-5, atol=1e-6)
    assert statistics(again)["full"] == 1


def test_a_blob_is_not_imported_for_another_size(core: Core, tmp_path: Path) -> None:
    compiled(core, product(), "BATCH:TEMPLATE(4)").export_model(tmp_path / "network.blob")
    with pytest.raises(BlobIncompatibleError, match="for batches of 4 requests, not of 2; import it as BATCH"):
        core.import_model(tmp_path / "network.blob", "BATCH:TEMPLATE(2)")
    again = core.import_model(tmp_path / "network.blob", "BATCH:TEMPLATE")
    assert again.get_metric("MAX_BATCH_SIZE") == 4


def test_the_cache_folder_keeps_the_networks_of_the_device(tmp_path: Path) -> None:
    core, config = Core(), {"CACHE_DIR": str(tmp_path / "cache")}
    first = core.compile_model(product(), "BATCH:CPU(4)", config)
    second = core.compile_model(product(), "BATCH:CPU(4)", config)
    assert not first.get_metric("LOADED_FROM_CACHE")
    assert second.get_metric("LOADED_FROM_CACHE")


def test_a_reshape_that_repeats_the_batch_takes_another_one(core: Core) -> None:
    """As exporters write it: a constant [1, 6] for a batch of 1."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="flat")
    proto = model([node], [tensor("x", (1, 3, 2))], [tensor("y", (1, 6))], shape=np.array([1, 6], np.int64))
    network = compiled(core, proto)
    inputs = [np.arange(6, dtype=np.float32).reshape(1, 3, 2) + i for i in range(4)]
    for request, x in zip(started(network, inputs), inputs, strict=True):
        request.wait(LIMIT)
        np.testing.assert_array_equal(request.results["y"], x.reshape(1, 6))


@pytest.mark.parametrize(
    ("single", "batched", "words"),
    [
        (np.int64([1]), np.int64([2]), "differs in 1 of 1 elements"),
        (np.int16([1, 1]), np.int16([1, 2]), None),
        (np.uint8([1, 1]), np.uint8([2, 2]), "differs in 2 of 2 elements"),
        (np.int32([1, 1]), np.int32([1, 2]), "differs in 1 of 2 elements"),
        (np.zeros(200, bool), np.arange(200) < 2, None),
        (np.zeros(200, bool), np.arange(200) < 3, "differs in 3 of 200 elements"),
        (np.float32([1, 4]), np.float32([1.001, 4]), None),
        (np.float32([1, 4]), np.float32([1.002, 4]), "differs by 0.002"),
        (np.float32([np.nan, np.inf, 1]), np.float32([np.nan, np.inf, 1]), None),
        (np.float32([np.nan, np.inf, 1]), np.float32([0, np.inf, 1]), "differs by inf"),
        (np.complex64([1 + 1j]), np.complex64([1 + 1.1j]), "differs by 0.1"),
        (np.ones(1, bf16.numpy), np.full(1, 1.0625, bf16.numpy), None),
        (np.ones(1, bf16.numpy), np.full(1, 1.125, bf16.numpy), "differs by 0.125"),
        (np.zeros((2, 0)), np.zeros((2, 0)), None),
        (np.zeros(2), np.zeros((2, 1)), r"differs in shape ([2, 1])"),
    ],
    ids=lambda value: str(getattr(value, "dtype", value is None)),
)
def test_what_rounding_explains_is_no_difference(single: Any, batched: Any, words: str | None) -> None:
    """The square root of the machine epsilon is 3.5e-4 for f32 and 0.088 for bf16."""
    assert difference(single, batched) == words


# -- the device string --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "config", "error", "words"),
    [
        ("BATCH", {}, DeviceNotFoundError, 'name it: "BATCH:CPU\\(16\\)"'),
        ("BATCH:CPU(16),TEMPLATE", {}, DeviceNotFoundError, "on one device"),
        ("BATCH:CPU(0)", {}, PropertyError, "from 1 to 65536"),
        ("BATCH:CPU(x)", {}, PropertyError, "from 1 to 65536"),
        ("BATCH:CPU()", {}, DeviceNotFoundError, "argument"),
        ("BATCH:CPU(16", {}, DeviceNotFoundError, "argument"),
        ("BATCH:CPU(16)x", {}, DeviceNotFoundError, "argument"),
        ("BATCH:BATCH(4)", {}, DeviceNotFoundError, "also makes batches"),
        ("BATCH:NOPE(4)", {}, DeviceNotFoundError, "no plugin provides device 'NOPE'"),
        ("CPU(4)", {}, DeviceNotFoundError, "an argument in parentheses is for a device that runs on this one"),
        ("HETERO:CPU(4),TEMPLATE", {}, DeviceNotFoundError, "parentheses"),
        ("BATCH:CPU(4)", {"BATCH_SIZE": 5}, PropertyError, "set it once"),
        ("BATCH:CPU(4)", {"BATCH_TIMEOUT": -0.001}, PropertyError, "BATCH_TIMEOUT"),
        ("BATCH:CPU(4)", {"BATCH_TIMEOUT": LONG + 0.001}, PropertyError, "BATCH_TIMEOUT"),
        ("BATCH:CPU(4)", {"DEVICE_PROPERTIES": {"TEMPLATE": {}}}, PropertyError, "the device of batches is CPU"),
    ],
)
def test_wrong_device_strings(device: str, config: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        Core().compile_model(product(), device, config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "config", "size"),
    [
        ("BATCH:CPU", {}, 8),
        ("BATCH:CPU", {"BATCH_SIZE": 3}, 3),
        ("BATCH:CPU.0(5)", {}, 5),
        ("BATCH:AUTO(2)", {}, 2),
        ("BATCH:CPU(2)", {"BATCH_TIMEOUT": 0}, 2),
    ],
)
def test_the_size_of_a_batch(device: str, config: dict[str, Any], size: int) -> None:
    assert Core().compile_model(product(), device, config).get_metric("MAX_BATCH_SIZE") == size
