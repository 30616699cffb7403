"""`ChatTemplate`: how a model's tokenizer writes a chat as one text, rendered in a process with limits."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.errors import InputError, UnsupportedError
from engine_serve.daemon_threads import DaemonThreads

CPU_SECONDS: Final = 2
"""The most seconds of CPU time of a rendering; usual templates take less than a thousandth of it."""
MEMORY_BYTES: Final = 512 << 20
MAX_CHARACTERS: Final = 8 << 20
_WALL_SECONDS: Final = 60
"""How long is waited for a rendering, or for the start of the process, on a machine that is busy with other work."""
_DEFAULT: Final = "default"
_WITH_TOOLS: Final = "tool_use"
_PROGRAM: Final = Path(__file__).with_name("template_process.py")


class ChatTemplate:
    """The templates of a tokenizer, which writes chats with tools by another one, if it has two. Thread-safe.

    A process renders them, from the first chat on until `close`; one that exceeds its limits is ended, and the next
    chat starts another.

    Args:
        sources: the templates by their names.
        tokens: the special tokens that they can use, such as `eos_token`.
    """

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self._sources, self._tokens = dict(sources), dict(tokens)
        self._lock, self._threads = threading.Lock(), DaemonThreads("engine-chat-template")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    async def render(self, values: Mapping[str, Any]) -> str:
        """The text of a chat, for the next answer.

        `values` has `messages`, and may have `tools` and other values that the template reads. Raises `InputError` if
        the template refuses them, `UnsupportedError` if it fails or exceeds its limits, or jinja2 is not installed.
        """
        if importlib.util.find_spec("jinja2") is None:
            raise UnsupportedError("chats need the package jinja2: pip install 'engine-serve[openai]'")
        name = _WITH_TOOLS if values.get("tools") and _WITH_TOOLS in self._sources else _DEFAULT
        if name not in self._sources:
            raise UnsupportedError(f"the tokenizer has no default chat template, but {', '.join(self._sources)}")
        asked = {"name": name, "values": {**self._tokens, "add_generation_prompt": True, **values}}
        return await self._threads.run(self._render, asked)

    def close(self) -> None:
        """End the process; a rendering in progress ends with an error. Further calls have no effect."""
        self._is_closed = True
        process = self._process
        if process is None:
            return
        process.kill()
        if self._lock.acquire(blocking=False):  # otherwise, the thread that reads finds that the process has ended
            try:
                _end(process)
            finally:
                self._lock.release()

    def _render(self, asked: Mapping[str, Any]) -> str:
        with self._lock:
            if self._is_closed:
                raise UnsupportedError("the model was replaced or unloaded; send the request again")
            process = self._process
            if process is not None and process.poll() is not None:
                _end(process)
                process = None
            if process is None:
                process = self._process = self._started()
            reply = _exchanged(process, asked)
        if reply is None:
            raise UnsupportedError(f"the chat template {_why(process)}; see its loops, or send completions")
        if "text" in reply:
            return str(reply["text"])
        if reply["is_refused"]:
            raise InputError(f"the chat template refuses the messages: {reply['error']}")
        raise UnsupportedError(f"the chat template failed for these messages: {reply['error']}")

    def _started(self) -> subprocess.Popen[bytes]:
        limits = map(str, (CPU_SECONDS, MEMORY_BYTES, MAX_CHARACTERS))
        process = subprocess.Popen(
            # Not as a module: the package would import the engine. -P, since the modules beside it are not its own.
            [sys.executable, "-P", str(_PROGRAM), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the server, which answers its requests before
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        _write(process, {"templates": self._sources})
        return process


def find_chat_template(path: Path) -> ChatTemplate | None:
    """The chat template beside a model's file, in the files of `transformers`; None without one.

    Raises `InputError` if a file is not what it should be.
    """
    folder, sources = path.parent, dict[str, str]()
    config = _object(folder / "tokenizer_config.json")
    for given in (config.get("chat_template"), _object(folder / "chat_template.json").get("chat_template")):
        if isinstance(given, str):
            sources[_DEFAULT] = given
        elif isinstance(given, list):
            sources |= {str(each.get("name")): str(each.get("template")) for each in given if isinstance(each, dict)}
        elif given is not None:
            raise InputError(f"{folder}: `chat_template` is {given!r:.40}; expected a text, or a list of templates")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = _text(file)
    if (folder / "chat_template.jinja").is_file():
        sources[_DEFAULT] = _text(folder / "chat_template.jinja")
    return ChatTemplate(sources, _special_tokens(config)) if sources else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}
    return {key: value for key, value in found.items() if key.endswith("_token") and isinstance(value, str)}


def _object(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; an empty one without a file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path} is not valid JSON: {e}") from e
    if not isinstance(found, dict):
        raise InputError(f"{path} has a {type(found).__name__}; expected an object")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path} cannot be read: {e}") from e


def _exchanged(process: subprocess.Popen[bytes], asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of the process; None if there is none, in which case the process has ended."""
    line = b""
    with contextlib.suppress(OSError):  # it has ended
        _write(process, asked)
        line = _line(process)
    if line.endswith(b"\n"):
        reply: dict[str, Any] = json.loads(line)
        return reply
    _end(process)
    return None


def _write(process: subprocess.Popen[bytes], value: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value).encode() + b"\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """What the process writes up to the end of a line, or until it ends or takes too long."""
    assert process.stdout is not None
    found, end = bytearray(), time.monotonic() + _WALL_SECONDS
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while not found.endswith(b"\n"):
        if not poll.poll(max(0.0, end - time.monotonic()) * 1e3):
            break
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            break
        found += part
    return bytes(found)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, which nobody reads any more."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what it has not read
            if pipe is not None:
                pipe.close()


def _why(process: subprocess.Popen[bytes]) -> str:
    if process.returncode == -signal.SIGPROF:
        return f"took more than {CPU_SECONDS} s of CPU time for these messages"
    return f"did not end for these messages (exit status {process.returncode})"
