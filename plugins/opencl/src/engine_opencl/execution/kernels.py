"""Kernel objects, separate for each context: the specification allows only one thread at a time to use one."""

from __future__ import annotations

import sqlite3
from typing import Any


def new_kernel(program: Any, name: str) -> Any:
    """A kernel of a compiled program, even if pyopencl cannot write to the user's folder.

    pyopencl stores the Python code that it generates for each signature in a database there, and fails if it cannot;
    PYOPENCL_NO_CACHE, which may be set at any time, disables this.
    """
    import pyopencl as cl

    try:
        return cl.Kernel(program, name)
    except (OSError, sqlite3.Error):
        vars(cl)["_PYOPENCL_NO_CACHE"] = True
        return cl.Kernel(program, name)
