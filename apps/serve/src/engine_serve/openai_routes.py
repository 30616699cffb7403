"""OpenAI's API: completions, chats, and the list of models.

KServe's own routes for OpenAI's clients need the package vllm, whose types they use, so this module defines them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from engine.errors import NotServedError
from engine.generation import Adapter
from engine_serve.answers import Answer, merged
from engine_serve.chat_requests import chat_request
from engine_serve.data_plane import DataPlane
from engine_serve.deadlines import seconds_left
from engine_serve.events import DONE, event_response
from engine_serve.generation_routes import generative_model
from engine_serve.generative_model import OF_MODEL, GenerativeModel, Prompt
from engine_serve.json_objects import object_of
from engine_serve.openai_errors import PREFIX, error_object
from engine_serve.openai_forms import ChatForm, CompletionForm, Form
from engine_serve.openai_requests import Asked, completion_request, model_name, prompts_of
from engine_serve.refusals import Refused, refusing
from engine_serve.repository import Repository


def openai_router(data_plane: DataPlane, repository: Repository) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix=f"{PREFIX}v1")
    started = int(time.time())

    async def completions(request: Request) -> Response:
        body = await object_of(request)
        with refusing(str(body.get("model"))):
            await data_plane.awake(model_name(body).partition(OF_MODEL)[0])
            model, adapter = adapted_model(data_plane, model_name(body))
            asked = completion_request(body)
            given = [model.prompt(each, asked.asked.parameters) for each in asked.prompts]
            echoes = [_echo(model, each) if asked.echo else "" for each in asked.prompts]
            echoes = [echo for echo in echoes for _ in range(asked.asked.choices)]
            form = CompletionForm(body["model"], model.text, echoes, asked.asked.top is not None)
            return await answer(request, model, asked.asked, given, form, adapter)

    async def chats(request: Request) -> Response:
        body = await object_of(request)
        with refusing(str(body.get("model"))):
            await data_plane.awake(model_name(body).partition(OF_MODEL)[0])
            model, adapter = adapted_model(data_plane, model_name(body))
            asked = chat_request(body)
            if asked.choice.kind == "auto":
                model.require_tool_parser()
            prompt = model.prompt(await model.chat_tokens(asked.values), asked.asked.parameters)
            form = ChatForm(body["model"], model.text, asked.asked.top is not None, asked.choice)
            return await answer(request, model, asked.asked, [prompt], form, adapter)

    async def models() -> Response:
        names = repository.openai_names()
        return JSONResponse({"object": "list", "data": [_described(name, started) for name in names]})

    async def model(name: str) -> Response:
        if name not in repository.openai_names():
            raise Refused(NotServedError(f"there is no model {name!r:.80} for OpenAI's routes"))
        return JSONResponse(_described(name, started))

    router.add_api_route("/completions", completions, methods=["POST"])
    router.add_api_route("/chat/completions", chats, methods=["POST"])
    router.add_api_route("/models", models, methods=["GET"])
    router.add_api_route("/models/{name}", model, methods=["GET"])
    return router


def adapted_model(data_plane: DataPlane, name: str) -> tuple[GenerativeModel, Adapter | None]:
    """The language model of a name, and the adapter if the name is `MODEL:ADAPTER`. Raises `Refused`, and
    `NotServedError` for an unknown adapter.
    """
    base, separator, adapter = name.partition(OF_MODEL)
    try:
        return generative_model(data_plane, name), None
    except Refused as e:
        if not separator or not isinstance(e.error, NotServedError):
            raise
    model = generative_model(data_plane, base)
    if adapter not in model.adapters:
        known = ", ".join(model.adapters) or "none"
        raise NotServedError(f"model `{base}` has no adapter {adapter!r:.80}; its adapters are: {known}")
    return model, model.adapters[adapter]


async def answer(
    request: Request,
    model: GenerativeModel,
    asked: Asked,
    prompts: Sequence[Prompt],
    form: Form,
    adapter: Adapter | None,
) -> Response:
    """Generate the answers to prompts, in a form: at once, or as events. Raises `Refused` and errors of the SDK."""
    made = await prompts_of(model, asked, list(prompts), adapter)
    headers = dict(request.headers)
    deadline = seconds_left(headers, None, model.config.timeout_ms)
    sequences = [model.stream(prompt, deadline, headers) for prompt in made]
    before = sum(len(prompt.tokens) for prompt in prompts)
    if asked.is_stream:
        values = _events(sequences, form, asked.has_usage, before)
        return await event_response(values, _failed, DONE)
    answers = [Answer() for _ in sequences]
    async with contextlib.aclosing(merged(sequences)) as pieces:
        async for index, piece in pieces:
            answers[index].add(piece)
    return JSONResponse(form.whole(answers, _usage(before, sum(len(each.tokens) for each in answers))))


async def _events(sequences: Sequence[Any], form: Form, has_usage: bool, before: int) -> AsyncGenerator[Any, None]:
    unknown_usage = {"usage": None} if has_usage else {}
    count = 0
    async with contextlib.aclosing(merged(sequences)) as pieces:
        async for index, piece in pieces:
            count += piece.token is not None
            for part in form.parts(index, piece):
                yield form.event([part], **unknown_usage)
    if has_usage:
        yield form.event([], usage=_usage(before, count))


def _failed(refused: Refused) -> dict[str, Any]:
    return {"error": error_object(refused.http_status, refused.details)}


def _usage(before: int, count: int) -> dict[str, int]:
    """The numbers of tokens of the prompts, of the answers, and of both."""
    return {"prompt_tokens": before, "completion_tokens": count, "total_tokens": before + count}


def _echo(model: GenerativeModel, prompt: str | list[int]) -> str:
    """The text of a prompt, which its answers begin with."""
    return prompt if isinstance(prompt, str) else model.require_text("`echo` needs text").decode(prompt)


def _described(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "engine"}
