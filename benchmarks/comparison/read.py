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
_SIZES = (256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, _BYTES)


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
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]

    def measure(self, size: int = _BYTES) -> float:
        """One pass over `size` bytes, in GB/s; of what caches may hold, the mean of many passes."""
        address = (self._data.ctypes.data + 63) // 64 * 64
        size = min(max(size, 4096 * self.threads), _BYTES)
        return size / float(self._read(address, size, self.threads, max(1, _BYTES // 2 // size))) / 1e9


class ReadCurve:
    """The read bandwidth by the number of bytes read again and again, from caches and from memory."""

    def __init__(self, threads: int) -> None:
        read = ReadBandwidth(threads)
        self._points = [(size, max(read.measure(size) for _ in range(3))) for size in _SIZES]

    def gigabytes(self, size: int) -> float:
        """GB/s where a model reads this many bytes."""
        return next((rate for most, rate in self._points if size <= most), self._points[-1][1])

    def __str__(self) -> str:
        return ", ".join(f"{size >> 10} KiB {rate:.0f} GB/s" for size, rate in self._points)
