"""Messages of gRPC that are not right, field by field: see `requests`."""

from __future__ import annotations

import random
import struct

import numpy as np

from .odd_requests import KEYS


def grpc_message(r: random.Random) -> tuple[str, bytes, bool]:
    """A method, the bytes of its message, and whether it is a stream."""
    name, version = (
        r.choice(("dense", "batched", "history", "llama", "nothing", "../x", "")),
        r.choice(("", "", "1", "9", "x")),
    )
    is_tokens = name == "llama"
    tensor = _text(1, "input_ids" if is_tokens else "x") + _text(
        2, r.choice(("INT64" if is_tokens else "FP32", "BYTES", "?"))
    )
    lengths = [1, 4] if is_tokens else [1, 16]
    tensor += b"".join(_number(3, length) for length in r.choice((lengths, lengths, [0], [2**62, 2**62], [])))
    data = np.arange(4).tobytes() if is_tokens else np.ones(16, np.float32).tobytes()
    content = _bytes(7, data if r.random() < 0.8 else r.randbytes(r.randint(0, 80)))
    message = _text(1, name) + _text(2, version) + b"".join(_parameter(r) for _ in range(r.choice((0, 0, 1, 2))))
    message += _bytes(5, tensor) * r.choice((1, 1, 1, 2, 0)) + content * r.choice((1, 1, 2, 0))
    message += _bytes(6, _text(1, r.choice(("y", "tokens", "total", "w")))) * r.choice((0, 0, 1, 2, 2000))
    damaged = bytearray(message)
    for _ in range(r.choice((0, 0, 1, 3))):
        place = r.randrange(len(damaged))
        damaged[place] = r.randrange(256)
    method = r.choice(
        (
            "ModelInfer",
            "ModelInfer",
            "ModelInfer",
            "ModelStreamInfer",
            "ModelReady",
            "ModelMetadata",
            "RepositoryModelLoad",
            "Nothing",
        )
    )
    return method, bytes(damaged), method == "ModelStreamInfer"


def _parameter(r: random.Random) -> bytes:
    value = r.choice(
        (
            _number(1, 1),
            _number(2, r.choice((0, 1, 2**63, 2**64 - 1))),
            _text(3, r.choice(("", "1", "1e308", "a" * 300))),
            b"\x21" + struct.pack("<d", r.choice((0.5, float("nan"), float("inf"), 1e308, -1.0))),
            _number(5, 7),
            b"",
            _number(9, 1),
        )
    )
    return _bytes(4, _text(1, r.choice(KEYS)) + _bytes(2, value))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())
