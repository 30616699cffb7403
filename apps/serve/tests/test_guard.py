"""Requests that are cancelled. If this fails, the log blames the end of the server for clients that went away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import MutableMapping
from typing import Any

import pytest
from engine_serve.guard import Admission, Guard

SCOPE = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": []}


class Call:
    """A request whose application does not end, not even if it is cancelled, as with a device that hangs."""

    def __init__(self, is_ending: bool, client_stays: bool) -> None:
        self.messages = [{"type": "http.request", "body": b"{}"}]
        if not client_stays:
            self.messages.append({"type": "http.disconnect"})
        self.sent: list[MutableMapping[str, Any]] = []
        self.is_running, self.may_end = asyncio.Event(), asyncio.Event()
        self.admission = Admission(1)
        self.guard = Guard(self.application, 1000, 10, self.admission, lambda: is_ending)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.is_running.set()
        while not self.may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.may_end.wait()

    async def receive(self) -> Any:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    async def cancelled(self) -> str:
        """Cancel the call while it runs; returns how it ended."""
        task = asyncio.ensure_future(self.guard(SCOPE, self.receive, self.send))
        await self.is_running.wait()
        for _ in range(10):  # a client that has gone is noticed
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        self.may_end.set()
        return "cancelled" if task.cancelled() else repr(task.exception())


class QuickCall(Call):
    """A request that is answered beside the application, by what ends when it is cancelled."""

    def __init__(self, is_ending: bool, client_stays: bool) -> None:
        super().__init__(is_ending, client_stays)
        self.guard = Guard(
            self.application, 1000, 10, self.admission, lambda: is_ending, find={SCOPE["path"]: self.answer}.get
        )

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the application is not asked")

    async def answer(self, scope: Any, body: bytes, send: Any) -> None:
        assert body == b"{}"
        self.is_running.set()
        await self.may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"7"})


@pytest.mark.parametrize(
    ("kind", "is_ending", "client_stays", "end", "statuses", "logged"),
    [
        (Call, True, True, "None", [503], ["a request is cut off: the grace period is over"]),
        (Call, True, False, "None", [], ["a client disconnected before its answer"]),
        (Call, False, True, "cancelled", [], []),
        (Call, False, False, "cancelled", [], ["a client disconnected before its answer"]),
        (QuickCall, True, True, "None", [503], ["a request is cut off: the grace period is over"]),
        (QuickCall, True, False, "None", [], ["a client disconnected before its answer"]),
        (QuickCall, False, True, "cancelled", [], []),
        (QuickCall, False, False, "None", [], ["a client disconnected before its answer"]),
    ],
)
def test_only_the_grace_period_is_called_so(
    caplog: pytest.LogCaptureFixture,
    kind: type[Call],
    is_ending: bool,
    client_stays: bool,
    end: str,
    statuses: list[int],
    logged: Any,
) -> None:
    """A quick answer also ends with its client; otherwise, inferences would go on for clients that went away."""

    async def main() -> None:
        call = kind(is_ending, client_stays)
        assert await call.cancelled() == end
        assert [message["status"] for message in call.sent if "status" in message] == statuses
        assert call.admission.count == 0

    with caplog.at_level(logging.INFO, "engine.serving"):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == logged


def test_a_quick_answer_is_sent_as_it_is() -> None:
    async def main() -> list[MutableMapping[str, Any]]:
        call = QuickCall(False, True)
        call.may_end.set()
        await call.guard(SCOPE, call.receive, call.send)
        assert call.admission.count == 0
        return call.sent

    start, body = asyncio.run(main())
    assert (start["status"], body["body"]) == (200, b"7")
