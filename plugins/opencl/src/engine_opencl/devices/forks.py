"""Objects of OpenCL drivers in forked processes: they are never released there.

A child that was forked from a process that used OpenCL has none of the driver's threads. NVIDIA's driver (580.159)
crashes it when it releases anything, as the garbage collector does at some point.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_after_fork(owner: Any) -> None:
    """In children forked from now on, `owner`, and all that it refers to then, lives until the child ends."""
    _owners.add(owner)


def _keep() -> None:
    for owner in list(_owners):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep)
