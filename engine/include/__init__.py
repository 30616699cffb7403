"""The C header for native kernels of extension operators, `engine_kernel.h`.

`python -m engine.include` prints its folder:

cc -shared -fPIC -O2 -I "$(python -m engine.include)" -o libswirl.so swirl.c
"""

from __future__ import annotations

from pathlib import Path


def include_dir() -> str:
    """The folder that has `engine_kernel.h`, for the compiler's option `-I`."""
    return str(Path(__file__).resolve().parent)
