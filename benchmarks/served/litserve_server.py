"""onnxruntime behind LitServe, as its manual has it: python litserve_server.py FOLDER PORT.

LitServe's worker is another process, and its bodies are JSON; in place of binary tensors, they have base64. Methods
without annotations get the JSON of a body.
"""

import base64
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import onnxruntime
from peer_sessions import json_answer, json_inputs


class SessionAPI(litserve.LitAPI):  # type: ignore[misc]
    def __init__(self, path: Path) -> None:
        super().__init__(api_path=f"/v2/models/{path.parent.name}/infer")
        self._path = path

    def setup(self, device: str) -> None:
        self._session = onnxruntime.InferenceSession(self._path, providers=["CPUExecutionProvider"])

    def decode_request(self, request) -> dict[str, Any]:
        if "base64" not in request:
            return {"is_text": True, "inputs": json_inputs(request)}
        inputs = {
            name: np.frombuffer(base64.b64decode(text), dtype).reshape(shape)
            for name, (text, dtype, shape) in request["base64"].items()
        }
        return {"is_text": False, "inputs": inputs}

    def predict(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"is_text": given["is_text"], "outputs": self._session.run(None, given["inputs"])}

    def encode_response(self, found):
        if found["is_text"]:
            return json_answer(self._session, found["outputs"])
        return {"base64": [base64.b64encode(value).decode() for value in found["outputs"]]}


if __name__ == "__main__":
    apis = [SessionAPI(path) for path in sorted(Path(sys.argv[1]).glob("*/model.onnx"))]
    litserve.LitServer(apis, accelerator="cpu").run(
        port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False, log_level="warning", access_log=False
    )
