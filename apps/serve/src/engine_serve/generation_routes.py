"""Routes that stream tokens: the protocol's `generate` and `generate_stream`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from engine.errors import InputError, UnsupportedError
from engine_serve.answers import Answer, Pieces
from engine_serve.data_plane import DataPlane
from engine_serve.deadlines import seconds_left
from engine_serve.events import event_response
from engine_serve.generative_model import GenerativeModel
from engine_serve.json_objects import object_of
from engine_serve.refusals import refusing

_GENERATE: Final = frozenset({"id", "text_input", "input_ids", "parameters"})


def generation_router(data_plane: DataPlane) -> APIRouter:
    """The routes that generate text and tokens."""
    router = APIRouter()

    async def generate(model_name: str, request: Request) -> Response:
        model, body, pieces = await _begun(data_plane, model_name, request)
        answer = Answer()
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                answer.add(piece)
        return JSONResponse(_generated(model, body, answer))

    async def generate_stream(model_name: str, request: Request) -> Response:
        model, body, pieces = await _begun(data_plane, model_name, request)
        return await event_response(_told(model, body, pieces), lambda refused: {"error": refused.details})

    router.add_api_route("/v2/models/{model_name}/generate", generate, methods=["POST"])
    router.add_api_route("/v2/models/{model_name}/generate_stream", generate_stream, methods=["POST"])
    return router


def generative_model(data_plane: DataPlane, name: str) -> GenerativeModel:
    """The language model of a name. Raises `Refused` and `UnsupportedError`."""
    model = data_plane.get_model_from_registry(name)
    if not isinstance(model, GenerativeModel):
        raise UnsupportedError(f"model `{name}` generates no tokens: its configuration has no [generation]")
    return model


async def _begun(data_plane: DataPlane, name: str, request: Request) -> tuple[GenerativeModel, dict[str, Any], Pieces]:
    """The model, the body, and the pieces of the answer. Raises `Refused`."""
    body = await object_of(request)
    with refusing(name):
        await data_plane.awake(name)
        model = generative_model(data_plane, name)
        prompt = model.prompt(_prompt(body), _parameters(body))
        headers = dict(request.headers)
        deadline = seconds_left(headers, None, model.config.timeout_ms)
    return model, body, model.stream(prompt, deadline, headers)


async def _told(model: GenerativeModel, body: dict[str, Any], pieces: Pieces) -> AsyncGenerator[Any, None]:
    """The events of an answer, one for each piece."""
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            if piece.token is not None or piece.text:
                answer = Answer()
                answer.add(piece)
                yield _generated(model, body, answer)


def _prompt(body: dict[str, Any]) -> str | list[Any]:
    """A text, or a value that should be a list of tokens. Raises `InputError`."""
    present = [name for name in ("text_input", "input_ids") if body.get(name) is not None]
    if len(present) > 1:
        raise InputError("`text_input` and `input_ids` are both given; leave one out")
    given = body[present[0]] if present else None
    if not isinstance(given, str | list):
        raise InputError("`text_input` must be a text, or `input_ids` a list of numbers of tokens")
    return given


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    """The parameters in a body. Raises `InputError`."""
    for name in body:
        if name not in _GENERATE:
            raise InputError(f"the request has the unknown key {name!r:.80}; put parameters into `parameters`")
    parameters = body.get("parameters")
    if not isinstance(parameters, dict | None):
        raise InputError("`parameters` must be an object")
    return parameters or {}


def _generated(model: GenerativeModel, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "tokens": answer.tokens}
    if model.has_text:
        found["text_output"] = answer.text
    return found | ({"id": body["id"]} if isinstance(body.get("id"), str) else {})
