"""Engines that generate tokens, each in a process of its own, behind one interface."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np


class TokenEngine(ABC):
    """One sequence of one loaded model."""

    def __init__(self, path: Path, form: str, threads: int) -> None:
        self.path, self.form, self.threads = path, form, threads

    @property
    @abstractmethod
    def version(self) -> str:
        """The engine's version."""

    @abstractmethod
    def start(self, prompt: Sequence[int]) -> int:
        """Begin a new sequence with a prompt; returns the likeliest next token."""

    @abstractmethod
    def step(self) -> int:
        """Append the last token; returns the likeliest next one."""


class ThisEngine(TokenEngine):
    """This project, by `engine.generation`."""

    def __init__(self, path: Path, form: str, threads: int) -> None:
        super().__init__(path, form, threads)
        from engine import Core
        from engine.generation import Generator
        from engine.passes import MakeStateful

        core = Core()
        model = core.read_model(path)
        MakeStateful(bound=4096).run_on_model(model)
        hint = "bf16" if form == "bf16" else "f32"
        config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": hint}
        self._generator = Generator(core.compile_model(model, "CPU", config))

    @property
    def version(self) -> str:
        import engine

        return engine.__version__

    def start(self, prompt: Sequence[int]) -> int:
        self._generator.reset()
        self._generator.append(list(prompt))
        return self.step()

    def step(self) -> int:
        (token,) = self._generator.step()
        assert token is not None
        return token


class OnnxruntimeGenai(TokenEngine):
    """onnxruntime-genai, whose past and present share a buffer."""

    def __init__(self, path: Path, form: str, threads: int) -> None:
        super().__init__(path, form, threads)
        if form == "bf16":
            raise ValueError("onnxruntime's CPU provider has no products in bf16")
        import onnxruntime_genai

        self._package = onnxruntime_genai
        config = onnxruntime_genai.Config(str(path.parent))
        config.overlay(f'{{"model":{{"decoder":{{"session_options":{{"intra_op_num_threads":{threads}}}}}}}}}')
        self._model = onnxruntime_genai.Model(config)
        self._generator: Any = None

    @property
    def version(self) -> str:
        return str(self._package.__version__)

    def start(self, prompt: Sequence[int]) -> int:
        parameters = self._package.GeneratorParams(self._model)
        parameters.set_search_options(do_sample=False, max_length=4096)
        self._generator = None
        self._generator = self._package.Generator(self._model, parameters)
        self._generator.append_tokens(np.array(prompt, np.int32))
        return self.step()

    def step(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])


class Openvino(TokenEngine):
    """openvino, made stateful by its own transformation."""

    def __init__(self, path: Path, form: str, threads: int) -> None:
        super().__init__(path, form, threads)
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        core = openvino.Core()
        model = core.read_model(path)
        names = [name for port in model.inputs for name in port.names if name.startswith("past_key_values")]
        pairs = {name: name.replace("past_key_values", "present") for name in names}
        # The initial value of a variable has a batch of 0 unless it is known.
        model.reshape({port: [1, *list(port.partial_shape)[1:]] for port in model.inputs})
        apply_make_stateful_transformation(model, pairs)
        config = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if form == "bf16" else "f32",
            "KV_CACHE_PRECISION": "bf16" if form == "bf16" else "f32",
        }
        if form != "int4a8":
            config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        self._request = core.compile_model(model, "CPU", config).create_infer_request()
        self._version = openvino.__version__
        self._length, self._last = 0, 0

    @property
    def version(self) -> str:
        return str(self._version)

    def start(self, prompt: Sequence[int]) -> int:
        self._request.reset_state()
        self._length = 0
        return self._infer(np.array([prompt], np.int64))

    def step(self) -> int:
        return self._infer(np.array([[self._last]], np.int64))

    def _infer(self, ids: np.ndarray) -> int:
        self._length += ids.shape[1]
        mask = np.ones((1, self._length), np.int64)
        result = self._request.infer({"input_ids": ids, "attention_mask": mask}, share_inputs=True)
        self._last = int(result["logits"][0, -1].argmax())
        return self._last


ENGINES: dict[str, type[TokenEngine]] = {
    "engine": ThisEngine,
    "onnxruntime-genai": OnnxruntimeGenai,
    "openvino": Openvino,
}


class Worker:
    """The caller's side of a process that runs one engine."""

    def __init__(self, engine: str, path: Path, form: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, engine, path, form, threads), daemon=True)
        self._process.start()
        self.version, self.load_seconds = self._answer()

    def start(self, prompt: Sequence[int]) -> tuple[float, int]:
        """The seconds until the first token, and the token."""
        return self._call("start", list(prompt))  # type: ignore[no-any-return]

    def steps(self, count: int) -> tuple[list[float], list[int]]:
        """The seconds of each of the next tokens, and the tokens."""
        return self._call("steps", count)  # type: ignore[no-any-return]

    def megabytes(self) -> tuple[float, float]:
        """The process's memory now, and at its peak."""
        return self._call("memory")  # type: ignore[no-any-return]

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
    # Unlike the peak of getrusage, these do not begin with what the parent process had.
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak
