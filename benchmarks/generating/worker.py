"""A process of its own for each engine."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from generating.engines import ENGINES, TokenEngine


@dataclass(frozen=True, slots=True)
class Resident:
    """The resident memory of a process, in MB: all of it, that which is not of files, and all at its peak."""

    now: float
    anonymous: float
    peak: float


class Worker:
    """The caller's side of a process that runs one engine."""

    def __init__(self, engine: str, path: Path, form: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, engine, path, form, threads), daemon=True)
        self._process.start()
        other.close()  # so that the end of the process is noticed
        self.version, self.load_seconds = self._answer()

    def start(self, prompt: Sequence[int]) -> tuple[float, int]:
        """The seconds until the first token, and the token."""
        return self._call("start", list(prompt))  # type: ignore[no-any-return]

    def steps(self, count: int) -> tuple[list[float], list[int]]:
        """The seconds of each of the next tokens, and the tokens."""
        return self._call("steps", count)  # type: ignore[no-any-return]

    def resident(self) -> Resident:
        """The memory of the process."""
        return self._call("resident")  # type: ignore[no-any-return]

    def lowered(self) -> int | None:
        """How many plans were lowered so far; None if the engine does not say."""
        return self._call("lowered")  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _call(self, *command: Any) -> Any:
        self._pipe.send(command)
        return self._answer()

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the process ended with status {self._process.exitcode}") from None
        if kind == "error":
            raise RuntimeError(value)
        return value


def _serve(pipe: Connection, name: str, path: Path, form: str, threads: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        begin = time.perf_counter()
        engine = ENGINES[name](path, form, threads)
        pipe.send(("ok", (engine.version, time.perf_counter() - begin)))
    except Exception as e:
        pipe.send(("error", f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else traceback.format_exc()}"))
        return
    while True:
        command, *arguments = pipe.recv()
        try:
            pipe.send(("ok", _execute(engine, command, arguments)))
        except Exception as e:
            pipe.send(("error", f"{type(e).__name__}: {e}"))


def _execute(engine: TokenEngine, command: str, arguments: list[Any]) -> Any:
    if command == "start":
        begin = time.perf_counter()
        token = engine.start(arguments[0])
        return time.perf_counter() - begin, token
    if command == "steps":
        seconds, tokens = [], []
        for _ in range(arguments[0]):
            begin = time.perf_counter()
            tokens.append(engine.step())
            seconds.append(time.perf_counter() - begin)
        return seconds, tokens
    if command == "lowered":
        return engine.lowered
    # Unlike the peak of getrusage, these do not begin with the parent process's memory.
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Resident(*(int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "RssAnon", "VmHWM")))
