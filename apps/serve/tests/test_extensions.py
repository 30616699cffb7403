"""Triton's extensions for statistics and configurations. If this fails, perf_analyzer reports what never happened."""

from __future__ import annotations

import json
import queue
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import Running, dense, running, wait_for, write

DECODER = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx"
LANGUAGE = 'device = "CPU"\n[generation]\nslots = 2\nmax_tokens = 5000\nprefix_cache_mib = 4\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("extensions") / "models"
    for version in (1, 2):
        write(folder, "dense", dense(), 'device = "CPU"\nversions = "all"\nrequests = 1\n', version)
    write(folder, "batched", dense(), 'device = "CPU"\nmax_rows = 4\n[batching]\nsize = 4\ndelay_ms = 1.5\n')
    write(folder, "broken", b"junk")
    target = folder / "llama"
    target.mkdir()
    for path in DECODER.parent.glob(DECODER.name + "*"):
        shutil.copy(path, target / path.name.replace(DECODER.name, "model.onnx"))
    (target / "config.toml").write_text(LANGUAGE)
    with running(folder) as found:
        yield found


@pytest.fixture
def clients(server: Running) -> Iterator[tuple[Any, Any]]:
    import tritonclient.grpc
    import tritonclient.http

    over_http = tritonclient.http.InferenceServerClient(server.http, concurrency=8)
    over_grpc = tritonclient.grpc.InferenceServerClient(server.grpc)
    yield over_http, over_grpc
    over_http.close()
    over_grpc.close()


def rows(count: int, width: int = 16) -> list[Any]:
    import tritonclient.http

    given = tritonclient.http.InferInput("x", [count, width], "FP32")
    given.set_data_from_numpy(np.ones((count, width), np.float32))
    return [given]


def statistics_of(client: Any, name: str, version: str = "") -> Any:
    (found,) = client.get_inference_statistics(name, version)["model_stats"]
    return found


def as_numbers(message: Any) -> Any:
    """JSON of protobuf, which has 64-bit numbers as texts."""
    if isinstance(message, dict):
        return {key: as_numbers(value) for key, value in message.items()}
    if isinstance(message, list):
        return [as_numbers(value) for value in message]
    return int(message) if isinstance(message, str) and message.lstrip("-").isdecimal() else message


def without_defaults(message: Any) -> Any:
    """Without what JSON of protobuf leaves out."""
    if isinstance(message, dict):
        kept = {key: without_defaults(value) for key, value in message.items()}
        return {key: value for key, value in kept.items() if value not in (0, False, "", [])}
    return [without_defaults(value) for value in message] if isinstance(message, list) else message


def test_statistics_count_what_happened(server: Running, clients: tuple[Any, Any]) -> None:
    """Answers and failures of the version that was asked, and the same durations as the metrics have."""
    client, _ = clients
    before = statistics_of(client, "dense", "1")
    for count in (1, 2, 3):
        client.infer("dense", rows(count), "1")
    for _ in range(2):
        with pytest.raises(Exception, match="shape"):
            client.infer("dense", rows(1, width=15), "1")
    found = statistics_of(client, "dense", "1")
    assert (found["name"], found["version"]) == ("dense", "1")
    assert found["inference_count"] - before["inference_count"] == 3
    assert found["execution_count"] - before["execution_count"] == 3
    times = found["inference_stats"]
    assert {name: each["count"] for name, each in times.items()} == {
        **dict.fromkeys(("success", "queue", "compute_input", "compute_infer", "compute_output"), 3),
        "fail": 2,
        **dict.fromkeys(("cache_hit", "cache_miss"), 0),
    }
    assert times["success"]["ns"] == times["queue"]["ns"] + times["compute_infer"]["ns"] > 0
    measured = server.metric('engine_request_seconds_sum{model="dense",version="1"}')
    assert times["success"]["ns"] + times["fail"]["ns"] == pytest.approx(measured * 1e9, abs=1000)
    assert found["batch_stats"] == [
        {
            "batch_size": 1,
            "compute_input": {"count": 3, "ns": 0},
            "compute_infer": {"count": 3, "ns": times["compute_infer"]["ns"]},
            "compute_output": {"count": 3, "ns": 0},
        }
    ]
    assert statistics_of(client, "dense", "2")["inference_count"] == 0


def test_statistics_of_batches(clients: tuple[Any, Any]) -> None:
    """Executions are batches, and each row is an inference."""
    client, _ = clients
    for request in [client.async_infer("batched", rows(count)) for count in (1, 2, 1, 4, 1, 1, 2, 3)]:
        request.get_result()
    found = statistics_of(client, "batched")
    assert found["inference_stats"]["success"]["count"] == 8
    assert found["inference_count"] == 15
    assert 4 <= found["execution_count"] <= 8
    assert found["execution_count"] == sum(each["compute_infer"]["count"] for each in found["batch_stats"])
    assert all(1 <= each["batch_size"] <= 4 and each["compute_infer"]["ns"] > 0 for each in found["batch_stats"])


def test_statistics_of_a_language_model(server: Running, clients: tuple[Any, Any]) -> None:
    import tritonclient.http

    client, _ = clients
    given = tritonclient.http.InferInput("input_ids", [1, 3], "INT64")
    given.set_data_from_numpy(np.array([[3, 14, 15]]))
    client.infer("llama", [given], parameters={"max_tokens": 4})
    found = statistics_of(client, "llama")
    assert (found["inference_count"], found["inference_stats"]["success"]["count"]) == (1, 1)
    measured = server.metric('engine_request_seconds_sum{model="llama"')
    assert found["inference_stats"]["compute_infer"]["ns"] == pytest.approx(measured * 1e9, abs=1000)


def test_the_end_of_each_answer_in_a_stream(clients: tuple[Any, Any]) -> None:
    """Which perf_analyzer needs for decoupled models: an empty response follows the tokens, if it is asked for."""
    import tritonclient.grpc

    _, client = clients
    answers = queue.Queue[Any]()
    client.start_stream(lambda result, error: answers.put((result, error)))
    tokens = tritonclient.grpc.InferInput("input_ids", [1, 3], "INT64")
    tokens.set_data_from_numpy(np.array([[3, 14, 15]]))
    x = tritonclient.grpc.InferInput("x", [1, 16], "FP32")
    x.set_data_from_numpy(np.ones((1, 16), np.float32))

    def ask(name: str, given: Any, count: int, **options: Any) -> list[Any]:
        client.async_stream_infer(name, [given], **options)
        found = [answers.get(timeout=60) for _ in range(count)]
        assert all(error is None for _, error in found), found
        return [result.get_response() for result, _ in found]

    some = {"parameters": {"max_tokens": 2}, "request_id": "a"}
    *parts, last = ask("llama", tokens, 3, enable_empty_final_response=True, **some)
    assert [part.parameters["triton_final_response"].bool_param for part in (*parts, last)] == [False, False, True]
    assert [len(part.outputs) for part in (*parts, last)] == [1, 1, 0]
    assert (last.id, last.model_name) == ("a", "llama")
    assert not any("triton_final_response" in part.parameters for part in ask("llama", tokens, 2, **some))
    (only,) = ask("dense", x, 1, enable_empty_final_response=True)
    assert only.parameters["triton_final_response"].bool_param
    assert len(only.outputs) == 1
    client.stop_stream()


def test_the_end_of_an_answer_to_a_single_call(server: Running) -> None:
    """perf_analyzer asks for it in each message, not only in streams."""
    import grpc
    import tritonclient.grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    x = tritonclient.grpc.InferInput("x", [1, 16], "FP32")
    x.set_data_from_numpy(np.ones((1, 16), np.float32))
    message = service_pb2.ModelInferRequest(model_name="dense", inputs=[x._get_tensor()])
    message.raw_input_contents.append(x._get_content())
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert "triton_final_response" not in stub.ModelInfer(message).parameters
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        assert stub.ModelInfer(message).parameters["triton_final_response"].bool_param


def test_metrics_of_a_scheduler(server: Running) -> None:
    """Slots, caches and kept prefixes: what they are while a sequence runs, and after it."""
    body = json.dumps({"input_ids": [5, 6, 7, 8] * 8, "parameters": {"max_tokens": 5000}}).encode()
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/llama/generate_stream", body, {"content-type": "application/json"}
    )
    of = '{model="llama",version="1"}'
    hits = server.metric(f"engine_prefix_hits_total{of}")
    assert (server.metric(f"engine_slots{of}"), server.metric(f"engine_used_slots{of}")) == (2, 0)
    assert server.metric(f"engine_cache_bytes{of}") == 0
    for _ in range(2):
        with urllib.request.urlopen(request, timeout=60) as response:
            response.readline()
            assert server.metric(f"engine_used_slots{of}") == 1
            assert server.metric(f"engine_cache_bytes{of}") > 0
        wait_for(lambda: server.metric(f"engine_used_slots{of}") == 0)
    assert server.metric(f"engine_cache_bytes{of}") == 0
    assert server.metric(f"engine_prefix_hits_total{of}") == hits + 1
    assert server.metric(f"engine_prefix_tokens_total{of}") == 31  # the last token of a prompt is computed
    assert 0 < server.metric(f"engine_prefix_cache_bytes{of}") <= 4 << 20
    assert "engine_proposed_tokens_total" + of + " 0.0" in server.get("/metrics")[1].splitlines()


def test_statistics_of_all_models_over_both_protocols(clients: tuple[Any, Any]) -> None:
    client, over_grpc = clients
    found = client.get_inference_statistics()["model_stats"]
    assert [(each["name"], each["version"]) for each in found] == [
        ("batched", "1"),
        ("dense", "1"),
        ("dense", "2"),
        ("llama", "1"),
    ]
    both = client.get_inference_statistics("dense"), over_grpc.get_inference_statistics("dense", as_json=True)
    one, other = (
        [each | {"last_inference": None, "version": int(each["version"])} for each in as_numbers(found["model_stats"])]
        for found in both
    )
    assert without_defaults(one) == without_defaults(other)
    (single,) = over_grpc.get_inference_statistics("dense", "2").model_stats
    assert (single.name, single.version) == ("dense", "2")


def test_configurations_over_both_protocols(clients: tuple[Any, Any]) -> None:
    client, over_grpc = clients
    for name in ("dense", "batched", "llama"):
        found = over_grpc.get_model_config(name, as_json=True)["config"]
        assert without_defaults(client.get_model_config(name)) == without_defaults(as_numbers(found))
    found = client.get_model_config("dense", "2")
    assert found["max_batch_size"] == 0
    assert found["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 16]}]
    assert found["version_policy"] == {"all": {}}
    assert found["instance_group"] == [{"name": "dense_0", "kind": "KIND_CPU", "count": 1}]
    assert not found["model_transaction_policy"]["decoupled"]
    found = client.get_model_config("batched")
    assert (found["max_batch_size"], found["input"][0]["dims"], found["output"][0]["dims"]) == (4, [16], [8])
    assert found["dynamic_batching"] == {"max_queue_delay_microseconds": 1500}
    found = client.get_model_config("llama")
    assert found["input"][0]["dims"] == [1, -1]
    assert found["model_transaction_policy"]["decoupled"]


def test_models_that_are_not_there(server: Running, clients: tuple[Any, Any]) -> None:
    for what in ("stats", "config"):
        assert server.get(f"/v2/models/none/{what}")[0] == 404
        assert server.get(f"/v2/models/dense/versions/3/{what}")[0] == 404
        code, text = server.get(f"/v2/models/broken/{what}")
        assert (code, json.loads(text)["error"].partition(":")[0]) == (503, "NotReadyError")
    client = clients[1]
    for call in (client.get_inference_statistics, client.get_model_config):
        with pytest.raises(Exception, match="NOT_FOUND"):
            call("none")
        with pytest.raises(Exception, match="UNAVAILABLE"):
            call("broken")
    assert {"statistics", "model_configuration"} <= set(clients[0].get_server_metadata()["extensions"])
