"""How a server begins and ends. If this fails, a rolling update loses requests, or a container never becomes ready."""

from __future__ import annotations

import concurrent.futures
import json
import os
import queue
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import Running, collecting, dense, expected, running, slow, wait_for, write

CPU = 'device = "CPU"\nqueue_size = 1000\n'
BATCHED = CPU + "[batching]\nsize = 4\ndelay_ms = 20\n"


def answers(server: Running, protocol: str, seed: int) -> int:
    """Ask until the server ends; returns how many requests were answered."""
    from geventhttpclient.response import HTTPConnectionClosed
    from tritonclient.utils import InferenceServerException

    if protocol == "grpc":
        import tritonclient.grpc as module
    else:
        import tritonclient.http as module
    client = module.InferenceServerClient(server.grpc if protocol == "grpc" else server.http)
    x = np.random.default_rng(seed).standard_normal((2, 16)).astype(np.float32)
    given = module.InferInput("x", [2, 16], "FP32")
    given.set_data_from_numpy(x)
    count = 0
    try:
        while True:
            answer = client.infer("batched", [given])
            np.testing.assert_allclose(answer.as_numpy("y"), expected(x), atol=1e-5)
            count += 1
    except (HTTPConnectionClosed, OSError):  # no longer accepted
        return count
    except InferenceServerException as e:
        if protocol == "grpc" and e.status() != "StatusCode.UNAVAILABLE":
            raise  # with another status, a client does not try another server
        return count
    finally:
        client.close()


def test_sigterm_under_load_loses_nothing_that_was_accepted(tmp_path: Path) -> None:
    """Every request that a model has accepted is answered, and every answer arrives."""
    write(tmp_path / "models", "batched", dense(), BATCHED)
    with running(tmp_path / "models") as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(answers, server, ("http", "grpc")[seed % 2], seed) for seed in range(16)]
        wait_for(lambda: server.metric('engine_requests_total{end="ok"') > 50)
        server.process.terminate()
        assert server.process.wait(60) == 0
        found = sum(call.result() for call in calls)
    assert found > 50
    assert f"ended: {found} requests were answered, 0 were cut off" in server.log
    assert "Traceback" not in server.log


def test_sigterm_waits_for_the_queue_and_serves_while_it_drains(tmp_path: Path) -> None:
    """Requests that wait when the signal comes are answered.

    So are those that come until load balancers have learned from readiness that they should send no more.
    """
    import tritonclient.grpc

    write(tmp_path / "models", "slow", slow(4_000_000), CPU + "requests = 1\n")
    write(tmp_path / "models", "dense", dense(), CPU)
    with running(tmp_path / "models", "--drain", "3") as server:
        client = tritonclient.grpc.InferenceServerClient(server.grpc)
        given = tritonclient.grpc.InferInput("x", [1, 16], "FP32")
        given.set_data_from_numpy(np.ones((1, 16), np.float32))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(client.infer, "slow", [given]) for _ in range(4)]
            wait_for(lambda: server.metric('engine_queue_length{model="slow"') == 3)
            server.process.terminate()
            wait_for(lambda: server.get("/v2/health/ready")[0] == 503)
            assert client.infer("dense", [given]).as_numpy("y").shape == (1, 8)
            assert [call.result().as_numpy("y").shape for call in calls] == [(1, 16)] * 4
        client.close()
        assert server.process.wait(60) == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(server.http.split(":"))  # type: ignore[arg-type]


def test_a_server_without_a_usable_model_and_the_limit_of_the_grace_period(tmp_path: Path) -> None:
    """It is alive, and ready once its model is repaired; requests beyond the grace period are cut off."""
    import tritonclient.grpc
    from tritonclient.utils import InferenceServerException

    write(tmp_path / "models", "damaged", b"junk", CPU)
    with running(tmp_path / "models", "--log-format", "json", "--grace", "1") as server:
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/health/ready")[0] == 503
        write(tmp_path / "models", "damaged", slow(100_000_000), CPU)
        load = urllib.request.Request(f"http://{server.http}/v2/repository/models/damaged/load", method="POST")
        assert urllib.request.urlopen(load, timeout=60).status == 200
        assert server.get("/v2/health/ready")[0] == 200
        records = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
        assert [record["level"] for record in records if record.get("model") == "damaged"] == ["ERROR", "INFO"]

        client = tritonclient.grpc.InferenceServerClient(server.grpc)
        given = tritonclient.grpc.InferInput("x", [1, 16], "FP32")
        given.set_data_from_numpy(np.ones((1, 16), np.float32))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            call: Any = pool.submit(client.infer, "damaged", [given])
            wait_for(lambda: server.metric('engine_running_inferences{model="damaged"') == 1)
            server.process.terminate()
            with pytest.raises(InferenceServerException, match="NotReadyError: the server is shutting down"):
                call.result()
        client.close()
        assert server.process.wait(60) == 0
        assert "ended: 0 requests were answered, 1 were cut off" in server.log


def test_an_idle_stream_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """It ends with UNAVAILABLE; the grace period is for requests."""
    import tritonclient.grpc

    write(tmp_path / "models", "dense", dense(), CPU)
    with running(tmp_path / "models", "--grace", "600") as server:
        client, answers = tritonclient.grpc.InferenceServerClient(server.grpc), queue.Queue[Any]()
        client.start_stream(lambda result, error: answers.put((result, error)))
        given = tritonclient.grpc.InferInput("x", [1, 16], "FP32")
        given.set_data_from_numpy(np.ones((1, 16), np.float32))
        client.async_stream_infer("dense", [given])
        assert answers.get(timeout=30)[0].as_numpy("y").shape == (1, 8)
        server.process.terminate()
        assert "UNAVAILABLE" in str(answers.get(timeout=30)[1])
        assert server.process.wait(60) == 0
        client.close()
        assert "Traceback" not in server.log


COMPILING = """
import sys, threading
from engine import Core
from engine.plugin_api import API_VERSION, Plugin
from engine.cli import networks
from engine.cli.main import main

class Endless(Plugin):
    name, version, api_version = "ENDLESS", "1", API_VERSION

    def compile_model(self, model, config):
        print("compiles", file=sys.stderr, flush=True)
        threading.Event().wait()

    def import_network(self, blob, config):
        raise NotImplementedError

    def query_model(self, model, config):
        raise NotImplementedError

core = Core()
core.register_plugin(Endless.name, Endless)
networks.make_core = lambda args: core
sys.exit(main(["serve", sys.argv[1], "--port", "0", "--no-grpc", "--grace", "1"]))
"""


def endless_server(folder: Path) -> subprocess.Popen[str]:
    """A server with a device ENDLESS, whose compilations do not end."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILING, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    return process


@pytest.mark.parametrize("asks", ["at its start", "by a client"])
def test_sigterm_does_not_wait_for_a_compilation(tmp_path: Path, asks: str) -> None:
    """Otherwise, the server is killed after its grace period, before it has done what it has to do at its end."""
    write(tmp_path / "models", "dense", dense(), CPU)
    if asks == "at its start":
        write(tmp_path / "models", "endless", dense(), 'device = "ENDLESS"\n')
    process = endless_server(tmp_path / "models")
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []

    def seen(text: str) -> None:
        """Read its log until a line has the text."""
        for line in process.stderr or ():
            lines.append(line)
            if text in line:
                return
        raise AssertionError("".join(lines))

    try:
        address = process.stdout.readline().split("http://")[1].strip()
        if asks == "by a client":
            seen("models are loaded")
            write(tmp_path / "models", "endless", dense(), 'device = "ENDLESS"\n')
            host, port = address.split(":")
            with socket.create_connection((host, int(port))) as client:
                path = b"/v2/repository/models/endless/load"
                client.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
                seen("compiles")
                process.terminate()
                assert process.wait(60) == 0
                assert b" 503 " in client.recv(4096)
        else:
            seen("compiles")
            process.terminate()
            assert process.wait(60) == 0
        lines += process.stderr.readlines()
        assert "ended: 0 requests were answered" in lines[-1]
        assert "Traceback" not in "".join(lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine", "serve", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_what_is_wrong_with_the_command_line(tmp_path: Path) -> None:
    missing = command(str(tmp_path / "nothing"))
    assert missing.returncode == 2
    assert "is not a folder" in missing.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options in (["--port", str(port), "--grpc-port", "0"], ["--port", "0", "--grpc-port", str(port)]):
            used = command(str(tmp_path), *options)
            assert (used.returncode, used.stdout) == (3, "")
            assert "in use" in used.stderr or "cannot listen" in used.stderr
            assert "Traceback" not in used.stderr


def test_without_kserve_it_says_what_to_install(tmp_path: Path) -> None:
    """And no other command imports KServe, which takes seconds."""
    program = (
        "import sys; sys.modules['kserve'] = None\n"
        "from engine.cli.main import main\n"
        f"code = main(['serve', {str(tmp_path)!r}])\n"
        "assert not {'fastapi', 'grpc', 'pandas', 'uvicorn'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "pip install engine-serve" in done.stderr


def test_traces_and_the_log_name_the_client_s_trace(tmp_path: Path) -> None:
    """The spans of a request, of both protocols, arrive at a collector as children of the client's."""
    write(tmp_path / "models", "dense", dense(), CPU)
    with (
        collecting() as (env, received),
        running(tmp_path / "models", "--traces", "--log-format", "json", env=env) as server,
    ):
        for index, (module, made) in enumerate(made_clients(server)):
            given = module.InferInput("x", [1, 16], "FP32")
            given.set_data_from_numpy(np.ones((1, 16), np.float32))
            made.infer("dense", [given], headers={"traceparent": f"00-{index + 1:032x}-{7:016x}-01"})
            wrong = module.InferInput("x", [1, 15], "FP32")
            wrong.set_data_from_numpy(np.ones((1, 15), np.float32))
            with pytest.raises(Exception, match="15"):
                made.infer("dense", [wrong], headers={"traceparent": f"00-{index + 11:032x}-{7:016x}-01"})
            made.close()
        parts = {(number, name) for number in (1, 2) for name in ("infer", "queue", "run")}
        wait_for(lambda: parts <= {(int.from_bytes(span.trace_id, "big"), span.name) for span in received})
        refused = [json.loads(line) for line in server.log.splitlines() if '"refused' in line]
    assert [record["trace_id"] for record in refused] == [f"{11:032x}", f"{12:032x}"]


def test_a_collector_of_traces_that_does_not_answer(tmp_path: Path) -> None:
    """Otherwise, the end takes so much longer than the grace period that the server is killed."""
    pytest.importorskip("opentelemetry.sdk")
    write(tmp_path / "models", "dense", dense(), CPU)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
        with running(tmp_path / "models", "--traces", env=env) as server:
            body = json.dumps({"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16}]})
            infer = f"http://{server.http}/v2/models/dense/infer"
            request = urllib.request.Request(infer, body.encode(), {"content-type": "application/json"})
            assert urllib.request.urlopen(request, timeout=60).status == 200
            server.process.terminate()
            assert server.process.wait(60) == 0
        assert "the collector of traces did not answer within 5 s; the last spans are lost" in server.log
        assert "Traceback" not in server.log


def made_clients(server: Running) -> list[tuple[Any, Any]]:
    import tritonclient.grpc
    import tritonclient.http

    return [
        (tritonclient.http, tritonclient.http.InferenceServerClient(server.http)),
        (tritonclient.grpc, tritonclient.grpc.InferenceServerClient(server.grpc)),
    ]


REFUSED_AT_THE_END = """
import asyncio
import logging
import grpc
from grpc import aio
from engine_serve.grpc_calls import Ending

logging.basicConfig()
ending = Ending()

async def method(request, context):
    ending.is_over.set()
    await ending.limited(context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused"), context)

async def main():
    server = aio.server()
    handlers = {"method": grpc.unary_unary_rpc_method_handler(method)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("service", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            await channel.unary_unary("/service/method")(b"")
        except aio.AioRpcError as e:
            print(e.code().name, e.details())
    await server.stop(0)

asyncio.run(main())
"""


def test_a_call_that_is_being_refused_when_the_grace_period_ends() -> None:
    """It is refused once: a second refusal is an error of the server, which logs a traceback."""
    # A process of its own: KServe and tritonclient cannot both be imported.
    done = subprocess.run([sys.executable, "-c", REFUSED_AT_THE_END], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("INVALID_ARGUMENT refused\n", "", 0)
