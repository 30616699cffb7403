"""Routes that stream tokens: the protocol's `generate` and `generate_stream`, and completions as OpenAI's clients ask.

KServe's own routes for OpenAI's clients need the package vllm, whose types they use, so this module defines them.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from engine.errors import EngineError, InputError, UnsupportedError
from engine_serve.data_plane import DataPlane
from engine_serve.deadlines import seconds_left
from engine_serve.generative_model import GenerativeModel, Piece, Prompt
from engine_serve.json_objects import object_of
from engine_serve.refusals import Refused
from engine_serve.repository import Repository

_EVENTS: Final = "text/event-stream"
_COMPLETION: Final = frozenset({"model", "prompt", "input_ids", "stream", "stream_options"})
"""Keys of a completion that are not parameters of the generation."""
_GENERATE: Final = frozenset({"id", "text_input", "input_ids", "parameters"})


def generation_router(data_plane: DataPlane, repository: Repository) -> APIRouter:
    """The routes that generate text and tokens."""
    router = APIRouter()

    async def generate(model_name: str, request: Request) -> Response:
        model, body, _, pieces = await _begun(data_plane, model_name, request, "text_input")
        async with contextlib.aclosing(pieces):
            found = [piece async for piece in pieces]
        return JSONResponse(_generated(model, body, found))

    async def generate_stream(model_name: str, request: Request) -> Response:
        model, body, _, pieces = await _begun(data_plane, model_name, request, "text_input")
        return await _events(pieces, lambda piece: _generated(model, body, [piece]))

    async def completions(request: Request) -> Response:
        body = await object_of(request)
        if not isinstance(body.get("stream"), bool | None):
            raise Refused(InputError("`stream` must be true or false"))
        has_usage = _has_usage(body)
        model, body, prompt, pieces = await _begun(data_plane, str(body.get("model")), request, "prompt")
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        head["model"] = model.name

        def completion(found: list[Piece], end: str | None) -> dict[str, Any]:
            tokens = [piece.token for piece in found if piece.token is not None]
            choice: dict[str, Any] = {"index": 0, "text": "".join(p.text for p in found), "finish_reason": end}
            choice["logprobs"] = None
            return head | {"choices": [choice | {"token_ids": tokens}]}

        if body.get("stream"):
            unknown_usage = {"usage": None} if has_usage else {}

            def last(tokens: list[int], is_whole: bool) -> list[Any]:
                """The end is an event of its own: when a token is sent, it is unknown whether another follows."""
                found = [completion([], model.finish_reason(tokens)) | unknown_usage] if is_whole else []
                usage = [head | {"choices": [], "usage": _usage(prompt, len(tokens))}] if has_usage else []
                return [*found, *usage, "[DONE]"]

            return await _events(pieces, lambda piece: completion([piece], None) | unknown_usage, last)
        async with contextlib.aclosing(pieces):
            found = [piece async for piece in pieces]
        tokens = [piece.token for piece in found if piece.token is not None]
        return JSONResponse(completion(found, model.finish_reason(tokens)) | {"usage": _usage(prompt, len(tokens))})

    async def models() -> Response:
        known = [model for model in repository.get_models().values() if isinstance(model, GenerativeModel)]
        return JSONResponse({"object": "list", "data": [{"id": model.name, "object": "model"} for model in known]})

    router.add_api_route("/v2/models/{model_name}/generate", generate, methods=["POST"])
    router.add_api_route("/v2/models/{model_name}/generate_stream", generate_stream, methods=["POST"])
    router.add_api_route("/openai/v1/completions", completions, methods=["POST"])
    router.add_api_route("/openai/v1/models", models, methods=["GET"])
    return router


async def _begun(
    data_plane: DataPlane, name: str, request: Request, key: str
) -> tuple[GenerativeModel, dict[str, Any], Prompt, AsyncGenerator[Piece, None]]:
    """The model, the body, the prompt in it, and the pieces of the answer. Raises `Refused`."""
    body = await object_of(request)
    model = data_plane.get_model_from_registry(name)
    try:
        if not isinstance(model, GenerativeModel):
            raise UnsupportedError(f"model `{name}` generates no tokens: its configuration has no [generation]")
        prompt = model.prompt(_prompt(body, key), _parameters(body, key))
        headers = dict(request.headers)
        deadline = seconds_left(headers, None, model.config.timeout_ms)
    except EngineError as e:
        refused = Refused(e)
        refused.log(name)
        raise refused from e
    return model, body, prompt, model.stream(prompt, deadline, headers)


def _prompt(body: dict[str, Any], key: str) -> str | list[Any]:
    """A text, or a value that should be a list of tokens. Raises `InputError`."""
    present = [name for name in (key, "input_ids") if body.get(name) is not None]
    if len(present) > 1:
        raise InputError(f"`{key}` and `input_ids` are both given; leave one out")
    given = body[present[0]] if present else None
    if not isinstance(given, str | list):
        raise InputError(f"`{key}` must be a text, or a list of numbers of tokens")
    return given


def _parameters(body: dict[str, Any], key: str) -> dict[str, Any]:
    """The parameters in a body: in a completion, all but the prompt; otherwise `parameters`. Raises `InputError`."""
    if key == "prompt":
        return {name: value for name, value in body.items() if name not in _COMPLETION}
    for name in body:
        if name not in _GENERATE:
            raise InputError(f"the request has the unknown key {name!r:.80}; put parameters into `parameters`")
    parameters = body.get("parameters")
    if not isinstance(parameters, dict | None):
        raise InputError("`parameters` must be an object")
    return parameters or {}


def _has_usage(body: dict[str, Any]) -> bool:
    """Whether a stream ends with the numbers of tokens. Raises `Refused` for options that do not fit."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not isinstance(options.get("include_usage"), bool | None):
        raise Refused(InputError("`stream_options` must be an object, and `include_usage` in it true or false"))
    if unknown := sorted(options.keys() - {"include_usage"}):
        raise Refused(InputError(f"`stream_options` has the unknown key {unknown[0]!r:.80}; expected include_usage"))
    if not body.get("stream"):
        raise Refused(InputError("`stream_options` is given without `stream`: true; leave it out"))
    return bool(options.get("include_usage"))


def _usage(prompt: Prompt, count: int) -> dict[str, int]:
    """The numbers of tokens of the prompt, of an answer of `count` tokens, and of both."""
    before = len(prompt.tokens)
    return {"prompt_tokens": before, "completion_tokens": count, "total_tokens": before + count}


def _generated(model: GenerativeModel, body: dict[str, Any], pieces: list[Piece]) -> dict[str, Any]:
    tokens = [piece.token for piece in pieces if piece.token is not None]
    found: dict[str, Any] = {"model_name": model.name, "model_version": model.version, "tokens": tokens}
    if model.has_text:
        found["text_output"] = "".join(piece.text for piece in pieces)
    return found | ({"id": body["id"]} if isinstance(body.get("id"), str) else {})


async def _events(
    pieces: AsyncGenerator[Piece, None],
    told: Callable[[Piece], Any],
    last: Callable[[list[int], bool], list[Any]] = lambda *_: [],
) -> Response:
    """Server-sent events, one for each piece; a request that is refused before the first one gets its status.

    `last` are those after the last piece, or after an error, from the tokens, and whether they are all.
    """
    try:
        first = await anext(pieces, None)
    except BaseException:
        await pieces.aclose()
        raise

    async def events() -> AsyncIterator[bytes]:
        tokens: list[int] = []
        is_whole = True
        async with contextlib.aclosing(pieces):
            try:
                piece = first
                while piece is not None:
                    if piece.token is not None:
                        tokens.append(piece.token)
                    yield _event(told(piece))
                    piece = await anext(pieces, None)
            except Refused as e:
                is_whole = False
                yield _event({"error": e.details})
            for each in last(tokens, is_whole):
                yield _event(each)

    return StreamingResponse(events(), media_type=_EVENTS)


def _event(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data: {text}\n\n".encode()
