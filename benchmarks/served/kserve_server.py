"""onnxruntime behind KServe's server, as KServe's manual has it: python kserve_server.py FOLDER PORT."""

from __future__ import annotations

import sys
import uuid
from typing import Any

from peer_sessions import open_sessions

FOLDER, PORT = sys.argv[1:]
del sys.argv[1:]  # which KServe parses when it is imported

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer  # noqa: E402
from kserve.utils.numpy_codec import from_np_dtype  # noqa: E402


class SessionModel(Model):  # type: ignore[misc]
    def __init__(self, name: str, session: Any) -> None:
        super().__init__(name)
        self._session = session
        self._names = [port.name for port in session.get_outputs()]
        self.ready = True

    def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
        outputs = []
        inputs = {tensor.name: tensor.as_numpy() for tensor in payload.inputs}
        for name, value in zip(self._names, self._session.run(None, inputs), strict=True):
            outputs.append(InferOutput(name, list(value.shape), from_np_dtype(value.dtype)))
            outputs[-1].set_data_from_numpy(value, binary_data=bool(payload.use_binary_outputs))
        identity = payload.id or uuid.uuid4().hex
        return InferResponse(identity, self.name, outputs, use_binary_outputs=payload.use_binary_outputs)


if __name__ == "__main__":
    models = [SessionModel(name, session) for name, session in open_sessions(FOLDER).items()]
    ModelServer(http_port=int(PORT), enable_grpc=False).start(models)
