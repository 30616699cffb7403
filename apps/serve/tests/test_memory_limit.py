"""A limit on the memory of all models. If this fails, models take more, or clients lose sequences or get errors."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from apps.serve.tests.conftest import Running, running, write
from engine import Core, ops
from engine.ir import Constant, Model, Parameter, Result, f32
from engine.passes import MakeStateful

DECODER = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx"
CPU = 'device = "CPU"\n'
MIB = 1 << 20


def weights_of(seed: int, mebibytes: int, rows: int) -> Any:
    shape = rows, mebibytes * MIB // 4 // rows
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)  # not exact in bf16, which is smaller


def wide(seed: int, mebibytes: int = 4) -> Model:
    """y = x @ w, x: [N, 16], with so many MiB of weights."""
    x = Parameter(f32, ["N", 16], "x")
    return Model([Result(ops.MatMul(x, Constant(weights_of(seed, mebibytes, 16))), "y")], [x], name="wide")


def right(name: str, answer: Any) -> bool:
    return np.allclose(answer.as_numpy("y")[0], weights_of("abc".index(name), 4, 16).sum(0), atol=1e-4)


def stateful(mebibytes: int) -> Model:
    """total = the sum over all inputs so far, beside weights of so many MiB."""
    real = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    weights = weights_of(9, mebibytes, 2)
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["past_0", "x"], ["present_0"], axis=1),
            helper.make_node("ReduceSum", ["present_0", "axes"], ["total"], keepdims=0),
            helper.make_node("MatMul", ["total", "weights"], ["y"]),
        ],
        "history",
        [real("x", "batch", "new", 2), real("past_0", "batch", "past", 2)],
        [real("total", "batch", 2), real("y", "batch", weights.shape[1]), real("present_0", "batch", "all", 2)],
        [
            helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
            helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = Core().read_model(proto)
    MakeStateful(bound=1000).run_on_model(model)
    return model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("limited") / "models"
    for seed, name in enumerate("abc"):
        write(folder, name, wide(seed), CPU)
    write(folder, "history", stateful(4), CPU)
    write(folder, "large", wide(1, 16), CPU)
    target = folder / "llama"
    target.mkdir()
    for path in DECODER.parent.glob(DECODER.name + "*"):
        shutil.copy(path, target / path.name.replace(DECODER.name, "model.onnx"))
    (target / "config.toml").write_text(CPU + "[generation]\nslots = 2\n")
    (target / "padding.bin").write_bytes(bytes(5 * MIB))  # counts as a part of the model until it is loaded
    with running(folder, "--memory-limit", "10") as found:
        yield found


@pytest.fixture
def clients(server: Running) -> Iterator[dict[str, Any]]:
    import tritonclient.grpc
    import tritonclient.http

    made = {
        "http": tritonclient.http.InferenceServerClient(server.http),
        "grpc": tritonclient.grpc.InferenceServerClient(server.grpc),
    }
    yield made
    for client in made.values():
        client.close()


def ask(clients: dict[str, Any], name: str, protocol: str = "http", shape: Any = (1, 16), **options: Any) -> Any:
    import tritonclient.grpc
    import tritonclient.http

    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    given = module.InferInput("x", list(shape), "FP32")
    given.set_data_from_numpy(np.ones(shape, np.float32))
    return clients[protocol].infer(name, [given], **options)


def loaded(server: Running) -> set[str]:
    return {
        name for name in ("a", "b", "c", "history", "llama") if server.metric(f'engine_model_bytes{{model="{name}"')
    }


def all_bytes(server: Running) -> float:
    return server.metric("engine_model_bytes{")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_least_recently_used_model_goes(server: Running, clients: dict[str, Any], protocol: str) -> None:
    """And the next request to it loads it again: each answer is its own model's."""
    order = ["a", "b", "c", "b", "a", "b", "a", "c"]
    for name in order:
        assert right(name, ask(clients, name, protocol))
        assert name in loaded(server)
        assert all_bytes(server) <= 10 * MIB
    assert loaded(server) & {"a", "b", "c"} == {"a", "c"}
    for name in "abc":  # also those that a request would load
        assert clients[protocol].is_model_ready(name)
    index = {each["name"]: each for each in clients["http"].get_model_repository_index()}
    assert index["b"]["state"] == "READY"
    assert "unloaded to make room for model `c`" in index["b"]["reason"]


def test_a_model_above_the_limit(server: Running, clients: dict[str, Any]) -> None:
    """It alone cannot be used, with a reason that the log has once; it makes no room in vain."""
    code, text = server.get("/v2/models/large/config")
    assert code == 503
    assert "takes 16.0 MiB, and --memory-limit allows 10 MiB" in json.loads(text)["error"]
    logged = [line for line in server.log.splitlines() if "ERROR" in line and "model large" in line]
    assert len(logged) == 1
    assert "RepositoryError" in logged[0]
    assert "make room for model large" not in server.log


def test_models_in_use_stay(server: Running, clients: dict[str, Any]) -> None:
    """A sequence keeps its state; a request for which there is no room is told to come later, and the model stays."""
    place = {"sequence_id": 3, "sequence_start": True}
    ask(clients, "history", shape=(1, 1, 2), **place)
    ask(clients, "a")
    for name in ("b", "c", "a"):
        ask(clients, name)
        assert loaded(server) & {"a", "b", "c", "history"} == {"history", name}
    found = ask(clients, "history", shape=(1, 1, 2), sequence_id=3, sequence_end=True)
    assert found.as_numpy("total").tolist() == [[2, 2]]
    ask(clients, "b")
    ask(clients, "c")
    assert "history" not in loaded(server)


def test_no_room_beside_sequences(server: Running, clients: dict[str, Any]) -> None:
    """Such a request is told to come later, which is not logged as a failure, and the model can be used later."""
    root = server.log_path.with_suffix("")
    shutil.copytree(root / "history", root / "other")
    clients["http"].load_model("other")
    for name in ("history", "other"):
        ask(clients, name, shape=(1, 1, 2), sequence_id=3, sequence_start=True)
    for _ in range(2):
        with pytest.raises(Exception, match="no room beside the models that are in use") as caught:
            ask(clients, "a")
        assert caught.value.status() == "503"
    assert "model a, version 1 cannot be loaded" not in server.log
    ask(clients, "other", shape=(1, 1, 2), sequence_id=3, sequence_end=True)
    assert right("a", ask(clients, "a"))
    assert "history" in loaded(server)
    clients["http"].unload_model("other")
    ask(clients, "history", shape=(1, 1, 2), sequence_id=3, sequence_end=True)


def test_a_language_model_is_loaded_again(server: Running, clients: dict[str, Any]) -> None:
    body = json.dumps({"input_ids": [3, 14, 15], "parameters": {"max_tokens": 3}}).encode()
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/llama/generate", body, {"content-type": "application/json"}
    )

    def generated() -> Any:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["tokens"]

    before = generated()
    for name in ("a", "b"):
        ask(clients, name)
    ask(clients, "c")
    assert "llama" not in loaded(server)
    assert [each["id"] for each in json.loads(server.get("/openai/v1/models")[1])["data"]] == ["llama"]
    assert generated() == before


def test_a_model_whose_folder_has_gone(server: Running, clients: dict[str, Any]) -> None:
    """It is not ready, with the reason, which the log has once, however many requests follow."""
    root = server.log_path.with_suffix("")
    for name in ("a", "b", "c"):
        ask(clients, name)
    shutil.move(root / "a", root.parent / "moved")
    for _ in range(2):
        with pytest.raises(Exception, match="model `a` is not ready") as caught:
            ask(clients, "a")
        assert "make room" not in str(caught.value)
    assert len([line for line in server.log.splitlines() if "ERROR" in line and "'a'" in line]) == 1
    shutil.move(root.parent / "moved", root / "a")
    clients["http"].load_model("a")
    assert right("a", ask(clients, "a"))
