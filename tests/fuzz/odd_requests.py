"""Requests of HTTP that are not right: see `requests`."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import numpy as np

from .served import PROMPTS

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    0.5,
    -0.0,
    1e39,
    5e-324,
    1e308,
    "",
    "a",
    "0",
    "\u0000",
    "\ud7ff",
    "é" * 300,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    [1, [2]],
    "NaN",
    "x" * 5000,
    [0] * 300,
)
KEYS = (
    "name",
    "shape",
    "datatype",
    "data",
    "parameters",
    "inputs",
    "outputs",
    "id",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "binary_data_size",
    "binary_data_output",
    "classification",
    "model_name",
    "shared_memory_region",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "repetition_penalty",
    "stop",
    "n",
    "logprobs",
    "stream",
    "prompt",
    "text_input",
    "input_ids",
    "foo_bar",
    "",
    "a" * 200,
)


def wrapped(path: str, body: bytes, **headers: str) -> bytes:
    given = {"Host": "a", "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _plain(r: random.Random) -> tuple[str, dict[str, Any]]:
    """A path, and a body that is right for it."""
    x = np.random.default_rng(r.randrange(1 << 30)).standard_normal((r.randint(1, 3), 16)).astype(np.float32)
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    match r.randrange(5):
        case 0 | 1:
            return f"/v2/models/{r.choice(('dense', 'batched'))}/infer", {
                "inputs": [tensor],
                "outputs": [{"name": "y"}],
            }
        case 2:
            state = {"name": "x", "shape": [1, 2, 3], "datatype": "FP32", "data": [1.0] * 6}
            flags = {"sequence_id": r.choice((7, "seven", r.randrange(1, 1 << 40))), "sequence_start": r.random() < 0.5}
            return "/v2/models/history/infer", {"inputs": [state], "parameters": flags}
        case 3:
            how = {"max_tokens": 3, "temperature": 0.5, "seed": 1}
            return "/v2/models/llama/generate", {"input_ids": list(r.choice(PROMPTS)), "parameters": how}
        case _:
            return "/openai/v1/completions", {"model": "llama", "prompt": list(r.choice(PROMPTS)), "max_tokens": 3}


def changed_json(r: random.Random) -> bytes:
    """A value, a key or a list of a body is another one, or there are more or fewer of them."""
    path, body = _plain(r)
    for _ in range(r.randint(0, 3)):
        _change(r, body)
    return wrapped(path, json.dumps(body).encode(), Content_Type=_kind(r))


def _change(r: random.Random, body: Any) -> None:
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(each, dict | list):
                walk(each)

    walk(body)
    if not places:
        return
    holder, key = r.choice(places)
    match r.randrange(5):
        case 0 | 1:
            holder[key] = copy.deepcopy(r.choice(ODD))
        case 2:
            del holder[key]
        case 3 if isinstance(holder, list):
            holder += copy.deepcopy(holder[key : key + 1]) * r.choice((1, 2, 300))
        case _:
            target = r.choice([each for each, _ in places if isinstance(each, dict)] or [{}])
            target[r.choice(KEYS)] = copy.deepcopy(r.choice(ODD))


def _kind(r: random.Random) -> str:
    return r.choice(
        ("application/json", "application/octet-stream", "text/plain", "", "application/json; charset=utf-16")
    )


def changed_text(r: random.Random) -> bytes:
    """The text of a body is damaged, or has numbers and depths that JSON does not have or servers do not expect."""
    path, body = _plain(r)
    text = bytearray(json.dumps(body).encode())
    for _ in range(r.randint(1, 4)):
        place = r.randrange(len(text) + 1)
        odd = r.choice(
            (
                b"NaN",
                b"Infinity",
                b"1e400",
                b"-1e999",
                b"9" * 400,
                b"[" * 2000,
                b'{"a":' * 300,
                b"\\ud800",
                b"\xff\xfe",
                b"\0",
                b",",
                b'"',
                b"}",
                b"]",
                b"//",
                b"'",
            )
        )
        match r.randrange(3):
            case 0:
                text[place : place + r.randint(0, 5)] = odd
            case 1:
                del text[place:]
            case _:
                text = bytearray(re.sub(rb"-?\d+(\.\d+)?(e-?\d+)?", lambda _, odd=odd: odd, bytes(text), count=1))
    return wrapped(path, bytes(text), Content_Type=_kind(r))


def binary_tensors(r: random.Random) -> bytes:
    """Lengths that do not fit what follows."""
    x = np.ones((r.randint(0, 3), 16), np.float32).tobytes()
    size = r.choice((len(x), len(x) + 1, len(x) - 1, 0, -1, 2**40, 1.5, "64", None))
    tensor = {"name": "x", "shape": [len(x) // 64, 16], "datatype": r.choice(("FP32", "BYTES", "FP64", "BF16", "BOOL"))}
    request = {"inputs": [tensor | {"parameters": {"binary_data_size": size}}] * r.choice((1, 1, 1, 2))}
    head = json.dumps(
        request | ({"outputs": [{"name": "y"}] * r.choice((1, 2, 3000))} if r.random() < 0.3 else {})
    ).encode()
    length = r.choice((str(len(head)), str(len(head) + 1), "0", "-1", "9" * 30, "x", "1e3", str(len(head) // 2)))
    return wrapped("/v2/models/dense/infer", head + x, Inference_Header_Content_Length=length)


def odd_routes(r: random.Random) -> bytes:
    """Paths, methods and headers that no client of the protocol sends."""
    _, body = _plain(r)
    path = r.choice(
        (
            "/v2/models/%2e%2e%2fsecret/infer",
            "/v2/models/dense/versions/0/infer",
            "/v2/models/dense/versions/x/infer",
            "//",
            "/v2/models//infer",
            "/v2/repository/models/dense/unload",
            "/v2/repository/models/../load",
            "/v2/repository/index",
            "/v1/models/dense:predict",
            "/v2/models/dense/generate",
            "/v2/models/history/generate_stream",
            "/metrics",
            "*",
            "/v2/models/" + "a" * 3000 + "/infer",
            "/v2/models/dense/infer?x=" + "%00",
            "/v2/models/stats",
            "/v2/models/%2e%2e/stats",
            "/v2/models/dense/versions/x/config",
            "/v2/models/\u00e9/infer",
        )
    )
    headers = {
        r.choice(
            (
                "grpc-timeout",
                "x-envoy-expected-rq-timeout-ms",
                "Content-Encoding",
                "Expect",
                "Upgrade",
                "Transfer-Encoding",
                "traceparent",
                "Content-Type",
                "X-" + "a" * 60,
            )
        ): r.choice(("1n", "soon", "-1", "9" * 40, "gzip", "100-continue", "websocket", "chunked", "é", "a" * 3000))
    }
    made = wrapped(path, json.dumps(body).encode(), **headers)
    return made.replace(b"POST", r.choice((b"POST", b"PUT", b"GET", b"DELETE", b"HEAD", b"PATCH", b"OPTIONS")), 1)


def damaged_bytes(r: random.Random) -> bytes:
    """A request whose bytes are changed, cut off or doubled."""
    made = bytearray(changed_json(r))
    for _ in range(r.randint(1, 6)):
        place = r.randrange(len(made) or 1)
        match r.randrange(4):
            case 0:
                made[place : place + 1] = bytes([r.randrange(256)])
            case 1:
                del made[place : place + r.randint(1, 20)]
            case 2:
                made[place:place] = r.choice(
                    (b"\r\n", b"\r\n\r\n", b"\0", b": ", b"Content-Length: 3\r\n", r.randbytes(8))
                )
            case _:
                made += made[: r.randint(0, 200)]
    return bytes(made)
