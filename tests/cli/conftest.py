"""The command line: its exit code and what it prints, in another process as users have it, or quickly in this one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.cli.main import main
from engine.testing.behaviour.basic import BASIC
from engine.testing.models import light_answer, light_input, light_model


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def in_process(*arguments: object, cwd: Path | None = None) -> Done:
    """Run `engine` here, which is quick."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd) if cwd else nullcontext():
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as e:
            code = int(e.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def in_another_process(*arguments: object, path: str = "", cwd: Path | None = None) -> Done:
    """Run `engine` as users do; `path` is searched for modules and plugins, too."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "engine", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))},
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def engine() -> Callable[..., Done]:
    return in_process


@pytest.fixture
def engine_process() -> Callable[..., Done]:
    return in_another_process


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, their inputs and answers, and a blob of each."""
    folder = tmp_path_factory.mktemp("files")
    onnx.save(light_model("squeezenet"), folder / "squeezenet.onnx")
    np.savez(folder / "squeezenet_input.npz", **light_input("squeezenet"))
    np.save(folder / "squeezenet_answer.npy", light_answer("squeezenet"))
    onnx.save(BASIC.model(), folder / "basic.onnx")
    np.savez(folder / "basic_input.npz", **BASIC.sample().inputs)
    np.savez(folder / "basic_answer.npz", **BASIC.sample().outputs)
    for name in ("squeezenet", "basic"):
        done = in_process("compile", folder / f"{name}.onnx", "-d", "TEMPLATE", "-o", folder / f"{name}.blob")
        assert done.code == 0, done.err
    return folder
