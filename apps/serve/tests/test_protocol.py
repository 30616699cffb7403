"""The protocol, tested with an independent client. If this fails, clients get wrong answers, or none."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import Running, dense, expected, running, slow, wait_for, write
from engine import ops
from engine.ir import Constant, Model, Parameter, Result, boolean, f16, f32, i64, string, u8

BATCHED = 'device = "CPU"\nmax_rows = 4\n[batching]\nsize = 8\ndelay_ms = 3\n'


def echoes() -> Model:
    """Gives back inputs of other types."""
    types = {"half": f16, "bytes": u8, "long": i64, "flag": boolean, "text": string}
    inputs = [Parameter(kind, ["N"], name) for name, kind in types.items()]
    return Model([Result(ops.Identity(each), f"{each.friendly_name}_out") for each in inputs], inputs, name="echoes")


def logarithm() -> Model:
    x = Parameter(f32, ["N"], "x")
    return Model([Result(ops.Log(x), "y")], [x], name="logarithm")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served") / "models"
    write(folder, "dense", dense(), 'device = "CPU"\n')
    write(folder, "batched", dense(), BATCHED)
    write(folder, "echoes", echoes(), 'device = "CPU"\n')
    write(folder, "slow", slow(), 'device = "CPU"\nrequests = 1\nqueue_size = 2\n')
    write(folder, "heavy", slow(), 'device = "CPU"\nrequests = 1\nqueue_mib = 0.0001\n')  # 104 bytes: a row waits
    write(folder, "strict", dense(), 'device = "CPU"\ntimeout_ms = 0\n')
    write(folder, "logarithm", logarithm(), 'device = "CPU"\n')
    write(folder, "slower", slow(20_000_000), 'device = "CPU"\n')
    x = Parameter(f32, ["N"], "x")
    wide = ops.Mul(x, Constant(np.ones((4_000_000, 1), np.float32)))
    write(folder, "wide", Model([Result(wide, "y")], [x], name="wide"), 'device = "CPU"\n')
    limits = ["--max-body", "1", "--body-timeout", "1", "--max-requests", "200", "--max-answer", "40"]
    with running(folder, *limits) as found:
        yield found


def clients(server: Running) -> dict[str, Any]:
    import tritonclient.grpc as over_grpc
    import tritonclient.http as over_http

    http = over_http.InferenceServerClient(server.http, concurrency=4)
    return {"http": (over_http, http), "grpc": (over_grpc, over_grpc.InferenceServerClient(server.grpc))}


@pytest.fixture(params=["http", "grpc"])
def client(server: Running, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    module, made = clients(server)[request.param]
    yield module, made
    made.close()


def ask(client: tuple[Any, Any], name: str, x: Any, datatype: str = "FP32", **options: Any) -> Any:
    module, made = client
    given = module.InferInput("x", list(x.shape), datatype)
    given.set_data_from_numpy(x)
    return made.infer(name, [given], **options).as_numpy("y")


def rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


def post(server: Running, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://{server.http}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


# -- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dense", "batched"])
def test_an_inference(client: tuple[Any, Any], name: str) -> None:
    for count in (1, 3):
        np.testing.assert_allclose(ask(client, name, rows(count)), expected(rows(count)), atol=1e-5)


def test_numbers_in_json(server: Running) -> None:
    x = rows(2)
    body = {"inputs": [{"name": "x", "shape": [2, 16], "datatype": "FP32", "data": x.tolist()}], "id": "seven"}
    code, answer = post(
        server, "/v2/models/dense/infer", json.dumps(body).encode(), **{"content-type": "application/json"}
    )
    assert (code, answer["id"], answer["model_version"]) == (200, "seven", "1")
    np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], (2, 8)), expected(x), atol=1e-5)


def test_every_kind_of_element(client: tuple[Any, Any]) -> None:
    module, made = client
    values = {
        "half": (np.array([0.5, -2.0], np.float16), "FP16"),
        "bytes": (np.array([0, 255], np.uint8), "UINT8"),
        "long": (np.array([-(2**60), 3], np.int64), "INT64"),
        "flag": (np.array([True, False]), "BOOL"),
        "text": (np.array(["grün", ""], object), "BYTES"),
    }
    inputs = []
    for name, (value, datatype) in values.items():
        inputs.append(module.InferInput(name, [2], datatype))
        inputs[-1].set_data_from_numpy(value)
    answer = made.infer("echoes", inputs)
    for name, (value, _) in values.items():
        found = answer.as_numpy(f"{name}_out")
        if name == "text":
            assert [each.decode() for each in found] == list(value)
        else:
            np.testing.assert_array_equal(found, value)
            assert found.dtype == value.dtype


def test_only_requested_outputs_are_sent(client: tuple[Any, Any]) -> None:
    module, made = client
    values = {"half": np.float16, "bytes": np.uint8, "long": np.int64, "flag": np.bool_, "text": np.object_}
    names = {"half": "FP16", "bytes": "UINT8", "long": "INT64", "flag": "BOOL", "text": "BYTES"}
    inputs = []
    for name, dtype in values.items():
        inputs.append(module.InferInput(name, [1], names[name]))
        inputs[-1].set_data_from_numpy(np.array(["a"] if name == "text" else [1]).astype(dtype))
    answer = made.infer("echoes", inputs, outputs=[module.InferRequestedOutput("long_out")])
    assert answer.as_numpy("long_out").tolist() == [1]
    assert answer.as_numpy("half_out") is None


def test_metadata_and_health(server: Running, client: tuple[Any, Any]) -> None:
    module, made = client
    assert made.is_server_live()
    assert made.is_server_ready()
    assert made.is_model_ready("dense")
    assert made.is_model_ready("dense", "1")
    assert not made.is_model_ready("nothing") if module.__name__.endswith("http") else True
    found = made.get_model_metadata("dense")
    if not isinstance(found, dict):
        found = {"versions": found.versions, "inputs": [{"shape": found.inputs[0].shape, "name": found.inputs[0].name}]}
    assert list(found["versions"]) == ["1"]
    assert [int(length) for length in found["inputs"][0]["shape"]] == [-1, 16]
    assert found["inputs"][0]["name"] == "x"


def test_64_clients_at_once(server: Running) -> None:
    """Each gets the answers to its own questions, of both protocols and of models with and without batches."""

    def talk(seed: int) -> None:
        pair = clients(server)["grpc" if seed % 2 else "http"]
        try:
            for turn in range(4):
                x = rows(1 + (seed + turn) % 3, seed * 100 + turn)
                found = ask(pair, "batched" if (seed // 2) % 2 else "dense", x)
                np.testing.assert_allclose(found, expected(x), atol=1e-5)
        finally:
            pair[1].close()

    before = server.metric('engine_requests_total{end="ok"')
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        list(pool.map(talk, range(64)))
    assert server.metric('engine_requests_total{end="ok"') - before == 256
    assert server.metric('engine_batch_size_sum{model="batched"') > server.metric(
        'engine_batch_size_count{model="batched"'
    )


# -- refusals -----------------------------------------------------------------------------------------------------


def refusal(call: Any, *arguments: Any, **options: Any) -> tuple[str, str]:
    """The status and the message with which the server refuses."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return str(caught.value.status()), str(caught.value.message())


def kind_of(client: tuple[Any, Any], http: str, grpc: str) -> str:
    return http if client[0].__name__.endswith("http") else f"StatusCode.{grpc}"


def test_wrong_dtype_shape_name_and_version(client: tuple[Any, Any]) -> None:
    invalid, unknown = kind_of(client, "400", "INVALID_ARGUMENT"), kind_of(client, "404", "NOT_FOUND")
    status, message = refusal(ask, client, "dense", rows(1).astype(np.float64), "FP64")
    assert status == invalid
    assert "input `x` has datatype 'FP64'; expected FP32" in message
    status, message = refusal(ask, client, "dense", np.zeros((1, 15), np.float32))
    assert status == invalid
    assert "dimension 1 is 15, expected 16" in message
    assert refusal(ask, client, "nothing", rows(1))[0] == unknown
    assert refusal(ask, client, "dense", rows(1), model_version="7")[0] == unknown
    assert refusal(ask, client, "../dense", rows(1))[0] == unknown
    np.testing.assert_allclose(ask(client, "dense", rows(1)), expected(rows(1)), atol=1e-5)


def test_more_rows_than_the_model_accepts(client: tuple[Any, Any]) -> None:
    status, message = refusal(ask, client, "batched", rows(5))
    assert status == kind_of(client, "413", "INVALID_ARGUMENT")
    assert "5 rows" in message
    assert "at most 4" in message


def test_a_body_above_the_limit(client: tuple[Any, Any]) -> None:
    status, _ = refusal(ask, client, "dense", np.zeros((40_000, 16), np.float32))
    assert status == kind_of(client, "413", "RESOURCE_EXHAUSTED")
    np.testing.assert_allclose(ask(client, "dense", rows(1)), expected(rows(1)), atol=1e-5)


TENSOR = {"name": "x", "shape": [1, 16], "datatype": "FP32"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "JSON"),
        (b"[]", "input"),
        (b'{"inputs": 3}', "inputs"),
        ({"inputs": [TENSOR]}, "data"),
        ({"inputs": [TENSOR | {"data": [1.0] * 15}]}, "elements"),
        ({"inputs": [TENSOR | {"data": ["a"] * 16}]}, "FP32"),
        ({"inputs": [TENSOR | {"data": [None] * 16}]}, "FP32"),
        ({"inputs": [TENSOR | {"data": [True] * 16}]}, "FP32"),
        ({"inputs": [TENSOR | {"data": [[True] + [1.5] * 15]}]}, "not numbers that FP32 can hold"),
        ({"inputs": [TENSOR | {"data": [[1.0] * 8, [1.0] * 7]}]}, "FP32"),
        ({"inputs": [TENSOR | {"shape": [-1, 16], "data": []}]}, "shape"),
        ({"inputs": [TENSOR | {"shape": [2**40, 2**40], "data": []}]}, "shape"),
        ({"inputs": [TENSOR | {"datatype": "FP99", "data": [1.0] * 16}]}, "datatype"),
        ({"inputs": [TENSOR | {"name": "z", "data": [1.0] * 16}]}, "'z'"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16}] * 2}, "twice"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16}], "outputs": [{"name": "w"}]}, "'w'"),
        ({"inputs": []}, "x"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16}], "sequence_id": 7}, "'sequence_id'"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16}], "model_name": "other"}, "'other'"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16, "layout": "NHWC"}]}, "'layout'"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16, "parameters": {"binary_data_size": 64}}]}, "both"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16}], "outputs": [{"name": "y"}] * 2}, "'y' is asked for twice"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16}], "outputs": [{"name": "y", "parameters": []}]}, "object"),
        ({"inputs": [TENSOR | {"data": [1.0] * 16}], "outputs": [{"name": "y", "data_type": "INT8"}]}, "'data_type'"),
    ],
)
def test_a_malformed_request(server: Running, body: Any, reason: str) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    for headers in ({"content-type": "application/json"}, {"content-type": "application/octet-stream"}):
        code, answer = post(server, "/v2/models/dense/infer", text, **headers)
        assert code == 400, answer
        assert reason.lower() in answer["error"].lower()


@pytest.mark.parametrize(
    ("length", "rest", "size"),
    [
        ("9999", b"", 64),
        ("-1", b"", 64),
        ("x", b"", 64),
        (None, b"\0" * 63, 64),
        (None, b"\0" * 65, 64),
        (None, b"", -4),
    ],
)
def test_malformed_binary_tensors(server: Running, length: str | None, rest: bytes, size: int) -> None:
    head = json.dumps({"inputs": [TENSOR | {"parameters": {"binary_data_size": size}}]}).encode()
    headers = {"content-type": "application/octet-stream", "Inference-Header-Content-Length": length or str(len(head))}
    code, answer = post(server, "/v2/models/dense/infer", head + rest, **headers)
    assert (code, answer["error"].partition(":")[0]) == (400, "InputError")


@pytest.mark.parametrize(
    ("name", "datatype", "data"),
    [
        ("bytes", "UINT8", [256]),
        ("bytes", "UINT8", [-1]),
        ("long", "INT64", [1.5]),
        ("long", "INT64", [2, True]),
        ("half", "FP16", [7e4, 7e4]),
        ("half", "FP16", [True, 1.5]),
        ("flag", "BOOL", [1]),
        ("flag", "BOOL", [True, 1]),
        ("text", "BYTES", ["\ud800"]),
        ("text", "BYTES", ["a", 1]),
    ],
)
def test_elements_that_the_type_cannot_hold(server: Running, name: str, datatype: str, data: list[Any]) -> None:
    body = {"inputs": [{"name": name, "shape": [len(data)], "datatype": datatype, "data": data}]}
    code, answer = post(
        server, "/v2/models/echoes/infer", json.dumps(body).encode(), **{"content-type": "application/json"}
    )
    assert code == 400
    assert ("JSON" if "\ud800" in data else name) in answer["error"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "code", "reason"),
    [
        ("/v2/repository/index", b'{"ready"', {}, 400, "JSON"),
        ("/v2/repository/index", b'["ready"]', {}, 400, "not a JSON object"),
        ("/v2/repository/models/dense/load", b'{"parameters": {"config": "{}"}}', {}, 400, "change the model's folder"),
        ("/v2/models/dense/infer", b"\x1f\x8b", {"content-encoding": "gzip"}, 415, "content encoding 'gzip'"),
        ("/v2/models/dense/infer", b"[" * 100_000, {"content-type": "application/json"}, 400, "JSON"),
        ("/v1/models/dense:explain", b'{"instances": [1]}', {"content-type": "application/json"}, 400, "Unsupported"),
        ("/v1/models/dense:predict", b'{"instances": [1]}', {"content-type": "application/json"}, 400, "use /v2"),
        ("/v2/nothing", b"", {}, 404, "Not Found"),
    ],
)
def test_what_routes_beside_inference_refuse(
    server: Running, path: str, body: bytes, headers: dict[str, str], code: int, reason: str
) -> None:
    status, answer = post(server, path, body, **headers)
    assert (status, reason in answer["error"]) == (code, True), answer


@pytest.mark.parametrize(
    ("number", "reason"),
    [("1e39", "too large for FP32"), ("1e400", "JSON"), ("-1e400", "JSON"), ("NaN", "JSON"), ("Infinity", "JSON")],
)
@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream"])
def test_numbers_that_the_type_or_json_does_not_have(server: Running, kind: str, number: str, reason: str) -> None:
    """All are refused: JSON has no text for NaN and infinities, and no number becomes another one."""
    body = json.dumps({"inputs": [TENSOR | {"data": [1.0] * 15 + ["?"]}]}).replace('"?"', number)
    code, answer = post(server, "/v2/models/dense/infer", body.encode(), **{"content-type": kind})
    assert (code, reason in answer["error"]) == (400, True), answer


def test_parameters_that_are_not_supported(client: tuple[Any, Any]) -> None:
    """They would change the answer, and are refused by their names."""
    module, _ = client
    output = module.InferRequestedOutput
    shared = output("y")
    shared.set_shared_memory("region", 64)
    for options, said in (
        ({"parameters": {"foo_bar": 1}}, "'foo_bar'"),
        ({"parameters": {"foo_bar": 0.5}}, "'foo_bar'"),
        ({"priority": 1}, "'priority'"),
        ({"sequence_id": 7}, "no variables"),
        ({"sequence_id": "seven", "sequence_end": True}, "no variables"),
        ({"outputs": [output("y", class_count=3)]}, "'classification'"),
        ({"outputs": [shared]}, "'shared_memory_"),
        ({"outputs": [output("y"), output("y")]}, "asked for twice"),
        ({"outputs": [output("w")]}, "'w'"),
    ):
        status, message = refusal(ask, client, "dense", rows(1), **options)
        assert (status, said in message) == (kind_of(client, "400", "INVALID_ARGUMENT"), True), message
    made = client[1]
    given = module.InferInput("x", [1, 16], "FP32")
    given.set_shared_memory("region", 64)
    assert "'shared_memory_" in refusal(made.infer, "dense", [given])[1]
    np.testing.assert_allclose(ask(client, "dense", rows(1), timeout=60_000_000), expected(rows(1)), atol=1e-5)


@pytest.mark.parametrize("binary", [True, False])
def test_an_answer_above_the_limit(server: Running, client: tuple[Any, Any], binary: bool) -> None:
    """It is refused before it is written; JSON takes about five times the bytes of binary tensors."""
    module, made = client
    given = module.InferInput("x", [2], "FP32")
    given.set_data_from_numpy(np.ones(2, np.float32))
    options = {} if _is_grpc(client) else {"binary_data": binary}
    outputs = [module.InferRequestedOutput("y", **options)]
    if binary or _is_grpc(client):
        assert made.infer("wide", [given], outputs=outputs).as_numpy("y").shape == (4_000_000, 2)
        return
    status, message = refusal(made.infer, "wide", [given], outputs=outputs)
    assert (status, "--max-answer" in message) == ("413", True), message


def test_bytes_that_are_not_a_message(server: Running) -> None:
    """They are answered by a status that says so; the log has one line for many of them, without a traceback."""
    import grpc

    before = len(server.log)
    with grpc.insecure_channel(server.grpc) as channel:
        for data in (b"\xff" * 9, b"\x0a\xff", b"\x0a\x02\xff\xfe"):
            for method in ("ModelInfer", "ModelReady", "RepositoryModelLoad"):
                call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    call(data, timeout=20)
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert "not a valid message" in caught.value.details()
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError) as caught:
            next(stream(iter([b"\xff"]), timeout=20))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert server.log[before:].count("not a valid message") == 1


def test_numbers_that_json_does_not_have(server: Running, client: tuple[Any, Any]) -> None:
    """NaN and infinities are null in the JSON of an answer, and themselves in binary tensors."""
    x = np.array([-1, 0, 1], np.float32)
    request = {"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": x.tolist()}]}
    headers = {"content-type": "application/json"}
    code, answer = post(server, "/v2/models/logarithm/infer", json.dumps(request).encode(), **headers)
    assert (code, answer["outputs"][0]["data"]) == (200, [None, None, 0.0])
    np.testing.assert_array_equal(ask(client, "logarithm", x), np.float32([np.nan, -np.inf, 0]))


def test_a_request_that_no_model_gets_is_logged_once(server: Running) -> None:
    post(server, "/v2/models/unheard_of/infer", b'{"inputs": []}', **{"content-type": "application/json"})
    assert server.log.count("there is no model 'unheard_of'") == 1


# -- load ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "reason"), [("slow", "`queue_size`"), ("heavy", "`queue_mib`")])
def test_a_full_queue_refuses(server: Running, client: tuple[Any, Any], name: str, reason: str) -> None:
    """While one inference runs, two requests may wait, or 104 bytes of inputs. Others are refused at once."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        pairs = [clients(server)["grpc" if _is_grpc(client) else "http"] for _ in range(8)]
        calls = [pool.submit(ask, pair, name, rows(1)) for pair in pairs]
        errors = [call.exception() for call in calls]
    for pair in pairs:
        pair[1].close()
    refused = [error for error in errors if error is not None]
    assert 0 < len(refused) < 8
    assert {str(error.status()) for error in refused} == {kind_of(client, "503", "RESOURCE_EXHAUSTED")}
    assert all(reason in error.message() for error in refused)


def _is_grpc(client: tuple[Any, Any]) -> bool:
    return bool(client[0].__name__.endswith("grpc"))


def test_deadlines(server: Running, client: tuple[Any, Any]) -> None:
    exceeded = kind_of(client, "504", "DEADLINE_EXCEEDED")
    assert refusal(ask, client, "slow", rows(1), timeout=20_000)[0] == exceeded
    if _is_grpc(client):
        assert refusal(ask, client, "slow", rows(1), client_timeout=0.02)[0] == exceeded
    else:
        for headers in ({"grpc-timeout": "20m"}, {"x-envoy-expected-rq-timeout-ms": "20"}):
            assert refusal(ask, client, "slow", rows(1), headers=headers)[0] == exceeded
        assert refusal(ask, client, "slow", rows(1), headers={"grpc-timeout": "soon"})[0] == "400"
    ask(client, "slow", rows(1), timeout=60_000_000)


def test_a_timeout_of_0_refuses_requests_that_state_none(client: tuple[Any, Any]) -> None:
    """It is not "no deadline", as a reader may think: without the refusal, the queue would have no bound in time."""
    status, message = refusal(ask, client, "strict", rows(1))
    assert (status, "had passed when it arrived" in message) == (kind_of(client, "504", "DEADLINE_EXCEEDED"), True)
    assert refusal(ask, client, "strict", rows(1), timeout=0)[0] == status, "Triton's 0: the client states none"
    np.testing.assert_allclose(ask(client, "strict", rows(1), timeout=60_000_000), expected(rows(1)), atol=1e-5)


def test_a_client_that_disconnects_leaves_the_queue(server: Running) -> None:
    """Its inference is cancelled: the queue is empty soon after, and others are answered."""
    body = json.dumps({"inputs": [TENSOR | {"data": [1.0] * 16}]}).encode()
    before = server.metric('engine_requests_total{end="Cancelled",model="slow"')
    host, port = server.http.split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as gone:
            head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            gone.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(0.05)
    wait_for(lambda: server.metric('engine_requests_total{end="Cancelled",model="slow"') == before + 3)
    wait_for(lambda: server.metric('engine_running_inferences{model="slow"') == 0)
    pair = clients(server)["grpc"]
    ask(pair, "slow", rows(1))
    pair[1].close()


def test_a_client_that_cancels_its_call(server: Running) -> None:
    module, made = clients(server)["grpc"]
    before = server.metric('engine_requests_total{end="Cancelled",model="slower"')
    given = module.InferInput("x", [1, 16], "FP32")
    given.set_data_from_numpy(rows(1))
    done = threading.Event()
    call = made.async_infer("slower", [given], callback=lambda result, error: done.set())
    wait_for(lambda: server.metric('engine_running_inferences{model="slower"') == 1)
    call.cancel()
    assert done.wait(20)
    wait_for(lambda: server.metric('engine_requests_total{end="Cancelled",model="slower"') == before + 1)
    made.close()


def test_a_slow_client_is_told_so(server: Running) -> None:
    """It may take a second here; it holds no other request up."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as late:
        late.sendall(f"POST /v2/models/dense/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
        pair = clients(server)["http"]
        np.testing.assert_allclose(ask(pair, "dense", rows(1)), expected(rows(1)), atol=1e-5)
        pair[1].close()
        assert b" 408 " in late.recv(4096)


def test_a_client_that_takes_no_answer_loses_its_connection(server: Running) -> None:
    """It would keep its answer in memory, and its place among the requests, for as long as it likes."""
    host, port = server.http.split(":")
    before = server.metric('engine_requests_total{end="ok",model="wide"')
    request = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    body = json.dumps(request | {"parameters": {"binary_data_output": True}}).encode()
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect((host, int(port)))
        idle.settimeout(60)
        head = f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        idle.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for(lambda: server.metric('engine_requests_total{end="ok",model="wide"') == before + 1)
        wait_for(lambda: int(port) in _local_ports_with_answers(idle.getsockname()[1]))
        wait_for(lambda: int(port) not in _local_ports_with_answers(idle.getsockname()[1]), 60)


def _local_ports_with_answers(client_port: int) -> set[int]:
    """The ports of this machine that have a connection to a port of this machine, with data that were not taken."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if int(remote.partition(":")[2], 16) == client_port and int(queues.partition(":")[0], 16):
            found.add(int(local.partition(":")[2], 16))
    return found


def test_metrics(server: Running) -> None:
    pair = clients(server)["grpc"]
    ask(pair, "dense", rows(1))
    pair[1].close()
    labels = '{model="dense",version="1"'
    for name in ("request", "queue", "infer"):
        assert server.metric(f"engine_{name}_seconds_count{labels}") > 0
    assert server.metric('engine_device_busy_seconds_total{device="CPU"') > 0
    assert server.metric(f"engine_model_ready{labels}") == 1
    assert "nothing" not in server.get("/metrics")[1]


def test_nothing_failed_inside(server: Running) -> None:
    """Last: whatever clients did above, the server did not raise what it did not expect."""
    assert "Traceback" not in server.log
    assert Path(server.log_path).stat().st_size < 200_000
