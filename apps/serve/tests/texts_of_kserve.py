"""Prints in what answers of HTTP differ from KServe's own text of them, for all types of the protocol.

A program of its own, since KServe's messages and those of tritonclient, which the tests use, have the same names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from engine_serve.refusals import Refused
from engine_serve.written import written
from kserve import InferOutput, InferRequest, InferResponse
from kserve.protocol.infer_type import RequestedOutput
from kserve.utils.numpy_codec import from_np_dtype

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TYPES = ("float16", "float32", "float64", "bool", *INTEGERS)


def values() -> dict[str, Any]:
    """An array of each type of the protocol, and some shapes."""
    random, found = np.random.default_rng(0), {}
    for name in TYPES:
        dtype = np.dtype(name)
        numbers = random.standard_normal((3, 4)) * 1e3 if dtype.kind == "f" else random.integers(0, 100, (3, 4))
        found[name] = numbers.astype(dtype)
        if dtype.kind in "iu":
            found[name].flat[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
        if dtype.kind == "f":
            found[name].flat[:3] = np.nan, -np.inf, np.finfo(dtype).tiny
    found |= {"scalar": np.float32(0.1).reshape(()), "empty": np.empty((0, 3), np.float32)}
    texts = np.array(["", "a", '\u00e9\U0001f600\n"', "0"], object).reshape(2, 2)
    return found | {"texts": texts, "no texts": np.empty((0,), object)}


def exchange(asked: Any, parameters: Any, left_out: tuple[str, ...] = ()) -> tuple[InferRequest, InferResponse]:
    request = InferRequest("m", [], "7", parameters=parameters, request_outputs=asked)
    found = {name: value for name, value in values().items() if name not in left_out}
    outputs = [InferOutput(name, list(v.shape), from_np_dtype(v.dtype), data=v) for name, v in found.items()]
    response = InferResponse(
        "7", "m", outputs, "1", use_binary_outputs=request.use_binary_outputs, requested_outputs=asked
    )
    return request, response


def differing(parameters: Any, asked: str) -> list[str]:
    """In what an answer of `written` differs from KServe's. KServe does not write FP16 in JSON."""
    outputs = None
    if asked == "some":
        outputs = [RequestedOutput(name) for name in ("uint64", "float32", "texts", "empty")]
    if asked == "mixed":
        outputs = [RequestedOutput(n, {"binary_data": i % 2 == 0}) for i, n in enumerate(values())]
    is_binary = parameters is not None and parameters["binary_data_output"]
    left_out = () if outputs is not None or is_binary else ("float16",)
    answer = written(*exchange(outputs, parameters, left_out))
    content, length = exchange(outputs, parameters, left_out)[1].to_rest()
    found = {
        "bytes": (answer.body(), orjson.dumps(content) if length is None else content),
        "size": (answer.size, len(answer.body())),
        "length of the JSON": (None if answer.tensors is None else len(answer.text), length),
    }
    return [
        f"{parameters} {asked} {what}: {ours!r} {theirs!r}" for what, (ours, theirs) in found.items() if ours != theirs
    ]


def main() -> None:
    for parameters in (None, {"binary_data_output": True}, {"binary_data_output": False}):
        for asked in ("all", "some", "mixed"):
            print(*differing(parameters, asked), sep="\n", end="")
    try:
        written(*exchange(None, None))
    except Refused as e:
        print(e.http_status, e.details)


if __name__ == "__main__":
    main()
