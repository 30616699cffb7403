"""Mixed load on a server: clients of all kinds, streams that are cancelled, reloads, and ends by SIGTERM and SIGKILL.

A case is a round of some seconds. Every answer is checked; what a server has accepted must be answered, unless it was
killed or its client went away; the server's log and its memory are looked at after each round. Sequences go on through
the reloads of other models. Needs engine-serve and tritonclient.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import queue
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from apps.serve.tests.conftest import Running, expected, write
from engine.testing.behaviour.states import History, chunk

from . import served
from .finding import Finding, note
from .served import PROMPTS, TOKENS, Server, check_equal, continued

LIMIT = 150.0
MEMORY = 0
INTERRUPTS = False
IS_KEPT = True

CLIENTS = 10
SECONDS = 6.0
ROUNDS = 40
"""The number of rounds after which each signal has ended a server once: it has to run for a while before its memory can
be judged.
"""
PATIENCE = 60.0

_totals: Counter[str] = Counter()


def prepare(devices: tuple[str, ...]) -> None:
    """The devices are the models'."""
    served.require_packages()


@functools.cache
def server() -> Server:
    """The server of all rounds."""
    for prompt in range(len(PROMPTS)):
        continued(prompt)
    return Server("--grace", "40")


def files(seed: int) -> dict[str, bytes]:
    """Nothing but the seed."""
    return {}


class Round:
    """The state that the clients of a round share."""

    def __init__(self, running: Running) -> None:
        self.running, self.is_over, self.is_ending = running, threading.Event(), threading.Event()
        self.counts: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()

    def count(self, what: str) -> None:
        """Count an answer, or what was instead of one."""
        with self._lock:
            self.counts[what] += 1

    def gone(self, error: Exception, what: str) -> None:
        """Record that a client got no answer: a finding, unless the server ends."""
        if not self.is_ending.is_set():
            raise Finding("no answer", f"{what}: {type(error).__name__}: {error}")
        self.count("refused at the end")


def run(seed: int) -> str:
    """One round."""
    r = random.Random(f"serving {seed}")
    at = Round(server().start())
    end = {1: "SIGTERM", 21: "SIGKILL"}.get(seed % ROUNDS, "goes on")
    works = [KINDS[index % len(KINDS)] for index in range(CLIENTS)]
    threads = [
        threading.Thread(target=_client, args=(at, work, random.Random(f"serving {seed} {index}")), daemon=True)
        for index, work in enumerate([*works, reloading])
    ]
    note(f"serving: {CLIENTS} clients, then the server {end}")
    for thread in threads:
        thread.start()
    time.sleep(SECONDS * r.uniform(0.3, 1.0))
    if end == "goes on":
        at.is_over.set()
    else:
        at.is_ending.set()
        server().end(by_force=end == "SIGKILL")
        at.is_over.set()
    until = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        raise Finding("hang", f"{sum(t.is_alive() for t in threads)} clients have no answer after {PATIENCE} s")
    for failure in at.failures:
        raise failure if isinstance(failure, Finding) else Finding(type(failure).__name__, str(failure))
    if end == "goes on":
        server().look()
    _totals.update(at.counts)
    _tell(end)
    return f"round, {end}"


def _tell(end: str) -> None:
    """Append the figures so far to the file that the environment names."""
    if path := os.environ.get("ENGINE_FUZZ_FIGURES"):
        line = {"time": round(time.time()), "end": end, "mebibytes": server().resident >> 20, **_totals}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _client(at: Round, work: Callable[[Round, random.Random], None], r: random.Random) -> None:
    try:
        while not at.is_over.is_set() and not at.failures:
            work(at, r)
            if at.is_ending.is_set():
                return
    except BaseException as e:
        at.failures.append(e)


# -- clients ------------------------------------------------------------------------------------------------------


def _post(at: Round, path: str, body: bytes, kind: str = "application/json", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(at.running.http, timeout=PATIENCE)
    try:
        connection.request("POST", path, body, {"Content-Type": kind, **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _is_answer(at: Round, status: int, body: bytes, what: str) -> bool:
    """Whether a request was answered; 503 is, beside the end of the server, for a load that is too high."""
    if status == 200:
        return True
    if status != 503:
        raise Finding(f"status {status}", f"{what}: {body[:500]!r}")
    at.count("503")
    time.sleep(0.05)
    return False


def over_http(at: Round, r: random.Random) -> None:
    """Inferences in JSON and with binary tensors, with and without batches."""
    name, rows = r.choice(("dense", "batched")), r.randint(1, 5)
    x = np.random.default_rng(r.randrange(1 << 30)).standard_normal((rows, 16)).astype(np.float32)
    tensor: dict[str, Any] = {"name": "x", "shape": [rows, 16], "datatype": "FP32"}
    path, headers, data = f"/v2/models/{name}/infer", {}, b""
    if r.random() < 0.5:
        tensor["data"] = x.tolist()
    else:
        data = x.tobytes()
        tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [tensor], "id": "a"}).encode()
    if data:
        headers = {"Inference-Header-Content-Length": str(len(head))}
    try:
        status, body = _post(at, path, head + data, **headers)
    except (OSError, http.client.HTTPException) as e:
        return at.gone(e, path)
    if _is_answer(at, status, body, path):
        (output,) = json.loads(body)["outputs"]
        check_equal(path, np.reshape(output["data"], output["shape"]), expected(x), 1e-5)
        at.count("http")
    return None


def _grpc_failed(at: Round, error: Any, what: str) -> None:
    status = str(error.status())
    if status == "StatusCode.UNAVAILABLE" and at.is_ending.is_set():
        return at.count("refused at the end")
    if status == "StatusCode.RESOURCE_EXHAUSTED":
        return at.count("503")
    raise Finding(f"gRPC {status}", f"{what}: {error}")


def over_grpc(at: Round, r: random.Random) -> None:
    """Some inferences by Triton's client; some are cancelled."""
    import tritonclient.grpc as module
    from tritonclient.utils import InferenceServerException

    client = module.InferenceServerClient(at.running.grpc)
    try:
        for _ in range(r.randint(1, 20)):
            name, rows = r.choice(("dense", "batched")), r.randint(1, 5)
            x = np.random.default_rng(r.randrange(1 << 30)).standard_normal((rows, 16)).astype(np.float32)
            given = module.InferInput("x", [rows, 16], "FP32")
            given.set_data_from_numpy(x)
            try:
                if r.random() < 0.1:
                    client.async_infer(name, [given], callback=lambda result, error: None).cancel()
                    at.count("cancelled")
                    continue
                found = client.infer(name, [given], client_timeout=PATIENCE).as_numpy("y")
            except InferenceServerException as e:
                _grpc_failed(at, e, name)
                if at.is_ending.is_set():
                    return
                continue
            check_equal(f"gRPC, {name}", found, expected(x), 1e-5)
            at.count("grpc")
    finally:
        client.close()


def sequences(at: Round, r: random.Random) -> None:
    """A sequence over HTTP; the state must be its own, whatever else runs."""
    right, steps = History(), r.randint(1, 12)
    identity = f"{r.randrange(1 << 40)}" if r.random() < 0.5 else r.randrange(1, 1 << 62)
    for step in range(steps):
        x = chunk(r.randint(1, 3), float(r.randint(-3, 3)))
        tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
        flags = {"sequence_id": identity, "sequence_start": step == 0, "sequence_end": step == steps - 1}
        body = json.dumps({"inputs": [tensor], "parameters": flags}).encode()
        while True:
            try:
                status, answer = _post(at, "/v2/models/history/infer", body)
            except (OSError, http.client.HTTPException) as e:
                return at.gone(e, "a sequence")
            if _is_answer(at, status, answer, f"sequence {identity}, step {step}"):
                break
            if at.is_ending.is_set() or at.is_over.is_set():
                return None
        total = next(each["data"] for each in json.loads(answer)["outputs"] if each["name"] == "total")
        check_equal(f"sequence {identity}, step {step}", total, right.total(x).reshape(-1))
        at.count("steps of sequences")
    return None


def tokens(at: Round, r: random.Random) -> None:
    """Tokens at once, or as a stream that may be cut off by its client."""
    prompt, count = r.randrange(len(PROMPTS)), r.randint(1, TOKENS)
    body = json.dumps({"input_ids": PROMPTS[prompt], "parameters": {"max_tokens": count}}).encode()
    if r.random() < 0.4:
        try:
            status, answer = _post(at, "/v2/models/llama/generate", body)
        except (OSError, http.client.HTTPException) as e:
            return at.gone(e, "generate")
        if _is_answer(at, status, answer, "generate"):
            check_equal("generate", json.loads(answer)["tokens"], continued(prompt)[:count])
            at.count("answers of tokens")
        return None
    read, most = list[int](), count if r.random() < 0.6 else r.randint(0, count)
    connection = http.client.HTTPConnection(at.running.http, timeout=PATIENCE)
    try:
        connection.request("POST", "/v2/models/llama/generate_stream", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if not _is_answer(at, response.status, b"" if response.status == 200 else response.read(), "generate_stream"):
            return None
        while len(read) < most and (line := response.readline()):
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise Finding("an error in a stream", str(event))
                read += event["tokens"]
        check_equal("a stream", read, continued(prompt)[: len(read)])
        if len(read) < most:
            raise http.client.IncompleteRead(b"", most - len(read))
        at.count("streams" if most == count else "streams that were cut off")
    except (OSError, http.client.HTTPException) as e:
        at.gone(e, "a stream")
    finally:
        connection.close()
    return None


def streams_of_grpc(at: Round, r: random.Random) -> None:
    """Triton's stream, with several requests in it."""
    import tritonclient.grpc as module
    from tritonclient.utils import InferenceServerException

    client, found = module.InferenceServerClient(at.running.grpc), queue.Queue[Any]()
    try:
        client.start_stream(lambda result, error: found.put((result, error)))
        for _ in range(r.randint(1, 4)):
            prompt, count = r.randrange(len(PROMPTS)), r.randint(1, TOKENS)
            given = module.InferInput("input_ids", [1, len(PROMPTS[prompt])], "INT64")
            given.set_data_from_numpy(np.array([PROMPTS[prompt]]))
            try:
                client.async_stream_infer("llama", [given], parameters={"max_tokens": count})
            except InferenceServerException as e:  # the stream has ended since; it has told why
                _, error = found.get(timeout=PATIENCE)
                return _grpc_failed(at, error or e, "a stream of gRPC")
            read: list[int] = []
            for _ in range(count):
                result, error = found.get(timeout=PATIENCE)
                if error is not None:
                    if "Busy" in str(error):
                        return at.count("503")
                    return _grpc_failed(at, error, "a stream of gRPC")
                read.append(result.as_numpy("tokens").item())
            check_equal("a stream of gRPC", read, continued(prompt)[:count])
            at.count("streams of gRPC")
        return None
    finally:
        client.stop_stream(cancel_requests=r.random() < 0.5)
        client.close()


def going_away(at: Round, r: random.Random) -> None:
    """Clients that ask and go, at any moment."""
    host, port = at.running.http.split(":")
    path = r.choice(("/v2/models/llama/generate_stream", "/v2/models/llama/generate", "/v2/models/dense/infer"))
    body = json.dumps({"input_ids": [3], "parameters": {"max_tokens": TOKENS}}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    sent = (head + body)[: r.choice((len(head) + len(body), r.randint(0, len(head) + len(body))))]
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
            client.sendall(sent)
            time.sleep(r.choice((0.0, 0.001, 0.01, 0.05)))
    except OSError as e:
        return at.gone(e, "a client that goes away")
    at.count("went away")
    return time.sleep(0.01)


def reloading(at: Round, r: random.Random) -> None:
    """Models are loaded again, some of them after their files have changed, while they are used."""
    if at.is_over.wait(r.uniform(0.1, 0.8)):
        return None
    name = r.choice(("dense", "batched", "llama"))
    config = server().folder / name / "config.toml"
    if r.random() < 0.6:
        config.write_text(config.read_text())
    elif r.random() < 0.3:
        write(server().folder, "broken", b"junk")
        name = "broken"
    if name == "dense" and r.random() < 0.5:
        write(server().folder, "dense", served.dense(), served.CPU)
    try:
        status, body = _post(at, f"/v2/repository/models/{name}/load", b"")
    except (OSError, http.client.HTTPException) as e:
        return at.gone(e, "loading")
    if status == 503 and at.is_ending.is_set():
        return at.count("refused at the end")
    if status != (400 if name == "broken" else 200):
        raise Finding(f"status {status}", f"loading {name}: {body[:500]!r}")
    return at.count("reloads")


KINDS: tuple[Callable[[Round, random.Random], None], ...] = (
    over_http, over_grpc, sequences, tokens, streams_of_grpc, over_http, over_grpc, sequences, tokens, going_away,
)  # fmt: skip
