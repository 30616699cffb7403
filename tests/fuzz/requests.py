"""Requests that are not right, to a server: changed JSON, tensors, headers, bytes of HTTP, messages of gRPC.

Each has an answer with a status that the protocol has, and an `error` that names a class of the SDK if it is refused;
an answer of 200 is right. The server goes on, writes no traceback, and does not grow. Needs engine-serve.
"""

from __future__ import annotations

import functools
import json
import random
import re
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

import engine.errors
from apps.serve.tests.conftest import expected

from . import served
from .finding import Finding, note
from .odd_messages import grpc_message
from .odd_requests import binary_tensors, changed_json, changed_text, damaged_bytes, odd_routes, wrapped
from .served import PROMPTS, Server, check_equal

LIMIT = 60.0
MEMORY = 0
INTERRUPTS = False
IS_KEPT = True

STATUSES = {200, 400, 403, 404, 405, 408, 413, 415, 503, 504}
PATIENCE = 30.0

KINDS: tuple[Callable[[random.Random], Any], ...] = (
    changed_json,
    changed_text,
    binary_tensors,
    odd_routes,
    damaged_bytes,
    grpc_message,
)
WEIGHTS = (5, 3, 3, 2, 3, 5)


def prepare(devices: tuple[str, ...]) -> None:
    """The devices are the models'."""
    served.require_packages()


@functools.cache
def server() -> Server:
    """The server of all cases."""
    return Server("--max-body", "1", "--body-timeout", "2", "--max-answer", "4", "--no-loading")


def files(seed: int) -> dict[str, bytes]:
    """The bytes that are sent over HTTP, if the case is one."""
    r = random.Random(f"requests {seed}")
    make = r.choices(KINDS, WEIGHTS)[0]
    return {} if make is grpc_message else {"request.bin": make(r)}


def run(seed: int) -> str:
    """Send one request, and now and then check the server."""
    running = server().start()
    r = random.Random(f"requests {seed}")
    make = r.choices(KINDS, WEIGHTS)[0]
    note(f"requests: {make.__name__}")
    if make is grpc_message:
        outcome = _call(running.grpc, *grpc_message(r))
    else:
        outcome = _send(running.http, make(r), make in (changed_json, changed_text, binary_tensors))
    if seed % 10 == 0:
        _check_right(running.http)
        server().look()
    return f"{make.__name__}: {outcome}"


# -- answers ------------------------------------------------------------------------------------------------------


def _send(address: str, request: bytes, is_whole: bool = True) -> str:
    """Send a request; the server may wait for the rest of one that is not whole."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE if is_whole else 3.0) as client:
        parts = []
        try:
            client.sendall(request)
            while part := client.recv(1 << 16):
                parts.append(part)
        except TimeoutError:
            if is_whole:
                raise Finding("hang", f"no end of the answer after {PATIENCE} s: {b''.join(parts)[:300]!r}") from None
        except OSError:
            pass  # the connection of a body that is too long is closed
    if is_whole and not parts:
        raise Finding("no answer", repr(request[:600]))
    return _judged(b"".join(parts), request)


def _judged(answer: bytes, request: bytes) -> str:
    if not answer:
        return "no answer"
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    if found is None:
        raise Finding("an answer that is not HTTP", repr(answer[:500]))
    status = int(found[1])
    if status not in STATUSES and not (status == 400 or request.startswith((b"HEAD", b"OPTIONS"))):
        raise Finding(f"status {status}", f"{request[:600]!r}\n{answer[:1000]!r}")
    if len(answer) > 3000 and status != 200:
        raise Finding("a long message", f"{len(answer)} bytes: {answer[:600]!r}")
    if status == 400 and body.startswith(b"{"):
        error = json.loads(body[: int(_header(head, b"content-length") or len(body))])["error"]
        kind = str(error["message"] if isinstance(error, dict) else error).partition(":")[0]  # an object for OpenAI
        if not hasattr(engine.errors, kind):
            raise Finding("an error without a class", repr(body[:500]))
        return f"400 {kind}"
    if status == 200 and request.startswith((b"POST /v2/models/dense/infer ", b"POST /v2/models/batched/infer ")):
        _check_answer(request, body)
    return str(status)


def _header(head: bytes, name: bytes) -> int | None:
    found = re.search(rb"\r\n" + name + rb": (\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else None


def _check_answer(request: bytes, body: bytes) -> None:
    """An answer in JSON to a request in JSON is right for the numbers that were sent."""
    try:
        given = json.loads(request.partition(b"\r\n\r\n")[2], parse_constant=_refuse)
        (tensor,) = given["inputs"]
        x = np.array(tensor["data"], np.float64).astype(np.float32).reshape(tensor["shape"])
        answer = json.loads(body)["outputs"]
    except (KeyError, ValueError):
        return
    for output in answer:
        if "data" in output and not any(each is None for each in output["data"]):
            want = expected(x)
            check_equal(
                "an answer",
                np.reshape(output["data"], output["shape"]),
                want,
                1e-5 + 1e-5 * float(np.abs(want).max(initial=0)),
            )


def _refuse(text: str) -> Any:
    raise Finding("a number that JSON does not have", text)


def _call(address: str, method: str, message: bytes, streams: bool) -> str:
    import grpc

    path = f"/inference.GRPCInferenceService/{method}"
    with grpc.insecure_channel(address) as channel:
        try:
            if streams:
                list(channel.stream_stream(path)(iter([message]), timeout=PATIENCE))
            else:
                channel.unary_unary(path)(message, timeout=PATIENCE)
        except grpc.RpcError as e:
            code, details = e.code().name, str(e.details())
            if code in ("UNKNOWN", "INTERNAL", "CANCELLED", "DATA_LOSS", "UNAVAILABLE", "ABORTED"):
                raise Finding(f"gRPC {code}", f"{method} {message[:300]!r}: {details[:1000]}") from e
            if len(details) > 3000:
                raise Finding("a long message", f"{len(details)} characters: {details[:600]}") from e
            return f"{code} {details.partition(':')[0]}" if code == "INVALID_ARGUMENT" else str(code)
    return "OK"


def _check_right(address: str) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 16) / 8
    tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": x.reshape(-1).tolist()}
    if _send(address, wrapped("/v2/models/dense/infer", json.dumps({"inputs": [tensor]}).encode())) != "200":
        raise Finding("the server is of no use", "a request that is right is not answered")
    tokens = {"input_ids": PROMPTS[0], "parameters": {"max_tokens": 2}}
    status = _send(address, wrapped("/v2/models/llama/generate", json.dumps(tokens).encode()))
    if status != "200":
        raise Finding("the server is of no use", f"no tokens are generated: {status}")
