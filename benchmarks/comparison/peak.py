"""The machine's multiply-add peak, measured in the same run as the engines."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

_SOURCE = Path(__file__).with_name("peak.cpp")


@dataclass(slots=True)
class Peak:
    """Measures between the engines, and keeps the best: a shared machine may be slower at times, but never faster."""

    threads: int
    best: dict[str, float] = field(default_factory=dict)
    """GFLOP/s by precision; empty without a C++ compiler."""
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Peak:
        """Compile the program for this machine, if there is a compiler."""
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            return self
        self._folder = tempfile.TemporaryDirectory()
        command = [
            *shlex.split(compiler),
            "-O2",
            "-std=c++17",
            "-march=native",
            "-ffp-contract=fast",
            "-pthread",
            str(_SOURCE),
        ]
        subprocess.run([*command, "-o", str(self._program)], check=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the program."""
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _program(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "peak"

    def measure(self) -> None:
        """Measure once more."""
        if self._folder is None:
            return
        done = subprocess.run([self._program, str(self.threads)], check=True, capture_output=True, text=True)
        for precision, figure in zip(("f32", "bf16"), map(float, done.stdout.split()), strict=True):
            if figure:
                self.best[precision] = max(self.best.get(precision, 0.0), figure)
