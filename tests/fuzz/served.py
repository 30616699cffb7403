"""A server in a process of its own, models for it, and what is right for them: for the generators that ask it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from apps.serve.tests.conftest import Running, dense, running, write
from engine import Core
from engine.generation import Generator
from engine.passes import MakeStateful
from engine.testing.behaviour.states import history_model

from .finding import Finding

DECODER = Path(__file__).parent.parent / "fixtures" / "decoders" / "llama.dynamo23.onnx"
PROMPTS = ([3, 14, 15, 9], [2], [7, 1, 8], [31])
TOKENS = 24
CPU = 'device = "CPU"\nqueue_size = 500\n'
GROWTH = 100 << 20
"""How many bytes a server may grow by after its first rounds: allocators keep some memory, and caches fill."""
POOLS = {"MALLOC_ARENA_MAX": "2"}
"""With the default of glibc, eight for each core, a server has 20 MB more for each that comes into use."""


def require_packages() -> None:
    """Exit, naming what to install, where the server or its clients are missing."""
    for package in ("kserve", "tritonclient"):
        if importlib.util.find_spec(package) is None:
            raise SystemExit(f'{package} is missing: pip install engine-serve "tritonclient[http,grpc]"')


def write_models(folder: Path) -> None:
    """A model of each kind."""
    write(folder, "dense", dense(), CPU)
    write(folder, "batched", dense(), CPU + "[batching]\nsize = 4\ndelay_ms = 2\n")
    core = Core()
    model = core.read_model(history_model())
    MakeStateful(bound=1000).run_on_model(model)
    write(folder, "history", model, CPU + "[sequences]\nsize = 200\nidle_ms = 20000\n")
    target = folder / "llama"
    target.mkdir()
    for path in DECODER.parent.glob(DECODER.name + "*"):
        shutil.copy(path, target / path.name.replace(DECODER.name, "model.onnx"))
    (target / "config.toml").write_text(CPU + f"[generation]\nslots = 4\nmax_tokens = {TOKENS}\n")


@functools.cache
def continued(prompt: int) -> list[int]:
    """The tokens after a prompt, computed alone."""
    core = Core()
    model = core.read_model(DECODER)
    MakeStateful().run_on_model(model)
    return Generator(core.compile_model(model, "CPU")).generate(PROMPTS[prompt], TOKENS)[0]


class Server:
    """A server that is started when it is needed, and checked for tracebacks and growth."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-served-")) / "models"
        write_models(self.folder)
        self._options = options
        self._stack = contextlib.ExitStack()
        self._running: Running | None = None
        self._first: tuple[int, int] | None = None
        self._looks = 0

    def start(self) -> Running:
        """The server that runs; a new one if there is none."""
        if self._running is None:
            self._running = self._stack.enter_context(running(self.folder, *self._options, env=os.environ | POOLS))
            self._first, self._looks = None, 0
        return self._running

    def end(self, *, by_force: bool) -> None:
        """End the server, by SIGTERM or SIGKILL. Raises `Finding` if it does not end well."""
        assert self._running is not None
        process, log_path = self._running.process, self._running.log_path
        process.kill() if by_force else process.terminate()
        code = process.wait(60)
        self._running = None
        self._stack.close()
        log = log_path.read_text()
        _look_at_log(log)
        if not by_force and code:
            raise Finding("exit code", f"{code} after SIGTERM\n{log[-3000:]}")
        if not by_force and ", 0 were cut off" not in log:
            raise Finding("cut off", log[-3000:])

    def look(self) -> None:
        """Raise `Finding` if it has ended, wrote a traceback, or has grown."""
        assert self._running is not None
        process = self._running.process
        if process.poll() is not None:
            code, log = process.returncode, self._running.log[-3000:]
            self._running = None
            self._stack.close()
            raise Finding("the server has ended", f"{code}\n{log}")
        _look_at_log(self._running.log)
        now = (_resident(process.pid), len(os.listdir(f"/proc/{process.pid}/fd")))
        self._looks += 1
        if self._looks == 5:
            self._first = now
        if self._first is not None and (now[0] > self._first[0] + GROWTH or now[1] > self._first[1] + 200):
            raise Finding("growth", f"bytes and open files: {self._first} after 5 looks, {now} after {self._looks}")

    @property
    def resident(self) -> int:
        """The bytes of the server's process."""
        return 0 if self._running is None else _resident(self._running.process.pid)


def _look_at_log(log: str) -> None:
    if "Traceback" in log:
        raise Finding("traceback", log[max(0, log.index("Traceback") - 500) :][:4000])


def _resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_equal(what: str, got: Any, want: Any, atol: float = 0.0) -> None:
    """Raise `Finding` unless an answer is right."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or not np.allclose(got, want, atol=atol, rtol=0):
        raise Finding("wrong answer", f"{what}: got {got.tolist()!r:.500}, expected {want.tolist()!r:.500}")
