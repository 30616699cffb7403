"""Kernel objects, of which each context has its own: the specification allows one thread at a time in each."""

from __future__ import annotations

import sqlite3
from typing import Any


def new_kernel(program: Any, name: str) -> Any:
    """A kernel of a compiled program, also where pyopencl cannot write to the user's folder.

    pyopencl keeps the Python that it writes for each signature in a data base there, and gives up where it cannot;
    it does without where it is told so (PYOPENCL_NO_CACHE), at any time.
    """
    import pyopencl as cl

    try:
        return cl.Kernel(program, name)
    except (OSError, sqlite3.Error):
        vars(cl)["_PYOPENCL_NO_CACHE"] = True
        return cl.Kernel(program, name)
