"""`InferRoute`: inference over HTTP, beside KServe's application, whose layers would cost more than a small network."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from kserve import InferRequest, InferResponse

from engine_serve.data_plane import HEADER_LENGTH, DataPlane
from engine_serve.error_answers import error_answer
from engine_serve.guard import Answering, Message, Scope, Send
from engine_serve.refusals import Refused
from engine_serve.written import Written, written

_PATH: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer$")
_JSON: Final = (b"content-type", b"application/json")


class InferRoute:
    """Answers requests for inferences. Whatever their content type says, one decoder reads them.

    KServe's decoder of JSON bodies takes NaN and infinities, which JSON does not have.
    """

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    def find(self, path: str) -> Answering | None:
        """What answers requests to a path with their whole body; None for paths of other routes."""
        found = _PATH.match(path)
        if found is None:
            return None
        name, version = found.groups()
        return partial(self._answer, f"{name}/{version}" if version else name)

    async def _answer(self, name: str, scope: Scope, body: bytes, send: Send) -> None:
        """Send the answer, or that of an error; an error that is the server's is also raised, for the log."""
        try:
            payload, response = await self._inferred(name, scope, body)
            answer = written(payload, response)
        except Exception as e:
            failed = await error_answer(e)
            await failed(scope, _nothing, send)
            if failed.status_code == 500 and not isinstance(e, Refused):
                raise
            return
        for message in _messages(answer):
            await send(message)

    async def _inferred(self, name: str, scope: Scope, body: bytes) -> tuple[InferRequest, InferResponse]:
        headers = _headers(scope["headers"])
        await self._data_plane.awake(name)
        model = self._data_plane.get_model_from_registry(name)
        payload = self._data_plane.decode_inference_request(body, headers, name)
        await self._data_plane.take_shared(payload)
        return payload, await model.predict(payload, headers)


def _headers(given: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers by name; of those that are sent twice, the first one."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(list(given))}


def _messages(answer: Written) -> Iterable[Message]:
    headers = [(b"content-length", b"%d" % answer.size)]
    if answer.tensors is None:
        headers.append(_JSON)
    else:
        headers.append((HEADER_LENGTH.encode(), b"%d" % len(answer.text)))
    yield {"type": "http.response.start", "status": 200, "headers": headers}
    yield {"type": "http.response.body", "body": answer.body()}


async def _nothing() -> Message:
    raise NotImplementedError
