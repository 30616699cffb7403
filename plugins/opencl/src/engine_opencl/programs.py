"""Compiled kernels: one program for each source, kept for the process and, by pyopencl and the driver, on disk."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from typing import Any

from engine.errors import DeviceError
from engine_opencl.device import OpenclDevice

OPTIONS = ("-cl-mad-enable",)


class Programs:
    """The programs of one device in this process. Thread-safe."""

    def __init__(self, device: OpenclDevice, cache_dir: str = "") -> None:
        self.device = device
        self._cache_dir = cache_dir or None
        self._built: dict[str, Any] = {}
        self._lock = threading.Lock()

    def build(self, sources: Iterable[str]) -> None:
        """Compile what is not compiled yet. Raises `DeviceError` with the compiler's log and the source."""
        for source in sources:
            self.program(source)

    def program(self, source: str) -> Any:
        """The program of a source."""
        import pyopencl as cl

        with self._lock:
            program = self._built.get(source)
            if program is None:
                try:
                    with warnings.catch_warnings():
                        # Compilers say that all went well, which pyopencl passes on as a warning.
                        warnings.simplefilter("ignore", cl.CompilerWarning)
                        program = cl.Program(self.device.context, source)
                        program.build(list(OPTIONS), cache_dir=self._cache_dir)
                except cl.Error as e:
                    raise DeviceError(
                        f"OPENCL: {self.device.facts.name} cannot compile a kernel with options {' '.join(OPTIONS)}: "
                        f"{e}\n{_numbered(source)}"
                    ) from e
                self._built[source] = program
            return program


def _numbered(source: str) -> str:
    return "\n".join(f"{number:4d} {line}" for number, line in enumerate(source.splitlines(), 1))
