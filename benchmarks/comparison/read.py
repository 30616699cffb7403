"""The machine's read bandwidth, measured in the same run as the engines."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

_SOURCE = Path(__file__).with_name("read.cpp")
_BYTES = 192 << 20


class ReadBandwidth:
    """Reads 192 MiB, more than any cache holds, whenever it is called."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._data = np.ones(_BYTES + 64, np.uint8)
        compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "read.so"
            flags = ["-O2", "-std=c++17", "-march=native", "-pthread", "-shared", "-fPIC"]
            subprocess.run([*shlex.split(compiler), *flags, str(_SOURCE), "-o", str(program)], check=True)
            self._read = ctypes.CDLL(str(program)).read_seconds
        self._read.restype = ctypes.c_double
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def measure(self) -> float:
        """One pass, in GB/s."""
        address = (self._data.ctypes.data + 63) // 64 * 64
        return _BYTES / float(self._read(address, _BYTES, self.threads)) / 1e9
