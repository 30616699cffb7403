"""OpenAI's route for embeddings, and the route `rerank`, in the form of Jina's and Cohere's, as vLLM has it."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from engine.errors import InputError, UnsupportedError
from engine_serve.data_plane import DataPlane
from engine_serve.deadlines import seconds_left
from engine_serve.encoder_model import EncoderModel
from engine_serve.generation_parameters import number_of, truth_of
from engine_serve.json_objects import object_of
from engine_serve.openai_errors import PREFIX
from engine_serve.openai_requests import model_name, prompts_in
from engine_serve.refusals import refusing

_EMBEDDINGS: Final = frozenset({"model", "input", "encoding_format", "dimensions", "user"})
_RERANK: Final = frozenset({"model", "query", "documents", "top_n", "return_documents", "user"})
_MAX_DOCUMENTS: Final = 2048


def encoder_router(data_plane: DataPlane) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix=f"{PREFIX}v1")

    async def embeddings(request: Request) -> Response:
        body = await object_of(request)
        with refusing(str(body.get("model"))):
            await data_plane.awake(model_name(body))
            given, model = _given(body, _EMBEDDINGS), _encoder(data_plane, body)
            if model.encoder.pooling == "score":
                raise UnsupportedError(f"model `{model.name}` computes scores; send `query` and `documents` to rerank")
            encoding = given.get("encoding_format", "float")
            if encoding not in ("float", "base64"):
                raise InputError(f"`encoding_format` is {encoding!r:.40}; expected float or base64")
            sequences = [model.sequence(each) for each in prompts_in("input", given.get("input"))]
            headers = dict(request.headers)
            vectors = await model.pooled(sequences, seconds_left(headers, None, model.config.timeout_ms), headers)
            if given.get("dimensions", vectors.shape[1]) != vectors.shape[1]:
                raise UnsupportedError(
                    f"`dimensions` is {given['dimensions']!r:.40}; model `{model.name}` has vectors of "
                    f"{vectors.shape[1]} numbers, which cannot be shortened"
                )
        count = sum(len(each.tokens) for each in sequences)
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})

    async def rerank(request: Request) -> Response:
        body = await object_of(request)
        with refusing(str(body.get("model"))):
            await data_plane.awake(model_name(body))
            given, model = _given(body, _RERANK), _encoder(data_plane, body)
            if model.encoder.pooling != "score":
                raise UnsupportedError(f"model `{model.name}` computes vectors; send texts to embeddings")
            query, documents = given.get("query"), _documents(given.get("documents"))
            if not isinstance(query, str):
                raise InputError(f"`query` is {query!r:.40}; expected a text")
            most = number_of("top_n", given.get("top_n", len(documents)), int, 1, float("inf"))
            has_documents = truth_of("return_documents", given.get("return_documents", True))
            sequences = [model.sequence(query, document) for document in documents]
            headers = dict(request.headers)
            scores = await model.pooled(sequences, seconds_left(headers, None, model.config.timeout_ms), headers)
        order = np.argsort(-scores[:, 0], kind="stable")[:most].tolist()
        results = [
            {"index": place, "relevance_score": float(scores[place, 0])}
            | ({"document": {"text": documents[place]}} if has_documents else {})
            for place in order
        ]
        usage = {"total_tokens": sum(len(each.tokens) for each in sequences)}
        return JSONResponse(
            {"id": f"rerank-{uuid.uuid4().hex}", "model": model.name, "usage": usage, "results": results}
        )

    router.add_api_route("/embeddings", embeddings, methods=["POST"])
    router.add_api_route("/rerank", rerank, methods=["POST"])
    return router


def _given(body: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The keys that are not null. Raises `InputError` for an unknown one."""
    given = {key: value for key, value in body.items() if value is not None}
    if unknown := sorted(given.keys() - known):
        raise InputError(f"the request has the unknown key {unknown[0]!r:.80}; expected {', '.join(sorted(known))}")
    return given


def _encoder(data_plane: DataPlane, body: dict[str, Any]) -> EncoderModel:
    name = model_name(body)
    model = data_plane.get_model_from_registry(name)
    if not isinstance(model, EncoderModel):
        raise UnsupportedError(f"model `{name}` has no embeddings or scores: its configuration has no [encoder]")
    return model


def _documents(value: Any) -> list[str]:
    """Texts, or objects with a `text`."""
    given = [each.get("text") if isinstance(each, dict) else each for each in value] if isinstance(value, list) else []
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) != len(given) or not 1 <= len(texts) <= _MAX_DOCUMENTS:
        raise InputError(f"`documents` must be a list of 1 to {_MAX_DOCUMENTS} texts")
    return texts


def _encoded(vector: Any, encoding: str) -> Any:
    """Numbers, or their bytes as little-endian float32, which OpenAI's clients ask for by themselves."""
    if encoding == "float":
        return vector.tolist()
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
