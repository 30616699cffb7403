"""Checks of every gRPC call: who may call, whether the message is valid, and whether the server is ending."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor

from engine.errors import InputError, NotReadyError
from engine_serve.guard import WITHOUT_TOKEN
from engine_serve.limited_log import LimitedLog
from engine_serve.refusals import Refused
from engine_serve.tokens import Tokens

_FOR_ALL: Final = ("/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady")
_ENDING: Final = "the server is shutting down; send the request to another one"


class Ending:
    """Informs the calls in flight that the server ends.

    When its server is shut down, gRPC's core drops the calls that it has received and not yet passed on, and clients
    send further ones until they have learned of it; both would end as CANCELLED. So, before that, calls are *held*: new
    ones are accepted and wait, and answers wait, so that clients send no further calls. When all clients know of the
    end, the held calls continue.
    """

    def __init__(self) -> None:
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self.begins, self.is_over = asyncio.Event(), asyncio.Event()
        """Set when clients have been informed, and when the grace period is over."""

    def hold(self) -> None:
        """Make calls and answers wait in `passed`."""
        self._may_pass.clear()

    def release(self) -> None:
        """Let held calls continue. Streams without a request in progress end."""
        self._may_pass.set()
        self.begins.set()

    async def passed(self) -> None:
        """Return at once, or wait while calls are held."""
        if not self._may_pass.is_set():
            await self._may_pass.wait()

    async def limited(self, work: Awaitable[Any], context: Any) -> Any:
        """The result of a part of a call; when the grace period is over, the call ends with UNAVAILABLE."""
        task, over = asyncio.ensure_future(work), asyncio.ensure_future(self.is_over.wait())
        try:
            await asyncio.wait((task, over), return_when=asyncio.FIRST_COMPLETED)
            if task.done() or (context.done() and not context.cancelled()):  # the task has begun to refuse the call
                return await task
        finally:
            over.cancel()
            await _cancelled(task)
        return await context.abort(grpc.StatusCode.UNAVAILABLE, f"NotReadyError: {_ENDING}")

    async def requests(self, given: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The requests of a stream, until the server ends; then it raises `Refused`."""
        begins = asyncio.ensure_future(self.begins.wait())
        try:
            while True:
                following = asyncio.ensure_future(anext(given, None))
                try:
                    await asyncio.wait((following, begins), return_when=asyncio.FIRST_COMPLETED)
                    if not following.done():
                        raise Refused(NotReadyError(_ENDING))
                    request = following.result()
                finally:
                    await _cancelled(following)
                if request is None:
                    return
                yield request
        finally:
            begins.cancel()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and wait for its end: the objects that it uses, such as a generator, can be closed only then."""
    task.cancel()
    if not task.done():
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # the exception is read, because otherwise asyncio logs that it never was


class _NoMessage:
    """Bytes that are not the message that a method takes."""

    def __init__(self, size: int) -> None:
        self.size = size


class Interceptor(ExceptionToStatusInterceptor):  # type: ignore[misc]
    """Wraps every method. Errors of the client are answered with a status, and logged without a traceback."""

    def __init__(self, ending: Ending, tokens: Tokens | None) -> None:
        super().__init__()
        self._ending, self._tokens = ending, tokens
        self._strangers, self._malformed = LimitedLog(), LimitedLog()

    async def handle_exception(self, ex: Exception, request_or_iterator: Any, context: Any, method_name: str) -> None:
        """Turn an exception into a status of gRPC, and log refusals."""
        if isinstance(ex, ValueError) and hasattr(ex, "reason"):  # KServe's InvalidInput
            ex = Refused(InputError(str(ex)))
        if isinstance(ex, Refused):
            ex.log("")
        await super().handle_exception(ex, request_or_iterator, context, method_name)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The method, wrapped in the checks."""
        handler = await super().intercept_service(continuation, handler_call_details)
        if handler is None:
            return None
        if self._tokens is not None and handler_call_details.method not in _FOR_ALL:
            header = dict(handler_call_details.invocation_metadata or ()).get("authorization")
            if not isinstance(header, str | None) or not self._tokens.accepts(header):
                self._strangers.info("refused a call of gRPC: %s", WITHOUT_TOKEN)
                return _refusing(handler)
        read = _reader(handler.request_deserializer)
        write = handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._streaming(handler.stream_stream), read, write)
        return grpc.unary_unary_rpc_method_handler(self._single(handler.unary_unary), read, write)

    def _single(self, method: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def call(request: Any, context: Any) -> Any:
            await self._ending.passed()
            if isinstance(request, _NoMessage):
                await self.handle_exception(self._no_message(request), request, context, "")
            answer = await self._ending.limited(method(request, context), context)
            await self._ending.passed()
            return answer

        return call

    def _streaming(self, method: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Any:
        async def call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            await self._ending.passed()
            async with contextlib.aclosing(method(self._messages(requests), context)) as answers:
                while (answer := await self._ending.limited(anext(answers, None), context)) is not None:
                    yield answer

        return call

    async def _messages(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in self._ending.requests(requests.__aiter__()):
            if isinstance(request, _NoMessage):
                raise self._no_message(request)
            yield request

    def _no_message(self, request: _NoMessage) -> Refused:
        error = InputError(f"the {request.size} bytes of the call are not a valid message of its method")
        self._malformed.info("refused a call of gRPC: %s", error)
        return Refused(error, is_logged=True)


def _reader(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:  # gRPC would answer UNKNOWN, and log a traceback for each
            return _NoMessage(len(data))

    return read


def _refusing(handler: Any) -> Any:
    """Replaces a method for a client without a token: its message is not even read."""

    async def single(_: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, WITHOUT_TOKEN)

    async def streaming(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, WITHOUT_TOKEN)
        yield b""

    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(streaming)
    return grpc.unary_unary_rpc_method_handler(single)
