"""Server-sent events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from fastapi import Response
from fastapi.responses import StreamingResponse

from engine_serve.refusals import Refused

DONE: Final = "[DONE]"
"""The last event of OpenAI's routes."""


async def event_response(
    values: AsyncGenerator[Any, None], failed: Callable[[Refused], Any], end: str = ""
) -> Response:
    """An event for each value; a request that is refused before the first one gets its status.

    Args:
        values: objects of JSON.
        failed: the event for an error after the first one, with which the events end.
        end: the last event, also after an error; "" for none.
    """
    try:
        first = await anext(values, None)
    except BaseException:
        await values.aclose()
        raise

    async def events() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(values):
            try:
                value = first
                while value is not None:
                    yield _event(value)
                    value = await anext(values, None)
            except Refused as e:
                yield _event(failed(e))
            if end:
                yield f"data: {end}\n\n".encode()

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
