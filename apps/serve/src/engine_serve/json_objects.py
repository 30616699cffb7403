"""Bodies of requests that are JSON objects, of the routes that KServe's server lacks."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Request

from engine.errors import InputError
from engine_serve.refusals import Refused


async def object_of(request: Request) -> dict[str, Any]:
    """The JSON object that is the body; an empty one without a body. Raises `Refused`."""
    text = await request.body()
    if not text:
        return {}
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise Refused(InputError(f"the request is not valid JSON: {e}")) from e
    if not isinstance(body, dict):
        raise Refused(InputError("the request is not a JSON object"))
    return body
