"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

PREFIX = "/openai/"
"""The beginning of the paths of OpenAI's routes."""


def error_body(path: str, status: int, message: str) -> dict[str, Any]:
    """The body of a refusal: `message` begins with the class of the error. OpenAI's routes have an object."""
    if not path.startswith(PREFIX):
        return {"error": message}
    return {"error": error_object(status, message)}


def error_object(status: int, message: str) -> dict[str, Any]:
    """What OpenAI's clients expect of an error; their code is here the class of the error."""
    kind = "server_error" if status >= 500 else "not_found_error" if status == 404 else "invalid_request_error"
    return {"message": message, "type": kind, "param": None, "code": message.partition(":")[0]}
