"""The repository while it serves. If this fails, one bad model stops the others, or a reload loses requests."""

from __future__ import annotations

import concurrent.futures
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import Running, dense, expected, running, slow, wait_for, write
from engine import Core
from engine.blob import BlobReader, BlobWriter
from engine.ir import bf16

CPU = 'device = "CPU"\n'


def foreign_blob() -> bytes:
    """A blob that needs what no machine has."""
    stream = io.BytesIO()
    Core().compile_model(dense(), "CPU").export_model(stream)
    reader = BlobReader(stream.getvalue())
    writer = BlobWriter(replace(reader.manifest, requirements={**reader.manifest.requirements, "machine": ["avx4096"]}))
    for name in reader.section_names:
        writer.add_section(name, reader.section(name))
    made = io.BytesIO()
    writer.write(made)
    return made.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repository") / "models"
    write(made, "good", dense(), CPU, version=1)
    write(made, "slow", slow(), CPU)
    write(made, "damaged", b"junk", CPU)
    write(made, "no_device", dense(), 'device = "NPU"\n')
    write(made, "wrong_key", dense(), "devise = 3\n")
    write(made, "wrong_toml", dense(), "device =\n")
    write(made, "wrong_type", dense(1, bf16), CPU)
    write(made, "a name with spaces", dense(), CPU)
    (made / "empty").mkdir()
    (made / ".hidden").mkdir()
    blob = made / "foreign" / "model.blob"
    blob.parent.mkdir()
    blob.write_bytes(foreign_blob())
    (made / "unbatched").mkdir()
    (made / "unbatched" / "config.toml").write_text("[batching]\nsize = 4\n")
    Core().compile_model(dense(), "CPU").export_model(made / "unbatched" / "model.blob")
    (made / "blob").mkdir()
    Core().compile_model(dense(), "BATCH:CPU(4)").export_model(made / "blob" / "model.blob")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with running(folder) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    import tritonclient.http

    made = tritonclient.http.InferenceServerClient(server.http, concurrency=2, network_timeout=60)
    yield made
    made.close()


def ask(client: Any, name: str, x: Any, version: str = "") -> Any:
    import tritonclient.http

    given = tritonclient.http.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    return client.infer(name, [given], version).as_numpy("y")


def refusal(call: Any, *arguments: Any) -> tuple[str, str]:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        call(*arguments)
    return str(caught.value.status()), str(caught.value.message())


X = np.ones((2, 16), np.float32)

BROKEN = {
    "damaged": "ModelReadError",
    "no_device": "NPU",
    "wrong_key": "unknown key `devise`; expected one of device",
    "wrong_toml": "not valid TOML",
    "wrong_type": "`x` is bf16",
    "a name with spaces": "is not the name of a model",
    "empty": "expected either model.onnx or model.blob",
    "foreign": "avx4096",
    "unbatched": "compiled for CPU, which makes no batches",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_that_cannot_be_loaded(server: Running, client: Any, name: str) -> None:
    """It is not ready, with the reason, which the log has once; the server is ready for the others."""
    assert client.is_server_ready()
    assert not client.is_model_ready(name)
    status, message = refusal(ask, client, name, X)
    assert (status, message.partition(":")[0]) == ("503", "NotReadyError")
    reason = next(each["reason"] for each in client.get_model_repository_index() if each["name"] == name)
    errors = [line.replace("'", "") for line in server.log.splitlines() if "ERROR" in line]
    logged = [line for line in errors if f"model {name} " in line or f"model {name}," in line]
    assert len(logged) == 1
    assert BROKEN[name].replace("'", "") in logged[0]
    assert reason.replace("'", "") in logged[0]


def test_the_others_are_served(client: Any) -> None:
    for name in ("good", "blob"):
        np.testing.assert_allclose(ask(client, name, X), expected(X), atol=1e-5)
    index = {each["name"]: each["state"] for each in client.get_model_repository_index()}
    assert {name for name, state in index.items() if state == "READY"} == {"good", "slow", "blob"}
    assert set(index) == {"good", "slow", "blob", *BROKEN}


@pytest.mark.parametrize(
    "name", ["..", "../models/good", "good/1", "/etc", "a\\b", "", "x" * 300, "ü", "good\0", ".hidden"]
)
def test_names_that_no_model_can_have(server: Running, name: str) -> None:
    """Loading one reaches no folder outside the repository."""
    import grpc

    with grpc.insecure_channel(server.grpc) as channel:
        for call in ("Load", "Unload"):
            encoded = name.encode()
            message = b"\x0a" + bytes([len(encoded) & 127 | 128, len(encoded) >> 7]) + encoded
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/inference.GRPCInferenceService/RepositoryModel{call}")(message)
            code = grpc.StatusCode.FAILED_PRECONDITION if call == "Load" else grpc.StatusCode.NOT_FOUND
            assert caught.value.code() == code


def test_versions_are_loaded_replaced_and_kept(server: Running, folder: Path, client: Any) -> None:
    write(folder, "grows", dense(), CPU, version=1)
    client.load_model("grows")
    assert client.get_model_metadata("grows")["versions"] == ["1"]

    other = dense(3)
    write(folder, "grows", other, CPU + 'versions = "all"\n', version=2)
    client.load_model("grows")
    assert client.get_model_metadata("grows")["versions"] == ["1", "2"]
    assert client.get_model_metadata("grows")["inputs"][0]["shape"] == [3, 16]
    assert client.get_model_metadata("grows", "1")["inputs"][0]["shape"] == [-1, 16]
    np.testing.assert_allclose(ask(client, "grows", X, "1"), expected(X), atol=1e-5)
    assert refusal(ask, client, "grows", X)[0] == "400"
    assert refusal(ask, client, "grows", X, "3")[0] == "404"

    write(folder, "grows", b"junk", version=2)
    status, message = refusal(client.load_model, "grows")
    assert status == "400"
    assert message.startswith("ModelReadError")
    assert client.get_model_metadata("grows")["versions"] == ["1", "2"], "a reload that fails keeps what is served"

    (folder / "grows" / "config.toml").write_text("nonsense = 1\n")
    assert refusal(client.load_model, "grows")[0] == "400"
    np.testing.assert_allclose(ask(client, "grows", X, "1"), expected(X), atol=1e-5)

    client.unload_model("grows")
    assert refusal(ask, client, "grows", X)[0] == "404"
    assert refusal(client.unload_model, "grows")[0] == "404"
    assert refusal(client.load_model, "nothing")[0] == "400"


def test_a_new_version_that_is_broken_replaces_nothing(folder: Path, client: Any) -> None:
    """By default the latest version is served: the one before it, until the latest can be loaded."""
    write(folder, "updated", dense(), CPU, version=1)
    client.load_model("updated")
    write(folder, "updated", b"junk", version=2)
    assert refusal(client.load_model, "updated")[0] == "400"
    np.testing.assert_allclose(ask(client, "updated", X), expected(X), atol=1e-5)
    states = [(e["version"], e["state"]) for e in client.get_model_repository_index() if e["name"] == "updated"]
    assert states == [("1", "READY"), ("2", "UNAVAILABLE")]
    write(folder, "updated", dense(), version=2)
    client.load_model("updated")
    assert client.get_model_metadata("updated")["versions"] == ["2"]


def test_a_broken_model_is_repaired(folder: Path, client: Any) -> None:
    write(folder, "mended", b"junk", CPU)
    assert refusal(client.load_model, "mended")[0] == "400"
    assert not client.is_model_ready("mended")
    write(folder, "mended", dense())
    client.load_model("mended")
    np.testing.assert_allclose(ask(client, "mended", X), expected(X), atol=1e-5)


def test_reloading_under_load_drops_nothing(server: Running, folder: Path) -> None:
    """Four clients send requests while the model is written and loaded again: each answer is right."""
    import tritonclient.http

    write(folder, "busy", dense(), CPU)
    manager = tritonclient.http.InferenceServerClient(server.http)
    manager.load_model("busy")
    over = threading.Event()

    def talk(_: int) -> int:
        made = tritonclient.http.InferenceServerClient(server.http)
        count = 0
        while not over.is_set():
            np.testing.assert_allclose(ask(made, "busy", X), expected(X), atol=1e-5)
            count += 1
        made.close()
        return count

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(talk, each) for each in range(4)]
        try:
            for _ in range(5):
                write(folder, "busy", dense(), CPU)
                manager.load_model("busy")
        finally:
            over.set()
        assert all(call.result() > 0 for call in calls)
    assert server.log.count("loaded model busy") == 6
    manager.close()


def test_unloading_lets_accepted_requests_end(server: Running, folder: Path, client: Any) -> None:
    import tritonclient.http

    write(folder, "leaving", slow(4_000_000), CPU + "requests = 1\n")
    client.load_model("leaving")
    others = [tritonclient.http.InferenceServerClient(server.http, network_timeout=60) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(ask, other, "leaving", X) for other in others]
        wait_for(lambda: server.metric('engine_queue_length{model="leaving"') == 2)
        client.unload_model("leaving")
        assert [call.result().shape for call in calls] == [(2, 16)] * 3
    for other in others:
        other.close()


def test_clients_may_not_load_models_where_it_is_forbidden(tmp_path: Path) -> None:
    """Otherwise, whoever reaches a port of the server can unload its models."""
    import tritonclient.grpc
    import tritonclient.http

    write(tmp_path / "models", "dense", dense(), CPU)
    with running(tmp_path / "models", "--no-loading") as forbidding:
        over_http = tritonclient.http.InferenceServerClient(forbidding.http)
        over_grpc = tritonclient.grpc.InferenceServerClient(forbidding.grpc)
        for made, status in ((over_http, "403"), (over_grpc, "StatusCode.PERMISSION_DENIED")):
            for call in (made.load_model, made.unload_model):
                found, message = refusal(call, "dense")
                assert (found, "--no-loading" in message) == (status, True)
        assert [each["state"] for each in over_http.get_model_repository_index()] == ["READY"]
        np.testing.assert_allclose(ask(over_http, "dense", X), expected(X), atol=1e-5)
        over_http.close()
        over_grpc.close()
        assert "Traceback" not in forbidding.log


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log
