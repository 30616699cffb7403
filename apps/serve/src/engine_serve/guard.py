"""`Guard`: checks of an HTTP request before its body is in memory, and cancellation if its client disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from engine_serve.limited_log import LimitedLog
from engine_serve.tokens import Tokens

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Answering: TypeAlias = Callable[[Scope, bytes, Send], Awaitable[None]]
"""Answers a request from its whole body. It must end when it is cancelled."""

_log = logging.getLogger("engine.serving")


class Admission:
    """Counts the requests of both protocols that are in memory at once."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def enter(self) -> bool:
        """Count a request; False, without counting it, if there are too many."""
        if self.count >= self.most:
            return False
        self.count += 1
        return True

    def leave(self) -> None:
        """Count a request as ended, so that another may enter."""
        self.count -= 1


class Guard:
    """Wraps an application. It limits the bytes, the duration and the number of requests with a body.

    A request whose client disconnects is cancelled. Requests without a body, such as those for health and metrics,
    always pass.

    Args:
        max_bytes: of a body; a longer one is answered with 413.
        body_seconds: how long a client may take to send a body; then 408.
        admission: if it is full, the answer is 503.
        is_ending: whether the server has stopped accepting requests: a request that is cancelled then has used up the
            grace period.
        tokens: a request must have one of them, except for health; otherwise, the answer is 401. None: no check.
        find: finds what answers POST requests to a path instead of the application.
    """

    def __init__(
        self,
        app: App,
        max_bytes: int,
        body_seconds: float,
        admission: Admission,
        is_ending: Callable[[], bool],
        tokens: Tokens | None = None,
        find: Callable[[str], Answering | None] = lambda _: None,
    ) -> None:
        self._find = find
        self._app, self._max_bytes, self._body_seconds = app, max_bytes, body_seconds
        self._admission, self._is_ending, self._tokens = admission, is_ending, tokens
        self._strangers = LimitedLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's event, as ASGI has it."""
        if not self._is_known(scope):
            self._strangers.info("refused a request over HTTP: %s", WITHOUT_TOKEN)
            await _refuse(send, 401, WITHOUT_TOKEN, closes=True, is_logged=True)
            return
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        encoding = dict(scope["headers"]).get(b"content-encoding", b"identity").decode("latin-1")
        if encoding.lower() != "identity":
            message = f"UnsupportedError: the body has the content encoding {encoding!r:.40}; send it without one"
            await _refuse(send, 415, message, closes=True)
            return
        if not self._admission.enter():
            await _refuse(send, 503, f"Busy: {self._admission.most} requests are in progress; try again later")
            return
        has_begun = has_gone = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        async def heard() -> Message:
            nonlocal has_gone
            message = await receive()
            has_gone = has_gone or message["type"] == "http.disconnect"
            return message

        try:
            await self._limited(scope, heard, noted)
        except asyncio.CancelledError:
            if not self._is_ending():
                raise
            # Cancelled by uvicorn, which would log it as a failure of the application.
            if has_gone:  # the device has not noticed it yet; no client loses its answer
                return
            _log.warning("a request is cut off: the grace period is over", extra={"path": scope["path"]})
            if not has_begun:
                await _refuse(
                    send,
                    503,
                    "NotReadyError: the server is shutting down; send the request to another one",
                    closes=True,
                )
        finally:
            self._admission.leave()

    def _is_known(self, scope: Scope) -> bool:
        """Whether a request has a token, or needs none."""
        if self._tokens is None or scope["type"] != "http" or scope["path"] in _FOR_ALL:
            return True
        return self._tokens.accepts(dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._body_seconds):
                body = await self._body(dict(scope["headers"]).get(b"content-length", b""), receive)
        except TimeoutError:
            await _refuse(
                send, 408, f"DeadlineExceeded: the body did not arrive within {self._body_seconds:g} s", closes=True
            )
            return
        except _TooLarge:
            await _refuse(send, 413, f"TooLargeError: the body has more than {self._max_bytes} bytes", closes=True)
            return
        if body is None:
            return
        answering = self._find(scope["path"]) if scope["method"] == "POST" else None
        if answering is None:
            await self._run(scope, body, receive, send)
        else:
            await self._answer(answering, scope, body, receive, send)

    async def _body(self, stated: bytes, receive: Receive) -> bytes | None:
        """The whole body; None if the client has disconnected. Raises `_TooLarge` as soon as the limit is exceeded."""
        if stated.isdigit() and int(stated) > self._max_bytes:
            raise _TooLarge
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                raise _TooLarge
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _answer(self, answering: Answering, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Like `_run`, without a task for the application, which ends when it is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        is_answered = has_gone = False
        gone = asyncio.ensure_future(receive())

        def disconnected(_: object) -> None:
            nonlocal has_gone
            if not is_answered:
                has_gone = True
                _log.info("a client disconnected before its answer", extra={"path": scope["path"]})
                task.cancel()

        async def noted(message: Message) -> None:
            nonlocal is_answered
            is_answered = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        gone.add_done_callback(disconnected)
        try:
            await answering(scope, body, noted)
        except asyncio.CancelledError:
            if not has_gone or task.uncancel():
                raise
        finally:
            gone.remove_done_callback(disconnected)
            gone.cancel()

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        given = answered = False
        gone = asyncio.ensure_future(receive())

        async def replay() -> Message:
            nonlocal given
            if given:
                return await asyncio.shield(gone)
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        head: Message | None = None

        async def watched(message: Message) -> None:
            """Send; a response in one part gets its length, which KServe omits for binary tensors."""
            nonlocal answered, head
            if message["type"] == "http.response.start":
                head = message
                return
            answered = message["type"] == "http.response.body" and not message.get("more_body")
            if head is not None:
                if answered and not any(name.lower() == b"content-length" for name, _ in head["headers"]):
                    head["headers"] = [*head["headers"], (b"content-length", b"%d" % len(message.get("body", b"")))]
                await send(head)
                head = None
            await send(message)

        app = asyncio.ensure_future(self._app(scope, replay, watched))
        try:
            await asyncio.wait((app, gone), return_when=asyncio.FIRST_COMPLETED)
            if not app.done() and not answered:
                _log.info("a client disconnected before its answer", extra={"path": scope["path"]})
                app.cancel()
            await asyncio.wait((app,))
            if not app.cancelled():
                app.result()
        finally:
            gone.cancel()
            app.cancel()


class _TooLarge(Exception):
    pass


_FOR_ALL: Final = ("/v2/health/live", "/v2/health/ready")
"""The routes of probes, which need no token."""
WITHOUT_TOKEN: Final = "NotAllowedError: the header `authorization` must be `Bearer` and a token of the server's"
_JSON: Final = (b"content-type", b"application/json")


async def _refuse(send: Send, status: int, message: str, *, closes: bool = False, is_logged: bool = False) -> None:
    if not is_logged:
        _log.log(logging.DEBUG if status == 503 else logging.INFO, "refused: %s", message, extra={"status": status})
    text = json.dumps({"error": message}).encode()
    headers = [_JSON, (b"content-length", str(len(text)).encode())]
    if closes:
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
