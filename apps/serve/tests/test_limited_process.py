"""Processes with limits, and packages that are missing. If this fails, processes stay behind, or no client learns what
is missing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from typing import Any

import pytest
from engine_serve.chat_template import ChatTemplate
from engine_serve.limited_process import LimitedProcess

from apps.serve.tests.conftest import FIXTURES
from engine.errors import UnsupportedError


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules are imported without them, and the error names what to install."""
    pytest.importorskip("tokenizers")
    from engine_serve.model_text import find_text
    from engine_serve.structured_output import Grammars

    text = find_text(FIXTURES / "chat" / "model.onnx", 300)
    assert text is not None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"jinja2: pip install 'engine-serve\[openai\]'"):
        asyncio.run(ChatTemplate({"default": "a"}, {}).render({"messages": []}))
    with pytest.raises(UnsupportedError, match=r"llguidance: pip install 'engine-serve\[openai\]'"):
        Grammars("m", text, [4]).constraint({"type": "object"}, "`response_format`")


def made(source: str, **limits: Any) -> LimitedProcess:
    limits = {"cpu_seconds": 0.3, "memory_bytes": 256 << 20} | limits
    return LimitedProcess("engine_serve.template_process", {"templates": {"a": source}}, "it", **limits)


def test_a_process_that_has_ended_is_started_again() -> None:
    pytest.importorskip("jinja2")
    process = made("{% for n in range(values) %}{% for n in range(values) %}{% endfor %}{% endfor %}done")

    def reply(values: int) -> dict[str, Any]:
        return process.reply({"name": "a", "values": {"values": values}})

    assert reply(2) == {"text": "done"}
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"it took more than 0\.3 s of CPU time, and was stopped"):
            reply(90_000)
    assert reply(2) == {"text": "done"}
    (child,) = process._running
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert reply(3) == {"text": "done"}
    pid = process._running[0].pid
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_without_its_server_ends() -> None:
    """Otherwise, each crash of a server would leave some."""
    pytest.importorskip("jinja2")
    process = made("done")
    process.reply({"name": "a", "values": {}})
    (child,) = process._running
    assert child.stdin is not None
    child.stdin.close()  # as the system does at the end of the server
    assert child.wait(20) == 0
    process.close()


def test_a_process_that_cannot_start() -> None:
    process = LimitedProcess("engine_serve.nothing", {}, "it", cpu_seconds=1, memory_bytes=1 << 28)
    with pytest.raises(UnsupportedError, match="it was not done within the limits of its process, which ended with"):
        process.reply({})
    process.close()
