"""`written`: an answer of an inference as the bytes of HTTP, each number of which is written once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from kserve import InferOutput, InferRequest, InferResponse
from kserve.protocol.infer_type import serialize_byte_tensor

from engine.errors import InputError
from engine_serve.refusals import Refused

_BYTES: Final = "BYTES"


@dataclass(frozen=True, slots=True)
class Written:
    """The JSON of an answer, and the binary tensors that follow it; None if there are none."""

    text: bytes
    tensors: list[Any] | None = None

    @property
    def size(self) -> int:
        """The bytes of the whole."""
        return len(self.text) + sum(map(len, self.tensors or ()))

    def body(self) -> bytes:
        """The whole."""
        return self.text if self.tensors is None else b"".join((self.text, *self.tensors))


def written(request: InferRequest, response: InferResponse) -> Written:
    """The answer to a request over HTTP. Raises `Refused` for FP16 in JSON, which the protocol does not have.

    NaN and infinities become null in JSON.
    """
    found = {output.name: output for output in response.outputs}
    asked = request.request_outputs
    if asked:
        forms = {each.name: each.binary_data for each in asked}
    else:
        forms = dict.fromkeys(found, request.use_binary_outputs)
    described, tensors = [], []
    for name, is_binary in forms.items():
        output = found[name]
        head: dict[str, Any] = {"name": name, "shape": output.shape, "datatype": output.datatype}
        # Without parameters if it is in shared memory: Triton's clients in C++ take any for those of binary data.
        if not output.parameters and is_binary:
            tensors.append(_bytes(output))
            head["parameters"] = {"binary_data_size": len(tensors[-1])}
        elif not output.parameters:
            head["data"] = _numbers(output)
        described.append(head)
    whole = {"id": response.id, "model_name": response.model_name, "model_version": response.model_version}
    text = orjson.dumps(whole | {"outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Written(text, tensors or None)


def _bytes(output: InferOutput) -> Any:
    value = output.data
    if output.datatype != _BYTES:
        return value.reshape(-1).view(np.uint8).data
    return serialize_byte_tensor(value).item() if value.size else b""


def _numbers(output: InferOutput) -> Any:
    """The elements of a tensor as what orjson writes."""
    value = output.data.reshape(-1)
    if output.datatype == _BYTES:
        return value.tolist()
    if output.datatype == "FP16" and value.size:
        raise Refused(
            InputError(f"output `{output.name}` is FP16, which JSON does not carry; ask for it as a binary tensor")
        )
    # All digits of a number that float32 has: orjson's shortest text of a float32 is another double.
    return value.astype(np.float64) if value.dtype == np.float32 else value
