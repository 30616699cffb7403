"""A server in a process of its own, and models for it."""

from __future__ import annotations

import gzip
import http.server
import importlib.util
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, ElementType, Model, Parameter, Result, f32
from engine.onnx import write_model

START_SECONDS = 120

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = json.loads((FIXTURES / "chat" / "expected.json").read_text(encoding="utf-8"))
"""What transformers computed with the language model `chat`."""
END = 4
"""Its stop token."""
CONFIG = f"""device = "CPU"
queue_size = 12
[generation]
slots = 4
max_tokens = 400
max_length = 512
stop_tokens = [{END}]
prefix_cache_mib = 1
"""

WEIGHTS = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)


def dense(length: int | str = "N", element_type: ElementType = f32) -> Model:
    """y = relu(x @ WEIGHTS), x: [length, 16]."""
    x = Parameter(element_type, [length, 16], "x")
    y = ops.Relu(ops.MatMul(x, Constant(WEIGHTS.astype(element_type.numpy))))
    return Model([Result(y, "y")], [x], name="dense")


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x @ WEIGHTS, 0)


def slow(steps: int = 2_000_000) -> Model:
    """y = x after many steps in a loop that a device cannot shorten, 0.1 microseconds or more each; x: [N, 16]."""
    x, count = Parameter(f32, ["N", 16], "x"), Constant(np.array(steps))
    i, condition, carried = Parameter(ElementType.from_numpy(np.int64), [], "i"), _truth("c"), Parameter(f32, None, "v")
    step = ops.Mul(ops.Add(carried, Constant(np.float32(1))), Constant(np.float32(0.5)))
    body = Model(
        [Result(ops.Identity(condition), "c_out"), Result(step, "v_out")], [i, condition, carried], name="body"
    )
    loop = ops.Loop(count, Constant(np.array(True)), x, body=body)
    return Model([Result(loop, "y")], [x], name="slow")


def _truth(name: str) -> Parameter:
    return Parameter(ElementType.from_numpy(np.bool_), [], name)


def write(folder: Path, name: str, model: Model | bytes, config: str = "", version: int | None = None) -> None:
    """Put a model, or the bytes of its file, into a repository."""
    target = folder / name if version is None else folder / name / str(version)
    target.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / name / "config.toml").write_text(config)
    if isinstance(model, bytes):
        (target / "model.onnx").write_bytes(model)
    else:
        write_model(model, target / "model.onnx")


@dataclass
class Running:
    """A server that runs: the addresses `http` and `grpc`, and its log so far."""

    process: subprocess.Popen[str]
    http: str
    grpc: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def wait_until_loaded(self) -> None:
        wait_for(lambda: "models are loaded" in self.log or self.process.poll() is not None, START_SECONDS)

    def metric(self, line: str) -> float:
        """The sum of the values of the lines of /metrics that begin so; 0 if there is none."""
        code, text = self.get("/metrics")
        assert code == 200, text
        found = [each for each in text.splitlines() if each.startswith(line)]
        return sum(float(each.rpartition(" ")[2]) for each in found)


def wait_for(is_reached: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_reached():
        assert time.monotonic() < end, "the server did not get there in time"
        time.sleep(0.02)


@contextmanager
def running(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A server of the models in `folder`, ended at the end of the block if it still runs."""
    log_path = folder.with_name(folder.name + ".log")
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine", "serve", str(folder), "--port", "0", "--grpc-port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
        )
        try:
            assert process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                assert selector.select(START_SECONDS), "the server did not start in time"
            line = process.stdout.readline()
            found = re.search(r"https?://(\S+) and grpcs?://(\S+)", line)
            assert found, f"{line!r}\n{log_path.read_text()}"
            server = Running(process, found[1], found[2], log_path)
            server.wait_until_loaded()
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()
            process.stdout and process.stdout.close()


@contextmanager
def collecting() -> Iterator[tuple[dict[str, str], list[Any]]]:
    """A collector of OpenTelemetry: the environment of a server that sends to it, and the spans it has received."""
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    received: list[Any] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            request = messages.ExportTraceServiceRequest.FromString(body)
            received.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{collector.server_port}"
    try:
        yield os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "100"}, received
    finally:
        collector.shutdown()
        collector.server_close()


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    """OpenAI's own client of the `server` of a module."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://{server.http}/openai/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _extra() -> None:
    """Not imported: messages of KServe and of the client have the same names, and no process can have both."""
    for package in ("kserve", "tritonclient"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install engine-serve tritonclient[http,grpc]")
    if not entry_points(group="engine.commands", name="serve"):
        pytest.skip("the command is not installed: pip install engine-serve")
