"""onnxruntime's sessions for the models of a repository, and the protocol's tensors, for servers without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import orjson

_TYPES = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32}
_NAMES = {np.dtype(dtype): name for name, dtype in _TYPES.items()}


def open_sessions(folder: str) -> dict[str, onnxruntime.InferenceSession]:
    """A session with onnxruntime's own settings for each model, by name."""
    return {
        path.parent.name: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for path in sorted(Path(folder).glob("*/model.onnx"))
    }


def json_inputs(body: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a request in JSON."""
    return {t["name"]: np.array(t["data"], _TYPES[t["datatype"]]).reshape(t["shape"]) for t in body["inputs"]}


def binary_inputs(head: dict[str, Any], body: bytes, start: int) -> dict[str, Any]:
    """The inputs of a request whose tensors follow its JSON."""
    found = {}
    for tensor in head["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        found[tensor["name"]] = np.frombuffer(body[start : start + size], _TYPES[tensor["datatype"]]).reshape(
            tensor["shape"]
        )
        start += size
    return found


def json_answer(session: Any, outputs: list[Any]) -> dict[str, Any]:
    """An answer in JSON."""
    return {"outputs": [{**_described(name, v), "data": v.ravel().tolist()} for name, v in _named(session, outputs)]}


def binary_answer(session: Any, outputs: list[Any]) -> tuple[bytes, bytes]:
    """The JSON of an answer, and the tensors that follow it."""
    named = _named(session, outputs)
    described = [{**_described(name, v), "parameters": {"binary_data_size": v.nbytes}} for name, v in named]
    return orjson.dumps({"outputs": described}), b"".join(value.tobytes() for _, value in named)


def _named(session: Any, outputs: list[Any]) -> list[tuple[str, Any]]:
    return list(zip([port.name for port in session.get_outputs()], outputs, strict=True))


def _described(name: str, value: Any) -> dict[str, Any]:
    return {"name": name, "datatype": _NAMES[value.dtype], "shape": list(value.shape)}
