"""Errors as answers of HTTP: the same for the routes of KServe's application and for those beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from kserve.errors import InvalidInput, ModelNotReady, ServerNotLive, ServerNotReady

from engine.errors import InputError, UnsupportedError
from engine_serve.openai_errors import error_body
from engine_serve.refusals import Refused


async def _refused(request: Request | None, refused: Refused) -> Response:
    refused.log("")
    headers = {"retry-after": "1"} if refused.http_status == 503 else None
    return _answer(request, refused.http_status, refused.details, headers)


def _answer(request: Request | None, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    path = "" if request is None else request.url.path
    return JSONResponse(error_body(path, status, message), status, headers)


async def _not_ready(request: Request | None, error: Exception) -> Response:
    return _answer(request, 503, f"NotReadyError: {error}")


async def _invalid(request: Request | None, error: Exception) -> Response:
    return await _refused(request, Refused(InputError(str(error))))


async def _not_valid(request: Request | None, error: RequestValidationError) -> Response:
    """A request that does not have the form of the protocol; the first of the reasons that pydantic found."""
    reasons = error.errors()
    where = ".".join(str(part) for part in reasons[0]["loc"]) if reasons else "body"
    why = reasons[0]["msg"] if reasons else "it cannot be read"
    return await _refused(request, Refused(InputError(f"the request is not valid: {where}: {why}")))


async def _http_error(request: Request | None, error: HTTPException) -> Response:
    return _answer(request, error.status_code, str(error.detail))


async def _not_implemented(request: Request | None, error: Exception) -> Response:
    """The answer of KServe's routes for functions that no model here has, such as explaining an answer."""
    return await _refused(request, Refused(UnsupportedError(f"the server does not do this: {error}")))


async def _failed(request: Request | None, error: Exception) -> Response:
    return _answer(request, 500, f"ServingError: the server failed: {type(error).__name__}: {error}")


_Handler = Callable[[Any, Any], Awaitable[Response]]
HANDLERS: Final[dict[type[Exception] | int, _Handler]] = {
    # KServe's own handlers write a traceback for each probe.
    **dict.fromkeys((ModelNotReady, ServerNotReady, ServerNotLive), _not_ready),
    InvalidInput: _invalid,
    Refused: _refused,
    RequestValidationError: _not_valid,
    # Errors of FastAPI, and of starlette's router in it.
    **dict.fromkeys((400, 404, 405), _http_error),
    NotImplementedError: _not_implemented,
    Exception: _failed,
}
"""What answers an error, by its class, or by the status of an `HTTPException`: FastAPI's exception handlers."""


async def error_answer(error: Exception) -> Response:
    """The answer to a request that ended with an error, outside of FastAPI."""
    handler = next(HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS)
    return await handler(None, error)
